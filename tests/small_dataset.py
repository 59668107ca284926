"""Five examples of three classes, two of them for testing."""

import numpy as np

from fedjax_lab.data.dataset import Dataset

TEST = np.array([False, True, False, False, True])


SMALL = Dataset(
    np.zeros((5, 2), np.float32),
    np.array([0, 1, 2, 0, 1], np.int32),
    np.zeros(5, np.int32),
    TEST,
    ("a", "b", "c"),
    ("one",),
)
