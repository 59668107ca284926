"""The neighbors with which clients share masks in secure aggregation.

M clients are placed on a ring in a random order. The neighbors of a client are the clients at
certain distances from it, so that all clients have the same number of neighbors (a k-regular Harary
graph). Client i sends its words x_i, modulo 2^b, with masks that cancel in the sum:

    y_i = x_i + B_i + sum_{neighbors j ahead} P_ij - sum_{neighbors j behind} P_ji

P_ij is drawn from a secret that i and j agree on, and B_i from a secret of i alone. Each client has
shared its secrets among its neighbors. The server learns B_i of the clients that have arrived and
P_ij of the others; it needs more than a threshold share of a client's neighbors for each of them.
Where too few of these neighbors have arrived, it learns no sum at all. The simulation draws no
masks, because the sum is the same without them.

Bonawitz et al., CCS 2017, doi:10.1145/3133956.3133982, where all clients are neighbors, and Bell et
al., CCS 2020, doi:10.1145/3372297.3417885, where each client has few neighbors.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array


class Ring(NamedTuple):
    """The neighbors of the clients in a round."""

    arrived: Array  # [M] whether the words of the client at each place have arrived
    distances: Array  # [D] distances at which a client has a neighbor ahead and one behind


def make_ring(key: Array, arrived: Array, neighbors: int) -> Ring:
    """Places M clients on a ring. Raises BadInput if the number of neighbors is impossible.

    key: the random stream of the order on the ring.
    arrived: [M] bool, whether the words of each client have arrived.
    neighbors: k, the number of neighbors of each client.
    """
    m = len(arrived)
    place = jax.random.permutation(jax.random.split(key)[0], m)
    of_place = jnp.zeros(m, bool).at[place].set(arrived)
    return Ring(of_place, jnp.asarray(distances(m, neighbors)))


def distances(clients: int, neighbors: int) -> list[int]:
    """Returns the distances of neighbors: 1, 2, ..., and half the ring for an odd `neighbors`.

    Raises BadInput if there is no regular graph with these numbers of clients and neighbors.
    """
    if neighbors >= clients:
        raise BadInput(
            f"config.aggregator.neighbors={neighbors} must be below the number of clients in a"
            f" round, {clients}"
        )
    if neighbors % 2 and clients % 2:
        raise BadInput(
            f"config.aggregator.neighbors={neighbors} must be even, because the number of clients"
            f" in a round, {clients}, is odd"
        )
    return [*range(1, neighbors // 2 + 1), *[clients // 2] * (neighbors % 2)]


def can_unmask(ring: Ring, threshold: float) -> Array:
    """Returns whether the server can unmask the sum, [] bool.

    It needs the secrets of all clients that have arrived, and of all lost clients with a neighbor
    that has arrived. For each of them enough neighbors must have arrived.

    threshold: more than this share of a client's neighbors must have arrived.
    """
    m = len(ring.arrived)
    here = jnp.arange(m)[:, None]
    ahead, behind = ring.arrived[(here + ring.distances) % m], ring.arrived[here - ring.distances]
    helpers = jnp.sum(ahead, 1) + jnp.sum(behind & (2 * ring.distances != m), 1)
    neighbors = jnp.sum(jnp.where(2 * ring.distances == m, 1, 2))
    needed = ring.arrived | (helpers > 0)
    return jnp.all(~needed | (helpers > threshold * neighbors))
