"""Synthetic(alpha, beta) of FedProx (Li et al., MLSys 2020, arXiv:1812.06127), Section 5.1.

Each user k has its own classifier and its own distribution of inputs:

  W_k, b_k ~ N(u_k, 1),  u_k ~ N(0, alpha)
  x        ~ N(v_k, S),  v_k ~ N(B_k, 1),  B_k ~ N(0, beta),  S = diag(j^-1.2)
  y        = argmax softmax(x W_k + b_k)

As in the authors' code, alpha and beta are standard deviations, a user has 50 examples and
floor(LogNormal(4, 2)) more, and 90 % of them are for training (80 % in the text of the paper). A
larger u_k raises the logits of all classes equally, so alpha does not affect the labels. Users
differ because each has its own weights, and because of beta.
"""

from functools import partial
from typing import Annotated

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.sources._generated import (
    Spread,
    draw_sizes,
    training_counts,
    user_dataset,
)
from fedjax_lab.ranges import BelowOne, NotNegative, Positive, Within

CITATION = (
    "T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in"
    " Heterogeneous Networks. MLSys 2020, arXiv:1812.06127"
)
LEAST = 50  # smallest number of examples of a user
MOST_CLASSES = 10_000


@source()
def synthetic(
    *,
    alpha: Spread = 1.0,
    beta: Spread = 1.0,
    iid: bool = False,
    num_users: Positive[int] = 30,
    dimension: Positive[int] = 60,
    num_classes: Annotated[int, Within(2, MOST_CLASSES)] = 10,
    test_share: BelowOne = 0.1,
    seed: NotNegative[int] = 0,
) -> Dataset:
    """Synthetic(alpha, beta): vectors x [R, dimension] float32 of users, for by_client.

    alpha: the standard deviation of u_k, which does not affect the labels.
    beta: the standard deviation of B_k; a larger one makes the inputs of users differ more.
    iid: all users have the same classifier and input distribution, whatever alpha and beta are.
    num_users: the number of users; the first ones are the same for any number.
    dimension: the size of an example.
    num_classes: the number of classes.
    test_share: the fraction of each user's examples that is for testing.
    seed: the random seed.
    """
    draw = partial(_draw_sizes, np.random.default_rng([seed, 0]))
    sizes = draw_sizes(draw, num_users, least=LEAST, example_bytes=4 * dimension)
    training = training_counts(sizes, test_share)
    shared = _classifier(np.random.default_rng([seed, 1]), 0, dimension, num_classes)
    x = np.empty((sizes.sum(), dimension), np.float32)
    y = np.empty(len(x), np.int32)
    stops = np.cumsum(sizes)
    deviations = np.arange(1, dimension + 1) ** -0.6  # of coordinates: the root of S's diagonal
    for k, rows in enumerate(map(slice, stops - sizes, stops)):
        rng = np.random.default_rng([seed, 2, k])
        v, (w, b) = np.zeros(dimension), shared
        if not iid:
            u, center = rng.normal(0, [alpha, beta])
            v = rng.normal(center, 1, dimension)
            w, b = _classifier(rng, u, dimension, num_classes)
        x[rows] = v + deviations * rng.standard_normal((sizes[k], dimension))
        y[rows] = np.argmax(x[rows] @ w + b, axis=1)
    return user_dataset(
        x,
        y,
        sizes,
        training,
        classes=tuple(map(str, range(num_classes))),
        domains=("synthetic",),
        citation=CITATION,
    )


def _draw_sizes(rng, count):
    """The numbers of examples of `count` users."""
    return LEAST + np.floor(rng.lognormal(4, 2, count))


def _classifier(rng, u, dimension, num_classes):
    """Weights [dimension, num_classes] and biases [num_classes] around u."""
    return rng.normal(u, 1, (dimension, num_classes)), rng.normal(u, 1, num_classes)
