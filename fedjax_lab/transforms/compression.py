"""Compression of uploads: what a client sends of its update, in how many bytes.

u is a client's update as one vector of d numbers over all leaves that are updates (`wire`). Bytes
are those of the numbers as they are named below: an entropy code would take fewer. `error_feedback`
adds to an update what the last ones left out (`compressed`): clients then keep as many numbers as
they have updates, and what the server gets is biased, but nothing is lost for good.
"""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp

from fedjax_lab import tree
from fedjax_lab.errors import BadInput, check_choice, check_positive, check_positive_share
from fedjax_lab.transforms import codecs, compressed, uplink
from fedjax_lab.types import Array, Method, Task

BITS = (2, 4, 8)
NORMS = {"max": lambda u: jnp.max(jnp.abs(u)), "l2": lambda u: jnp.sqrt(jnp.sum(u * u))}


def top_k(
    method: Method, task: Task, *, share: float = 0.01, error_feedback: bool = True
) -> Method:
    """The k numbers with the largest |u_j| (Stich et al., NeurIPS 2018, arXiv:1809.07599).

    In bytes: k numbers, and k places in 2 bytes where d <= 65536, else in 4.

    share: k / d.
    error_feedback: whether a client adds what it left out to its next update.
    """
    check_positive_share("compression.share", share)
    return compressed.uploads(method, task, codecs.top_k(share), error_feedback)


def random_k(
    method: Method, task: Task, *, share: float = 0.01, error_feedback: bool = False
) -> Method:
    """k numbers at random places, times d / k (Konecny et al., 2016, arXiv:1610.05492).

    Their mean over the places is u. With error feedback they are not multiplied: the residual would
    grow. In bytes: k numbers, and 4 for the seed of the places.

    share: k / d.
    error_feedback: whether a client adds what it left out to its next update.
    """
    check_positive_share("compression.share", share)

    def enlarged(update, client, key):
        d = sum(u.size for u in update)
        return tree.scale(d / codecs.count(share, d), update)

    method = method if error_feedback else uplink.changed(method, enlarged)
    return compressed.uploads(method, task, codecs.random_k(share), error_feedback)


def qsgd(
    method: Method,
    task: Task,
    *,
    bits: int = 8,
    norm: Literal["max", "l2"] = "max",
    error_feedback: bool = False,
) -> Method:
    """Each number as one of 2 s + 1 levels, rounded at random so that their mean is u.

    QSGD (Alistarh et al., NeurIPS 2017, arXiv:1610.02132), leaf by leaf: the levels are multiples
    of the leaf's norm / s, s = 2^(bits-1) - 1. In bytes: ceil(n bits / 8) for a leaf of n numbers,
    and 4 for its norm.

    bits: of each number, with its sign: 2, 4 or 8.
    norm: the largest |u_j| of a leaf, or its Euclidean norm, as in that paper's theorem.
    error_feedback: whether a client adds what it left out to its next update; of little use where
        the error may exceed the update, as with few bits.
    """
    codec = codecs.quantized(bits, norm_of("compression", bits, norm))
    return compressed.uploads(method, task, codec, error_feedback)


def sign(method: Method, task: Task, *, error_feedback: bool = True) -> Method:
    """The signs of a leaf's numbers times their mean |u_j| (Karimireddy et al., ICML 2019).

    In bytes: ceil(n / 8) for a leaf of n numbers, and 4 for the mean.

    error_feedback: whether a client adds what it left out to its next update.
    """
    return compressed.uploads(method, task, codecs.sign(), error_feedback)


def low_rank(
    method: Method,
    task: Task,
    *,
    rank: int = 2,
    iterations: int = 1,
    error_feedback: bool = True,
) -> Method:
    """Each leaf as a matrix of this rank (PowerSGD, Vogels et al., NeurIPS 2019,
    arXiv:1905.13727).

    P = orthogonalized u Q, Q = u^T P; the client sends P and Q. PowerSGD averages P over the
    clients before it is orthogonalized, and starts from the last Q; here each client has factors
    of its own, and Q starts at random. In bytes: r (n + m) numbers for a leaf [n, m], where m is
    its last axis and n all others; leaves for which that is not less are sent as they are.

    rank: r.
    iterations: how often P and Q are found in turn; more come closer to the best factors.
    error_feedback: whether a client adds what it left out to its next update.
    """
    check_positive("compression.rank", rank)
    check_positive("compression.iterations", iterations)
    return compressed.uploads(method, task, codecs.low_rank(rank, iterations), error_feedback)


def norm_of(section: str, bits: int, norm: str) -> Callable[[Array], Array]:
    """The norm of that name. BadInput where there is none, or no such number of bits.

    section: of the config that has these settings.
    """
    if bits not in BITS:
        raise BadInput(f"config.{section}.bits={bits} must be one of {', '.join(map(str, BITS))}")
    check_choice(f"{section}.norm", norm, NORMS)
    return NORMS[norm]
