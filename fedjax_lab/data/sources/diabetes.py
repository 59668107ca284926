"""Diabetes (Efron, Hastie, Johnstone and Tibshirani, Annals of Statistics 2004): a regression.

442 patients with ten measurements each, and the progress of the disease after a year, 25 to 346.
The table comes with scikit-learn.
"""

import numpy as np

from fedjax_lab.bounds import BelowOne, NotNegative
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.sources import arrays


def diabetes(
    *,
    test: BelowOne = 0.2,
    test_seed: NotNegative[int] = 0,
    unseen: str = "",
    normalize: str = "standard",
) -> Dataset:
    """Diabetes: x [442, 10] float32, labels y [442] float32; for config.task.name=regression.

    test: the share of the patients that are drawn as test examples.
    test_seed: the seed of the draw. unseen, normalize: as in `table`.
    """
    from sklearn.datasets import load_diabetes

    table = load_diabetes(scaled=False)
    split = arrays.random_test_rows(len(table.target), test, test_seed).astype(int)
    made = arrays.of_members(
        "diabetes", np.asarray(table.data), {"y": np.asarray(table.target), "split": split}
    )
    return made._replace(domains=("diabetes",), test_is_drawn=True)
