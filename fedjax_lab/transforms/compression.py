"""Compression of uploads: the codes that clients send for their updates, and their sizes in bytes.

u is a client's update as one vector of d numbers over all leaves that are updates (`wire`). Sizes
in bytes are those of the numbers listed below; an entropy code would need fewer. With
`error_feedback` a client adds the errors of earlier codes to its update (`compressed`). Each client
then keeps as many numbers as its update has. The server gets biased updates, but no part of an
update is lost permanently.
"""

from typing import Literal

import jax.numpy as jnp
import optax

from fedjax_lab.ranges import Positive, PositiveShare, checked
from fedjax_lab.transforms import codecs, compressed, uplink
from fedjax_lab.types import Method, Task

Bits = Literal[2, 4, 8]
Norm = Literal["max", "l2"]
NORMS = {"max": lambda u: jnp.max(jnp.abs(u)), "l2": lambda u: jnp.sqrt(jnp.sum(u * u))}


@checked("compression")
def top_k(
    method: Method, task: Task, *, share: PositiveShare = 0.01, error_feedback: bool = True
) -> Method:
    """Sends the k numbers with the largest |u_j| (Stich et al., NeurIPS 2018, arXiv:1809.07599).

    In bytes: k numbers, and k places of 2 bytes each if d <= 65536, otherwise 4.

    share: k / d, the share of the numbers of an update that are sent.
    error_feedback: whether a client adds the numbers that were not sent to its next update.
    """
    return compressed.uploads(method, task, codecs.top_k(share), error_feedback)


@checked("compression")
def random_k(
    method: Method, task: Task, *, share: PositiveShare = 0.01, error_feedback: bool = False
) -> Method:
    """Sends k numbers at random places, times d / k (Konecny et al., 2016, arXiv:1610.05492).

    The expectation over the places is u. With error feedback the numbers are not multiplied by
    d / k, because the residual would grow. In bytes: k numbers, and 4 for the seed of the places.

    share: k / d, the share of the numbers of an update that are sent.
    error_feedback: whether a client adds the numbers that were not sent to its next update.
    """

    def enlarged(update, client, key):
        d = sum(u.size for u in update)
        return optax.tree.scale(d / codecs.count(share, d), update)

    method = method if error_feedback else uplink.changed(method, enlarged)
    return compressed.uploads(method, task, codecs.random_k(share), error_feedback)


@checked("compression")
def qsgd(
    method: Method,
    task: Task,
    *,
    bits: Bits = 8,
    norm: Norm = "max",
    error_feedback: bool = False,
) -> Method:
    """Rounds each number to one of 2 s + 1 levels, at random, with u as the expectation.

    QSGD (Alistarh et al., NeurIPS 2017, arXiv:1610.02132), applied to each leaf: the levels are
    multiples of the leaf's norm / s, s = 2^(bits-1) - 1. In bytes: ceil(n bits / 8) for a leaf of n
    numbers, and 4 for its norm.

    bits: the bits of each number, including its sign: 2, 4 or 8.
    norm: max, the largest |u_j| of a leaf, or l2, its Euclidean norm, as in the paper's theorem.
    error_feedback: whether a client adds the rounding error to its next update; this helps little
        where the error may exceed the update, as with few bits.
    """
    codec = codecs.quantized(bits, NORMS[norm])
    return compressed.uploads(method, task, codec, error_feedback)


def sign(method: Method, task: Task, *, error_feedback: bool = True) -> Method:
    """Sends the signs of a leaf's numbers and their mean |u_j| (Karimireddy et al., ICML 2019).

    In bytes: ceil(n / 8) for a leaf of n numbers, and 4 for the mean.

    error_feedback: whether a client adds the error of the code to its next update.
    """
    return compressed.uploads(method, task, codecs.sign(), error_feedback)


@checked("compression")
def low_rank(
    method: Method,
    task: Task,
    *,
    rank: Positive[int] = 2,
    iterations: Positive[int] = 1,
    error_feedback: bool = True,
) -> Method:
    """Sends a low-rank approximation of each leaf.

    PowerSGD (Vogels et al., NeurIPS 2019, arXiv:1905.13727): P = orthogonalized u Q, Q = u^T P; the
    client sends P and Q. PowerSGD averages P over the clients before it is orthogonalized, and
    starts from the last Q; here each client has its own factors, and Q starts at random. In bytes:
    r (n + m) numbers for a leaf [n, m], where m is its last axis and n all other axes together;
    leaves for which this is not fewer are sent unchanged.

    rank: r, the rank of the approximation.
    iterations: how often P and Q are computed in turn; more iterations give a better approximation.
    error_feedback: whether a client adds the error of the approximation to its next update.
    """
    return compressed.uploads(method, task, codecs.low_rank(rank, iterations), error_feedback)
