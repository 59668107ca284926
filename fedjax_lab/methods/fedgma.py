"""FedGMA (Tenison et al., TMLR 2023, arXiv:2201.11986): masks the update where signs disagree.

  send    w_t
  local   w_i <- SGD on F_i from w_t;  Delta_i = w_i - w_t
  server  A = |sum_i p_i sign(Delta_i)|;  m = 1 where A >= tau, else A
          w_{t+1} = w_t + server_lr m sum_i n_i/n Delta_i

With three clients and equal p, A is 1/3 or 1 (if no entry is zero), so that tau = 0.5 and tau = 0.7
give the same method, and tau = 0.3 masks nothing. `mode=average_plus_masked_step` is the version of
the workshop paper: it takes the mean and adds server_lr times the parts of the Delta_i whose signs
agree. Running statistics are averaged by size.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Share, checked, choice, log_uniform
from fedjax_lab.types import Array, Exchange, Method, Task, Weights

RANGES = {"tau": choice(0.3, 0.5, 0.7), "server_lr": log_uniform(1e-2, 1.0)}


@checked("method")
def fedgma(
    task: Task,
    *,
    tau: Share = 0.5,
    server_lr: float = 1.0,
    mode: Literal["masked_average", "average_plus_masked_step"] = "masked_average",
    weights: Literal["uniform", "size"] = "uniform",
) -> Method:
    """tau: threshold of the agreement A, above which entries are not masked.

    weights: the weights p of the signs: uniform, or size (n_i/n).
    server_lr: the server's learning rate; in average_plus_masked_step only for the masked step.
    mode: masked_average, or average_plus_masked_step (the workshop paper's version).
    """
    method = fedavg(task)
    (plain,) = method.round

    step = masked_average if mode == "masked_average" else average_plus_masked_step

    def aggregate(w_t, w, cohort):
        M = jnp.sum(cohort.arrived)
        by_size = cohort.n / jnp.sum(cohort.n)
        count = jnp.where(cohort.arrived, 1.0, 0.0) if weights == "uniform" else M * by_size
        least = jnp.asarray(tau * np.arange(len(cohort.id) + 1) - 1e-6)[M]  # for exact ties
        ballot = Ballot(count, M, least)
        one = partial(step, ballot=ballot, server_lr=server_lr, by_size=by_size)
        return Weights(jax.tree.map(one, w_t.params, w.params), tree.mix(by_size, w.stats))

    return method._replace(round=(Exchange(plain.send, plain.local, aggregate),))


class Ballot(NamedTuple):
    """The weights of the votes. With uniform p the sums are integers, so that ties are exact."""

    counts: Array  # [M] M p
    M: Array  # [] the number of models
    least: Array  # [] tau M, with a tolerance for rounding


def votes(delta: Array, ballot: Ballot) -> tuple[Array, Array, Array]:
    """Returns (A >= tau, A, the sign of the majority) for a leaf delta [M, ...]."""
    total = tree.mix(ballot.counts, jnp.sign(delta))
    return jnp.abs(total) >= ballot.least, jnp.abs(total) / ballot.M, jnp.sign(total)


def masked_average(
    a: Array, b: Array, *, ballot: Ballot, server_lr: float, by_size: Array
) -> Array:
    """Returns a leaf of w_{t+1}; a: the leaf of w_t; b [M, ...]: the leaves of the w_i."""
    agree, A, _ = votes(b - a, ballot)
    step = tree.mix(by_size, b - a)
    return a + server_lr * jnp.where(agree, 1.0, A) * step


def average_plus_masked_step(
    a: Array, b: Array, *, ballot: Ballot, server_lr: float, by_size: Array
) -> Array:
    """Returns the same for the workshop paper's version, which takes all means by p."""
    delta, p = b - a, ballot.counts / ballot.M
    agree, _, sign = votes(delta, ballot)
    kept = jnp.where(agree & (jnp.sign(delta) == sign), delta, 0.0)
    return tree.mix(p, b) + server_lr * tree.mix(p, kept)
