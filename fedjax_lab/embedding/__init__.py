"""Sources of embeddings: what a model of images and texts makes of examples and of their labels."""

from typing import NamedTuple

import numpy as np


class Embeddings(NamedTuple):
    """What each source, a function of the dataset and its own settings, returns.

    Rows of `Dataset.test` are 0.
    """

    examples: np.ndarray  # D [R, E] float32, one row for each example of the dataset
    labels: np.ndarray  # T [K, E] float32
