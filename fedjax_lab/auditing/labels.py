"""Labels of a client's examples from what it sends of the model's head.

The gradient of the mean loss with respect to the bias of class c is the mean of p_c - [y = c], and
that of its row of weights is the mean of (p_c - [y = c]) h, for the features h and probabilities p.
"""

import numpy as np
from scipy.optimize import nnls

from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array


def head_update(names: list[str], sent: list[Array], head: str) -> Array:
    """What is sent of the head for each class [K]: of its bias or, without one, of its weights.

    Raises BadInput if no such array is sent.
    """
    for ending in ("bias", "kernel"):
        for name, array in zip(names, sent, strict=True):
            if f"/{name}".endswith(f"/{head}/{ending}"):
                return array.reshape(-1, array.shape[-1]).sum(0)
    raise BadInput(
        f"labels are inferred from the model's layer {head}, which the clients do not send; add"
        " `labels` to --attack.knows"
    )


def inferred(update: np.ndarray, each: np.ndarray, number: int) -> np.ndarray:
    """The labels [number] of a client's examples, in ascending order.

    Args:
      update: [K], what was sent of the head: see `head_update`.
      each: [K, K], the same of a client with other examples, which in row c are all of class c.
      number: the number of examples.
    """
    if number == 1:
        return np.array([single_label(update, np.sign(np.trace(each)))])
    return np.repeat(np.arange(len(each)), counts(update, each, number))


def single_label(update: np.ndarray, sign: float = 1.0) -> int:
    """The label of a single example (iDLG, Zhao et al., 2020, arXiv:2001.02610).

    Its class is the only one with a negative gradient, and so with a positive update.

    update: [K] of the bias, or of the weights if no feature is negative. sign: 1 if it is an update
    and -1 if it is a gradient.
    """
    return int(np.argmax(sign * update))


def counts(update: np.ndarray, each: np.ndarray, number: int) -> np.ndarray:
    """The numbers of examples [K] of each class.

    The update is nearly linear in the shares of the classes: those are taken whose combination of
    the updates of single classes comes nearest to it, and whose sum is about 1, since the sum of
    the updates of all classes is nearly 0. The method of Wainakh et al. (LLG, PoPETs
    2022, arXiv:2105.09369) also compares with examples of the attacker's own, which may be noise.

    update: [K] as observed. each: [K, K], row c for examples that are all of class c.
    """
    size = np.abs(np.diag(each)).mean()
    rows = np.concatenate([each.T, np.full((1, len(each)), size)]).astype(np.float64)
    shares, _ = nnls(rows, np.append(update, size).astype(np.float64))
    return rounded(shares, number)


def rounded(shares: np.ndarray, number: int) -> np.ndarray:
    """Whole numbers in these proportions whose sum is `number`, by the largest remainders."""
    total = shares.sum()
    exact = number * (shares / total if total > 0 else np.full(len(shares), 1 / len(shares)))
    counts = np.floor(exact).astype(int)
    rest = np.argsort(counts - exact, kind="stable")[: number - counts.sum()]
    counts[rest] += 1
    return counts
