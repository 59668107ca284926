"""FlexLoRA (Bai et al., NeurIPS 2024, arXiv:2402.11505): the mean update, cut to each rank by SVD.

  send    the first r_i columns of A_t and rows of B_t
  local   (A_i, B_i) of rank r_i <- SGD on F_i from these
  server  D = sum_i n_i/n A_i B_i                        (L11)
          D = U diag(sigma) V^T                          (L12)
          A_{t+1} = U,  B_{t+1} = diag(sigma) V^T        (L13), the first r columns and rows

The product of the first r_i columns and rows is the best approximation of D of rank r_i. s is the
same for all ranks, and is left out on both sides of (L13). D is never formed: with A = [A_1, ...,
A_M] and B = [n_1/n B_1; ...; n_M/n B_M], QR of A and of B^T leaves the SVD of a matrix of size M r.
The entry of each column of U with the largest magnitude is positive. The server cuts D to rank r.
Other weights that are trained, such as a head, are averaged.
"""

from functools import partial
from typing import Literal

import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.methods import _factors as factors
from fedjax_lab.methods._factors import Pair
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked
from fedjax_lab.types import Array, Exchange, Method, Task


@checked("method")
def flexlora(task: Task, *, ranks: tuple = (), split: Literal["b", "root"] = "b") -> Method:
    """ranks: the ranks r_i of the clients, repeated in the order of their ids; (): all have rank r.

    r is config.adapter.rank, the largest possible rank.

    split: the factor that sigma goes to: b, or root, the square root of sigma to both.
    """
    factors.adapters_of(task)
    rank, risk = factors.client_ranks(task, ranks), losses.risk(task)

    def send(w_t, id):
        return factors.truncated(w_t, rank(id))

    def local(w_t, client, work):
        cut = partial(factors.truncated, rank=rank(client.id))
        return factors.train(risk, w_t, work, cut), client.private

    def aggregate(w_t, uploads, cohort):
        def best_pair(pair):
            stack = factors.stacked(cohort.weight, pair)  # L11
            return best(stack, split, rank=pair.A.shape[-1])

        new = {path: best_pair(pair) for path, pair in factors.pairs(uploads).items()}
        return factors.with_pairs(tree.mix(cohort.weight, uploads), new)

    method = fedavg(task)._replace(round=(Exchange(send, local, aggregate, alike=False),))
    return factors.counted(method, task, ranks)


def singular(pair: Pair) -> tuple[Array, Array, Array]:
    """U [..., d, k], sigma [..., k] and V^T [..., k, f] of the product A B, which is not formed."""
    qa, ra = jnp.linalg.qr(pair.A)
    qb, rb = jnp.linalg.qr(pair.B.mT)
    u, sigma, vt = jnp.linalg.svd(factors.product(Pair(ra, rb.mT)), full_matrices=False)  # L12
    u, vt = factors.product(Pair(qa, u)), factors.product(Pair(vt, qb.mT))
    largest = jnp.take_along_axis(u, jnp.argmax(jnp.abs(u), -2, keepdims=True), -2)
    sign = jnp.where(largest < 0, -1, 1).astype(u.dtype)  # [..., 1, k]
    return u * sign, sigma, vt * sign.mT


def best(pair: Pair, split: str, rank: int) -> Pair:
    """Factors of this rank whose product is the best approximation of A B."""
    u, sigma, vt = singular(pair)
    of_a, of_b = (jnp.ones_like(sigma), sigma) if split == "b" else (jnp.sqrt(sigma),) * 2
    a, b = u * of_a[..., None, :], of_b[..., None] * vt  # L13
    lacking = max(0, rank - sigma.shape[-1])  # where r exceeds the size of W
    lead = [(0, 0)] * (a.ndim - 2)
    a = jnp.pad(a[..., :rank], [*lead, (0, 0), (0, lacking)])
    return Pair(a, jnp.pad(b[..., :rank, :], [*lead, (0, lacking), (0, 0)]))
