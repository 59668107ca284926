"""Labels of 0 and 1, one for each logit: what `binary` and `multilabel` share."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab.types import Array


def losses(logits: Array, y: Array) -> Array:
    """The cross-entropies of the K labels of each example, summed [B]; logits, y: [B, K]."""
    return jnp.sum(optax.sigmoid_binary_cross_entropy(logits, y), -1)


def correct(logits: Array, y: Array) -> Array:
    """The number of labels of each example that are predicted [B]."""
    return jnp.sum((logits > 0) == (y > 0), -1)


def outcomes(logits: Array, y: Array, mask: Array) -> dict[str, Array]:
    """Indicators [B, K] of the labels that are predicted, that are 1, and both."""
    predicted, actual = logits > 0, y > 0
    return {"predicted": predicted, "actual": actual, "both": predicted & actual}


def f1(sums: dict[str, np.ndarray], total: np.ndarray) -> np.ndarray:
    """The F1 scores [C, K] of these sums, in percent; 0 where nothing is predicted or actual."""
    return 200 * sums["both"] / np.maximum(sums["predicted"] + sums["actual"], 1)


def micro_f1(sums: dict[str, np.ndarray], total: np.ndarray) -> np.ndarray:
    """The F1 score of all labels together, in percent."""
    return f1({name: values.sum(-1) for name, values in sums.items()}, total)


def macro_f1(sums: dict[str, np.ndarray], total: np.ndarray) -> np.ndarray:
    """The mean of the F1 scores of the K labels, in percent."""
    return f1(sums, total).mean(-1)


def probabilities(logits: Array) -> Array:
    """The probability of each label."""
    return jax.nn.sigmoid(logits)
