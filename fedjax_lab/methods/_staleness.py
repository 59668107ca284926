"""The weight of an update that a client has computed from an earlier version of the model.

tau is the number of updates of the server since then. A weight is 1 for tau = 0, and at most 1.
"""

from typing import Literal

import jax.numpy as jnp

from fedjax_lab.types import Array

Law = Literal["polynomial", "constant", "hinge"]


def polynomial(tau: Array, a: float) -> Array:
    """s(tau) = (1 + tau)^-a (FedAsync, arXiv:1903.03934, section 5; FedBuff, arXiv:2106.06639)."""
    return (1 + tau) ** -a


def hinge(tau: Array, a: float, b: float) -> Array:
    """s(tau) = 1 if tau <= b, else 1 / (a (tau - b) + 1) (FedAsync, section 5)."""
    return 1 / (a * jnp.maximum(tau - b, 0) + 1)


def weight(law: str, tau: Array, a: float, slope: float, b: float) -> Array:
    """s(tau) by the name of its law. a: of the polynomial. slope, b: a and b of the hinge."""
    laws = {
        "constant": jnp.ones_like,
        "polynomial": lambda tau: polynomial(tau, a),
        "hinge": lambda tau: hinge(tau, slope, b),
    }
    return laws[law](tau)
