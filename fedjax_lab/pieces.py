"""The evaluation with the clients on the devices a piece at a time.

What it counts is counted for one client or one example, so that the pieces give what everybody at
once gives.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_lab import evaluate, parts
from fedjax_lab.blocks import Tools
from fedjax_lab.evaluate import Scores
from fedjax_lab.host_state import HostState, from_bits
from fedjax_lab.local import work_sets
from fedjax_lab.owners import Owners
from fedjax_lab.simulate import Lane
from fedjax_lab.types import NEW_ROWS, Federation, Method, PyTree, State


class Kind(NamedTuple):
    """Some sets of rows, and who is scored on them."""

    sets: tuple[str, ...]  # of each client's own rows, those that it needs
    owners: Owners  # of these clients
    clients: list[np.ndarray]  # in pieces of one length, as `Owners.line_up` gives them
    shared: list[dict[str, np.ndarray]]  # rows that all of them see, in pieces of one length
    by_client: bool = True  # what is counted; a newcomer's counts are by batch
    new: bool = False  # they are new clients, who keep nothing

    @property
    def num_rows(self) -> int:
        """How many rows that all see a piece has."""
        return sum(len(rows) for rows in self.shared[0].values())

    @property
    def room(self) -> int:
        """How many places a piece has for the clients of a segment."""
        return len(self.owners.own(self.clients[0]))


def kinds(method: Method, whole: Federation, owners: Owners, clients: int, rows: int) -> list[Kind]:
    """Clients and new clients on their own rows; the unseen domain; the average one on the global.

    whole: a federation in NumPy. clients: of a segment, and rows, of a piece.
    """
    tuned = work_sets(method) if method.tune else ()
    own = tuple(name for name in ("validation", "test") if getattr(whole, name) is not None)
    everybody = owners.pieces(clients)
    each = tuple(dict.fromkeys(tuned + own))
    out = [Kind(each, owners, everybody, [{}])] if own else []
    for name, of_clients in (("unseen", everybody), ("global_test", [_average(method, owners)])):
        if (shared := getattr(whole, name)) is not None:
            cut = [{name: some} for some in _cut(shared, rows)]
            by_client = name == "unseen" or method.newcomer is None
            out.append(Kind(tuned, owners, of_clients, cut, by_client))
    if whole.new_test is not None and evaluate.scores_new(method):
        sets = NEW_ROWS if evaluate.uses_data_of_new(method) else ("new_test",)
        of_new = owners.of_new(len(whole.new_test))
        out.append(Kind(sets, of_new, of_new.pieces(clients), [{}], new=True))
    return out


def _average(method, owners):
    """Those who are scored on the global set; a newcomer needs nothing of any client."""
    some = np.arange(1)
    if method.newcomer is None:
        some = evaluate.evenly_spaced(owners.bounds[-1])
    most = np.diff(np.searchsorted(some, owners.bounds)).max()
    return owners.line_up(some, owners.even(int(most)))


class Scorer:
    """Scores a lane as `evaluate.score` does, but reads private state from `store`.

    Args:
      lane: with the population and the keys on the devices; its federation is not used.
      store: what everybody keeps.
      like: the shapes of everybody's state.
      kinds: what is scored, each with what makes the federation of a piece.
      owners: of the clients.
      tools: of the engine.
    """

    def __init__(
        self,
        lane: Lane,
        store: HostState,
        like: State,
        kinds: list[tuple[Kind, parts.Part]],
        owners: Owners,
        tools: Tools,
    ):
        nothing: Any = None  # a piece has examples of its own
        self._lane, self._store, self._like = lane._replace(federation=nothing), store, like
        self._kinds, self._owners, self._tools = kinds, owners, tools
        self.compiled: list[Callable[..., Any]]  # `evaluate.score` for the shapes of each kind

    def first_pieces(self) -> list[tuple[Lane, PyTree]]:
        """Lane and private state of a piece of each kind, with the shapes of any."""
        return [
            self._read(kind, part, kind.clients[0], kind.shared[0]) for kind, part in self._kinds
        ]

    def score(self, server: PyTree, played: int) -> Scores:
        """The scores after so many rounds."""
        scores = [
            self._score(*kind, compiled, server, np.int32(played))
            for kind, compiled in zip(self._kinds, self.compiled, strict=True)
        ]
        return Scores(*(_the_one(values) for values in zip(*scores, strict=True)))

    def _score(self, kind, part, compiled, server, t):
        pieces, together = list(product(kind.clients, kind.shared)), len(kind.shared)
        counts = [
            jax.device_get(compiled(lane, State(server, private), t))
            for lane, private in self._each(kind, part, pieces)
        ]
        sums = [
            jax.tree.map(lambda *a: sum(a), *counts[i : i + together])
            for i in range(0, len(counts), together)
        ]
        return _joined(kind.clients, sums) if kind.by_client else sums[0]

    def _each(self, kind, part, pieces) -> Iterator[tuple[Lane, PyTree]]:
        """Lane and private state of each piece, read while the one before is scored."""
        with ThreadPoolExecutor(1) as worker:
            reading = worker.submit(self._read, kind, part, *pieces[0])
            for following in [*pieces[1:], None]:
                piece = reading.result()
                if following is not None:
                    reading = worker.submit(self._read, kind, part, *following)
                yield piece

    def _read(self, kind, part, clients, shared):
        ids, put = kind.owners.own(clients), self._tools.put
        federation = self._tools.put_part(part(ids, **shared))
        lane = self._lane._replace(federation=federation, held=put(clients))
        # What a new client gets depends on nobody's private state: that of any client will do.
        holders = self._owners.own(self._owners.pieces(1)[0]) if kind.new else ids
        private = self._tools.put_segment(self._store.read(holders))
        return lane, from_bits(private, self._like.private)


def _joined(clients, counts):
    """The counts of pieces in one; a client that is in several places counts once."""
    _, first = np.unique(np.concatenate(clients), return_index=True)
    return jax.tree.map(lambda *a: np.concatenate(a)[first], *counts)


def _cut(rows, length):
    """Rows [S] in pieces of one length, the last one padded with -1."""
    length = min(length, len(rows))
    padded = np.pad(rows, (0, -len(rows) % length), constant_values=-1)
    return list(padded.reshape(-1, length))


def _the_one(values):
    """The one of these that is not None, if any is."""
    return next((value for value in values if value is not None), None)
