"""The likelihood ratio attack (LiRA; Carlini et al., S&P 2022, arXiv:2112.03570).

  phi      log(p / (1 - p)) of the probability p of an example's label: nearly normal over models
  online   log N(phi; mu_in, s_in^2) - log N(phi; mu_out, s_out^2)                 (Alg. 1)
  offline  log P(Z <= phi), Z from N(mu_out, s_out^2)                              (eq. 4)

mu and s are of the reference models that were trained with the example (in) and without it (out).
With fewer than 64 references all examples have the same s, the root of their mean variance, because
a variance of few numbers is worse than a common one (Section VI of the paper).
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, Objective

ENOUGH = 64  # references, from which each example has a variance of its own
LEAST = 2  # references with and without an example: fewer have no variance


def confidence(objective: Objective, logits: Array, labels: Array) -> Array:
    """phi of each example [N]; minus its loss if examples do not have one class each.

    logits: [N, *outputs]. labels: [N, *label].
    """
    if not objective.has_classes or objective.outputs[-1] < 2:
        return -objective.losses(logits, labels)
    logits = jax.nn.log_softmax(logits.astype(jnp.float32))
    is_label = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    rest = jax.nn.logsumexp(jnp.where(is_label, -jnp.inf, logits), -1)
    return jnp.sum(jnp.where(is_label, logits, 0), -1) - rest


def online(phi: np.ndarray, references: np.ndarray, included: np.ndarray) -> np.ndarray:
    """The log of the likelihood ratio of each example, [E].

    phi: [E] under the attacked model. references: [S, E] under the reference models.
    included: [S, E] bool, whether each reference model was trained with the example.

    Raises BadInput if an example is in, or not in, fewer than two reference models.
    """
    (mu_in, s_in), (mu_out, s_out) = (_fit(references, which) for which in (included, ~included))
    return stats.norm.logpdf(phi, mu_in, s_in) - stats.norm.logpdf(phi, mu_out, s_out)


def offline(phi: np.ndarray, references: np.ndarray, included: np.ndarray) -> np.ndarray:
    """The log of the probability that a model without the example has a lower phi, [E].

    Only the reference models without the example are used. The arguments are those of `online`.
    """
    return stats.norm.logcdf(phi, *_fit(references, ~included))


def check_number(which: np.ndarray) -> None:
    """Raises BadInput if fewer than two of the references [S, E] of an example count."""
    least = which.sum(0).min()
    if least < LEAST:
        raise BadInput(
            f"{len(which)} reference federations are too few: an example is in, or not in, only"
            f" {least} of them, and {LEAST} are needed; use more references"
        )


def _fit(references, which):
    """The mean and the standard deviation [E] of phi over the references of each example."""
    check_number(which)
    count = which.sum(0)
    mean = np.sum(references * which, 0) / count
    variance = np.sum((references - mean) ** 2 * which, 0) / (count - 1)
    if len(references) < ENOUGH:
        variance = np.full_like(variance, np.mean(variance))
    return mean, np.sqrt(np.maximum(variance, np.finfo(np.float32).tiny))
