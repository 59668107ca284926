"""The class of each token of a sequence, such as the next token of a language model.

loss      token: sum of the cross-entropies of the tokens that count / their number
          example: mean over examples of the mean of each one's tokens
measured  accuracy of the tokens in percent, perplexity exp(sum of the cross-entropies / number),
          bits_per_byte, sum of the cross-entropies / (ln 2 * bytes of the tokens), where the
          classes are tokens of text

With loss_mean=example the accuracy is a mean over examples, too. Perplexity and bits per byte are
those of all tokens with both losses.
"""

from functools import partial
from typing import Annotated

import jax.numpy as jnp
import numpy as np

from fedjax_lab.data.dataset import IGNORED
from fedjax_lab.ranges import NotNegative, OneOf, checked
from fedjax_lab.simulation.metrics import Summed
from fedjax_lab.tasks import Labels, _positions, check_labels
from fedjax_lab.types import Array, Objective

MEANS = ("token", "example")


@checked("task")
def tokens(
    labels: Labels,
    *,
    loss_mean: Annotated[str, OneOf(MEANS)] = "token",
    block: NotNegative[int] = 0,
) -> Objective:
    """Labels y [N, T] are classes, or -1 for tokens that do not count, such as padding.

    loss_mean: token: all tokens of a batch weigh the same; example: all examples do.
    block: of how many tokens of an example a training step holds the logits at a time, which it
      then computes twice; 0: of all. It saves memory where there are many classes.
    """
    check_labels("tokens", labels.y, "iu", (2,), "a sequence of whole numbers for each example")
    made = _positions.objective("tokens", labels)
    made = made._replace(metrics=(PERPLEXITY, *_bits_per_byte(labels.class_bytes)))
    if block:
        made = made._replace(losses_at=partial(_positions.losses_in_blocks, block))
    return _example_objective(made) if loss_mean == "example" else made


def _sums(logits: Array, y: Array, mask: Array) -> dict[str, Array]:
    return {"losses": _positions.losses(logits, y), "tokens": _positions.count(y)}


PERPLEXITY = Summed(
    "perplexity",
    _sums,
    lambda sums, total: np.exp(sums["losses"] / sums["tokens"]),
    lower_is_better=True,
)


def _bits_per_byte(class_bytes):
    """The metric in a tuple, or () without the bytes [K] of the classes."""
    if class_bytes is None:
        return ()

    def sums(logits, y, mask):
        sizes = jnp.asarray(class_bytes, jnp.float32)[jnp.maximum(y, 0)]
        counted = jnp.sum(jnp.where(y == IGNORED, 0, sizes), 1)
        return {"losses": _positions.losses(logits, y), "bytes": counted}

    def value(sums, total):
        with np.errstate(divide="ignore"):
            return sums["losses"] / (np.log(2) * sums["bytes"])

    return (Summed("bits_per_byte", sums, value, lower_is_better=True),)


def _by_example(values: Array, y: Array) -> Array:
    """Sums over the tokens of each example [B] as means over them."""
    return values / jnp.maximum(_positions.count(y), 1)


def _example_objective(made: Objective) -> Objective:
    """The objective in which each example with tokens that count has one label."""

    def mean(of_sums):
        return lambda *args: _by_example(of_sums(*args), args[-1])

    return made._replace(
        losses=mean(made.losses),
        correct=mean(made.correct),
        num_labels=lambda y: jnp.minimum(_positions.count(y), 1),
        losses_at=None if made.losses_at is None else mean(made.losses_at),
    )
