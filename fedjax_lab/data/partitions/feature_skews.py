"""Feature skews: how the examples of one client differ from those of another.

A feature skew is a pure function `name(key, x, client, num_clients, *, settings)` that returns the
changed example. x [...] is one example as float32, with the pixels of 8-bit images in 0..1;
`client` is the number of the client that holds it, from 0 to num_clients - 1 (new clients
included). The settings are keys of `config.partition`.

An example always has the same key at its client, so that a client trains, validates and is tested
on examples that stay the same in every pass. Feature skews are applied before augmentation and
normalization. The global test set and unseen domains belong to no client and are not changed, as in
NIID-Bench.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import NotNegative, checked
from fedjax_lab.types import Array


def none(key: Array, x: Array, client: Array, num_clients: int) -> Array:
    """Returns the example unchanged."""
    return x


@checked("partition")
def noise(
    key: Array, x: Array, client: Array, num_clients: int, *, sigma: NotNegative[float] = 0.1
) -> Array:
    """Adds Gaussian noise whose standard deviation grows linearly over the clients (NIID-Bench).

    The standard deviation of client i is sigma * i / (n - 1), as in the code of Li et al. 2022
    (Federated Learning on Non-IID Data Silos), although the paper calls this value the variance.
    Their code draws new noise whenever it reads an example; here each example keeps its noise, as
    in the paper. Values are not clipped to 0..1.

    sigma: the standard deviation of the last client's noise.
    """
    level = sigma * client / max(1, num_clients - 1)
    return x + level * jax.random.normal(key, x.shape, x.dtype)


@checked("partition")
def rotation(
    key: Array, x: Array, client: Array, num_clients: int, *, rotations: Literal[2, 4] = 4
) -> Array:
    """Rotates images by multiples of 360 / rotations degrees (Ghosh et al. 2020, IFCA).

    Client i rotates its images counterclockwise (i mod rotations) times.

    rotations: 2 (by 0 and 180 degrees) or 4; quarter turns need square images.
    """
    if x.ndim != 3:
        raise BadInput("config.partition.feature_skew=rotation needs images")
    if rotations == 4 and x.shape[0] != x.shape[1]:
        raise BadInput(
            f"config.partition.rotations=4 needs square images, not {x.shape[0]} x {x.shape[1]}; "
            "use config.partition.rotations=2"
        )
    turns = [partial(jnp.rot90, k=i * 4 // rotations) for i in range(rotations)]
    return jax.lax.switch(client % rotations, turns, x)
