"""HetLoRA (Cho et al., EMNLP 2024, arXiv:2401.06432): ranks of clients as masks, and pruning.

  send    A_t, B_t
  local   (A_i, B_i) <- SGD on F_i + lam ||A_{:, tail}||_F ||B_{tail, :}||_F
                        from the first r_i columns of A_t and rows of B_t
          r_i <- floor(gamma r_i) if the product of these norms has decreased      (L15)
  server  A_{t+1} = sum_i q_i A_i,  B_{t+1} = sum_i q_i B_i                        (L14)
          q_i = ||A_i B_i||_F / sum_j ||A_j B_j||_F

The entries of A_i and B_i beyond r_i are 0, so that the last columns, which few clients train, are
averaged with zeros. The tail is the entries from floor(gamma r_i) up to r_i; the term is summed
over the adapted kernels. A client keeps r_i, which is at least 1, and predicts with its first r_i
columns. q_i is that of each kernel. Other weights that are trained, such as a head, are averaged by
size. Messages are counted with the first r_i columns, before pruning, and an upload also has r_i. s
is the same for all ranks.
"""

from functools import partial
from typing import Literal

import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.methods import _factors as factors
from fedjax_lab.methods._factors import Pair
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import BelowOne, checked, log_uniform, uniform
from fedjax_lab.types import Array, Exchange, Method, State, Task, Weights

RANGES = {"lam": log_uniform(1e-5, 1e-1), "gamma": uniform(0.5, 0.99)}
LEAST = 1e-12  # of a squared norm in the loss, whose root has no gradient at 0


@checked("method")
def hetlora(
    task: Task,
    *,
    ranks: tuple = (),
    weights: Literal["norm", "size"] = "norm",
    lam: float = 0.0,
    gamma: BelowOne = 0.99,
) -> Method:
    """ranks: the first ranks r_i of the clients, repeated in the order of their ids; (): all have
    the largest rank, config.adapter.rank.

    weights: the weights q of the factors' mean: norm, or size (n_i/n).
    lam: the weight of the term that prunes ranks; 0: ranks do not change.
    gamma: the share of the rank that remains after pruning, below 1.
    """
    factors.adapters_of(task)
    first, risk = factors.client_ranks(task, ranks), losses.risk(task)

    def init(key, num_clients):
        return State(task.init(key), first(jnp.arange(num_clients)))

    def local(w_t, client, work):
        rank = client.private
        cut, fewer = partial(factors.truncated, rank=rank), pruned(rank, gamma)

        def loss(w, batch, key):
            value, out = risk(w, batch, key)
            return value + lam * tail(w, fewer), out

        start = cut(w_t)
        w = factors.train(loss, start, work, cut)
        decreased = (lam > 0) & (tail(w, fewer) < tail(start, fewer))
        return (w, rank), jnp.where(decreased, fewer, rank)  # L15

    def aggregate(w_t, uploads, cohort):
        w, mean = uploads[0], tree.mix(cohort.weight, uploads[0])
        if weights == "size":
            return mean
        new = {path: by_norm(pair, cohort.weight) for path, pair in factors.pairs(w).items()}
        return factors.with_pairs(mean, new)

    method = fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, aggregate, updates, alike=False),),
        predict=lambda w, client, x: task.apply(factors.truncated(w, client.private), x).logits,
        newcomer=lambda state: (state.server, largest(state.server)),
    )
    return factors.counted(method.having(model=factors.truncated), task, ranks)


def largest(w: Weights) -> Array:
    """The rank of the arrays of w."""
    return jnp.int32(max(pair.A.shape[-1] for pair in factors.pairs(w).values()))


def pruned(rank: Array, gamma: float) -> Array:
    """The rank after pruning."""
    return jnp.maximum(jnp.floor(gamma * rank), 1).astype(rank.dtype)


def tail(w: Weights, start: Array) -> Array:
    """||A_{:, tail}||_F ||B_{tail, :}||_F, where the tail begins at `start`; the sum of kernels."""

    def kernel_norm(pair):
        inside = jnp.arange(pair.A.shape[-1]) >= start
        a, b = jnp.where(inside, pair.A, 0), jnp.where(inside[:, None], pair.B, 0)
        squared = (jnp.sum(factor**2, (-2, -1)) for factor in (a, b))
        a, b = (jnp.sqrt(jnp.maximum(each, LEAST)) for each in squared)
        return jnp.sum(a * b)

    return sum(map(kernel_norm, factors.pairs(w).values()), jnp.float32(0))


def by_norm(pair: Pair, size: Array) -> Pair:
    """The mean of the clients' factors [M, ...] by ||A_i B_i||_F, or by size if all are 0."""
    gram_a, gram_b = pair.A.mT @ pair.A, pair.B @ pair.B.mT  # [M, ..., r, r]
    norm = jnp.sqrt(jnp.maximum(jnp.sum(gram_a * gram_b, (-2, -1)), 0))  # [M, ...]
    total = jnp.sum(norm, 0)
    size = size.reshape(-1, *(1,) * (norm.ndim - 1)).astype(norm.dtype)
    q = jnp.where(total > 0, norm / jnp.where(total > 0, total, 1), size)[..., None, None]
    return Pair(jnp.sum(q * pair.A, 0), jnp.sum(q * pair.B, 0))  # L14


def updates(w_t, id, upload):
    """Marks the factors as updates of the columns that were sent, and the rank as none."""
    w, rank = upload
    return wire.model_references(factors.truncated(w_t, rank), w), wire.KEPT
