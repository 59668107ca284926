"""Diabetes (Efron, Hastie, Johnstone and Tibshirani, Annals of Statistics 2004): a regression.

442 patients with ten measurements each, and the progress of the disease after a year, 25 to 346.
The table comes with scikit-learn.
"""

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.sources import arrays


def diabetes(*, unseen: str = "", normalize: str = "standard") -> Dataset:
    """Diabetes: x [442, 10] float32, labels y [442] float32; for config.task.name=regression.

    unseen, normalize: as in `table`. A random fifth of the patients are the test examples, unless
    config.data.test draws another share.
    """
    from sklearn.datasets import load_diabetes

    table = load_diabetes(scaled=False)
    members = {"y": np.asarray(table.target)}
    made = arrays.from_members("diabetes", np.asarray(table.data), members)
    return made._replace(domains=("diabetes",))
