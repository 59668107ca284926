"""Assigns clients to processes, for runs that keep the clients' state or examples on the host.

The clients are divided into one segment of consecutive numbers for each process. A block of rounds
(or a piece of an evaluation) has the same number of places for the clients of each segment. Each
process reads the clients of its own segment and divides them evenly among its devices.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedjax_lab.errors import BadInput


class Owners(NamedTuple):
    """The assignment of clients to processes."""

    bounds: tuple[int, ...]  # segment p has clients bounds[p] .. bounds[p + 1] - 1
    process: int = 0  # the number of this process
    devices: int = 1  # number of devices of each process among which clients are divided

    @property
    def segments(self) -> list[range]:
        """The clients of each process."""
        pairs = zip(self.bounds[:-1], self.bounds[1:], strict=True)
        return [range(begin, end) for begin, end in pairs]

    @property
    def segment(self) -> range:
        """The clients of this process."""
        return self.segments[self.process]

    @property
    def largest(self) -> int:
        """The number of clients in the largest segment."""
        return max(map(len, self.segments))

    def even(self, count: int) -> int:
        """The count rounded up to a multiple of the devices of a process."""
        return count + -count % self.devices

    def line_up(self, clients: np.ndarray, room: int) -> np.ndarray:
        """The given clients in `room` places for each segment: [segments x room], ascending.

        clients: numbers of clients, ascending. Remaining places of a segment repeat its last given
        client, or the first client of the segment if none of its clients is given.
        """
        places = np.searchsorted(clients, self.bounds)
        lots = []
        for segment, begin, end in zip(self.segments, places[:-1], places[1:], strict=True):
            lot = clients[begin:end] if end > begin else np.array([segment.start])
            lots.append(np.pad(lot, (0, room - len(lot)), mode="edge"))
        return np.concatenate(lots).astype(np.int32)

    def share_of_process(self, lined_up: np.ndarray) -> np.ndarray:
        """The part of `line_up`'s result that belongs to this process."""
        return np.split(lined_up, len(self.bounds) - 1)[self.process]

    def pieces(self, length: int) -> list[np.ndarray]:
        """All clients, in pieces with about `length` places for each segment.

        The length is rounded up to a multiple of the devices. A client may be in several places of
        a piece, and in several pieces.
        """
        length = self.even(min(length, self.largest))
        count = -(-self.largest // length)
        lots = [np.array_split(np.array(segment), count) for segment in self.segments]
        return [self.line_up(np.concatenate(lot), length) for lot in zip(*lots, strict=True)]

    def new_owners(self, number: int) -> "Owners":
        """The assignment of `number` new clients to the same processes.

        Raises BadInput as in `divide`.
        """
        return self._replace(bounds=_bounds(number, len(self.bounds) - 1, "new clients"))


def divide(num_clients: int, by_client: NamedSharding | None) -> Owners:
    """The assignment of the clients of a run to its processes.

    by_client: how the devices divide arrays that have an entry for each client; None: there is one
    device, which has all of them. Raises BadInput if there are fewer clients than processes.
    """
    if by_client is None:
        return Owners((0, num_clients))
    number = len({device.process_index for device in by_client.mesh.devices.flat})
    if jax.process_count() == 1:  # devices of other processes are only described, for compilation
        number = 1
    bounds = _bounds(num_clients, number, "clients whose state is on the host")
    return Owners(bounds, jax.process_index(), by_client.mesh.devices.size // number)


def _bounds(num_clients, processes, who):
    if num_clients < processes:
        raise BadInput(
            f"{num_clients} {who} cannot be divided among {processes} processes; use at most"
            f" {num_clients} processes, or config.engine.state=replicated with"
            " config.engine.data=replicated"
        )
    return tuple(num_clients * p // processes for p in range(processes + 1))
