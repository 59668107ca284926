"""Which process of a run keeps which clients, where their state or examples are on the host.

The clients are divided into as many segments of consecutive numbers as there are processes. A block
of rounds (or a piece of an evaluation) has room for equally many clients of each segment, and each
process reads those of its own segment. Its devices divide them in equal numbers.
"""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedjax_lab.errors import BadInput


class Owners(NamedTuple):
    """How the processes divide the clients."""

    bounds: tuple[int, ...]  # segment p has clients bounds[p] .. bounds[p + 1] - 1
    process: int = 0  # this one's number
    devices: int = 1  # of each process that divide what is kept by client

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
        """The clients of the largest segment."""
        return max(map(len, self.segments))

    def even(self, count: int) -> int:
        """The number raised to a multiple of the devices of a process."""
        return count + -count % self.devices

    def line_up(self, clients: np.ndarray, room: int) -> np.ndarray:
        """Ascending clients with `room` places for each segment: [segments x room], ascending.

        The last of a segment is repeated in the places that are left; where there is none, the
        first client of the segment is.
        """
        places = np.searchsorted(clients, self.bounds)
        lots = []
        for segment, begin, end in zip(self.segments, places[:-1], places[1:], strict=True):
            lot = clients[begin:end] if end > begin else np.array([segment.start])
            lots.append(np.pad(lot, (0, room - len(lot)), mode="edge"))
        return np.concatenate(lots).astype(np.int32)

    def own(self, lined_up: np.ndarray) -> np.ndarray:
        """The places of this process among those that `line_up` gives."""
        return np.split(lined_up, len(self.bounds) - 1)[self.process]

    def pieces(self, length: int) -> list[np.ndarray]:
        """All clients in pieces with `length` places, or a few more, for each segment.

        A client may be in several places of a piece, and in several pieces.
        """
        length = self.even(min(length, self.largest))
        count = -(-self.largest // length)
        lots = [np.array_split(np.array(segment), count) for segment in self.segments]
        return [self.line_up(np.concatenate(lot), length) for lot in zip(*lots, strict=True)]

    def of_new(self, number: int) -> "Owners":
        """How the same processes divide so many new clients. BadInput as from `divide`."""
        return self._replace(bounds=_bounds(number, len(self.bounds) - 1, "new clients"))


def divide(num_clients: int, by_client: NamedSharding | None) -> Owners:
    """The owners of a run whose devices divide what is kept by client so; None: there is one.

    BadInput where there are fewer clients than processes.
    """
    if by_client is None:
        return Owners((0, num_clients))
    number = len({device.process_index for device in by_client.mesh.devices.flat})
    if jax.process_count() == 1:  # devices of others are described only
        number = 1
    bounds = _bounds(num_clients, number, "clients whose state is on the host")
    return Owners(bounds, jax.process_index(), by_client.mesh.devices.size // number)


def _bounds(num_clients, processes, who):
    if num_clients < processes:
        raise BadInput(
            f"{num_clients} {who} cannot be divided among {processes} processes; use"
            " config.engine.state=replicated"
        )
    return tuple(num_clients * p // processes for p in range(processes + 1))
