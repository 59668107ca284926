"""How the examples of one client differ from those of another: one example in, one out.

A feature skew is a pure function `name(key, x, client, num_clients, *, settings)`: x [...] is one
example as float32, of 8-bit images pixels in 0..1; `client` is the number of the client that holds
it, from 0 to num_clients - 1 (new clients among them). The settings are keys of `config.partition`.
An example and its client always have the same key, so that a client trains, validates and is scored
on examples that do not change from one pass to the next. They are changed before they are
augmented and normalized. The global test set and an unseen domain are nobody's and stay as they
are, as in NIID-Bench.
"""

from functools import partial

import jax
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array


def none(key: Array, x: Array, client: Array, num_clients: int) -> Array:
    """The example as it is."""
    return x


def noise(key: Array, x: Array, client: Array, num_clients: int, *, sigma: float = 0.1) -> Array:
    """Gaussian noise whose standard deviation rises from 0 to sigma over the clients (NIID-Bench).

    That of client i is sigma * i / (n - 1), as in the code of Li et al. 2022 (Federated Learning
    on Non-IID Data Silos), which sets the standard deviation where the paper speaks of the
    variance. Their code draws new noise whenever it reads an example; here an example keeps its
    noise, as the paper has it. Values are not cut off at 0 and 1.

    sigma: the standard deviation of the last client's noise.
    """
    if sigma < 0:
        raise BadInput(f"config.partition.sigma must not be negative, got {sigma}")
    level = sigma * client / max(1, num_clients - 1)
    return x + level * jax.random.normal(key, x.shape, x.dtype)


def rotation(key: Array, x: Array, client: Array, num_clients: int, *, rotations: int = 4) -> Array:
    """Images turned by multiples of 360 / rotations degrees (Ghosh et al. 2020, IFCA).

    Client i turns its images, counterclockwise, i mod rotations times.

    rotations: 2 (by 0 and 180 degrees) or 4; quarter turns need square images.
    """
    if rotations not in (2, 4):
        raise BadInput(f"config.partition.rotations must be 2 or 4, got {rotations}")
    if x.ndim != 3:
        raise BadInput("config.partition.feature_skew=rotation needs images")
    if rotations == 4 and x.shape[0] != x.shape[1]:
        raise BadInput(
            f"config.partition.rotations=4 needs square images, not {x.shape[0]} x {x.shape[1]}; "
            "use config.partition.rotations=2"
        )
    turns = [partial(jnp.rot90, k=i * 4 // rotations) for i in range(rotations)]
    return jax.lax.switch(client % rotations, turns, x)
