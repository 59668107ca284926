"""FedEx-LoRA (Singhal et al., ACL 2025, arXiv:2410.09432): the residual of the mean goes to W.

  send    A_t, B_t, Delta_t, which is what has been added to the base W
  local   (A_i, B_i) <- SGD on F_i with W + Delta_t, from (A_t, B_t)
  server  A_{t+1} = sum_i p_i A_i,  B_{t+1} = sum_i p_i B_i,  p_i = n_i/n      (L9)
          R = sum_i p_i A_i B_i - A_{t+1} B_{t+1}                             (L10)
          Delta_{t+1} = Delta_t + s R

The mean is exact: R is what FedIT leaves out. Its rank is at most (M + 1) r, so that it could be
sent as factors to clients that take part in every round; `residual_rank` is for fewer factors, the
best approximation of R. Here a client may have missed rounds, so
that the download is counted with Delta_t, a float32 matrix for each adapted kernel; the base itself
is not part of it. Other weights that are trained, such as a head, are averaged. The base must not
be quantized.
"""

import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree
from fedjax_lab.methods import _factors as factors
from fedjax_lab.methods._factors import Pair
from fedjax_lab.methods.fedavg import send
from fedjax_lab.methods.flexlora import best
from fedjax_lab.ranges import checked
from fedjax_lab.types import Exchange, Method, Task


@checked("method")
def fedex_lora(task: Task, *, uniform: bool = False, residual_rank: int = 0) -> Method:
    """uniform: whether p_i = 1/M, as in the authors' code, instead of n_i/n.

    residual_rank: the rank to which R is cut by an SVD; 0: R is added as it is.
    """
    s = factors.adapters_of(task).scale

    def local(server, client, work):
        risk = losses.risk(factors.on_base(task, server.delta))
        return work.train(server.w, risk), client.private

    def aggregate(server, uploads, cohort):
        w = tree.mix(cohort.weight, uploads)  # L9
        R = residual(w, uploads, cohort, residual_rank)
        return factors.Server(w, tree.add(server.delta, R, s))

    method = factors.changing_the_base(task, Exchange(send, local, aggregate, alike=False))
    return method._replace(sample=sampling.equal if uniform else sampling.by_size)


def residual(w, uploads, cohort, rank):
    """R of each kernel, by its path; of this rank, if it is not 0."""
    means, of_clients = factors.pairs(w), factors.pairs(uploads)

    def kernel_change(path):
        mean, stack = means[path], factors.stacked(cohort.weight, of_clients[path])
        if not rank:
            return factors.product(stack) - factors.product(mean)  # L10
        a, b = jnp.concatenate([stack.A, mean.A], -1), jnp.concatenate([stack.B, -mean.B], -2)
        return factors.product(best(Pair(a, b), "b", rank))

    return {path: kernel_change(path) for path in means}
