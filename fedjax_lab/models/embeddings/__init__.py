"""Sources of embeddings, which map examples and labels to vectors."""

from typing import NamedTuple

import numpy as np


class Embeddings(NamedTuple):
    """The result of an embedding source, a function of the dataset and its own settings.

    Rows of `Dataset.test` are 0.
    """

    examples: np.ndarray  # D [R, E] float32, one row for each example of the dataset
    labels: np.ndarray  # T [K, E] float32, one row for each class
