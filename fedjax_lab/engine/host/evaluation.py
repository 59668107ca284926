"""Evaluation in pieces, if not all clients fit on the devices at the same time.

Scores are counted for each client or each example, so the pieces give the same numbers as an
evaluation of all clients at once.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_lab.engine.host import kind_records, subsets
from fedjax_lab.engine.host.assignment import Owners
from fedjax_lab.engine.host.host_state import HostState, from_bits
from fedjax_lab.engine.placement import Placement
from fedjax_lab.simulation import evaluate
from fedjax_lab.simulation.client_work import work_sets
from fedjax_lab.simulation.evaluate import Scores
from fedjax_lab.simulation.simulate import Lane
from fedjax_lab.types import NEW_ROWS, Federation, Method, PyTree, State


class Kind(NamedTuple):
    """Sets of rows that are scored together, and the clients that are scored on them."""

    sets: tuple[str, ...]  # the names of the clients' own sets of rows that are needed
    owners: Owners  # of these clients
    clients: list[np.ndarray]  # in pieces of one length, from `Owners.line_up`
    shared: list[dict[str, np.ndarray]]  # rows that all clients use, in pieces of one length
    by_client: bool = True  # whether counts are by client; a newcomer's counts are by batch
    new: bool = False  # whether these are new clients, which have no private state

    @property
    def num_rows(self) -> int:
        """The number of shared rows in a piece."""
        return sum(len(rows) for rows in self.shared[0].values())

    @property
    def room(self) -> int:
        """The number of places of a piece for the clients of a segment."""
        return len(self.owners.share_of_process(self.clients[0]))


def kinds(method: Method, whole: Federation, owners: Owners, clients: int, rows: int) -> list[Kind]:
    """The kinds of an evaluation.

    Clients and new clients are scored on their own rows, all clients on the unseen domain, and the
    global model (or, without one, some clients) on the global test set.

    whole: a federation in NumPy.
    clients: the number of clients of a segment in a piece.
    rows: the number of shared rows in a piece.
    """
    tuned = work_sets(method) if method.tune else ()
    untuned = tuple(name for name in ("validation", "test") if getattr(whole, name) is not None)
    all_pieces = owners.pieces(clients)
    each = tuple(dict.fromkeys(tuned + untuned))
    out = [Kind(each, owners, all_pieces, [{}])] if untuned else []
    for name, of_clients in (("unseen", all_pieces), ("global_test", [_average(method, owners)])):
        if (shared := getattr(whole, name)) is not None:
            cut = [{name: some} for some in _cut(shared, rows)]
            by_client = name == "unseen" or method.newcomer is None
            out.append(Kind(tuned, owners, of_clients, cut, by_client))
    if whole.new_test is not None and evaluate.scores_new(method):
        sets = NEW_ROWS if evaluate.uses_data_of_new(method) else ("new_test",)
        of_new = owners.new_owners(len(whole.new_test))
        out.append(Kind(sets, of_new, of_new.pieces(clients), [{}], new=True))
    return out


def _average(method, owners):
    """The clients that are scored on the global test set; one place if a newcomer is scored."""
    some = np.arange(1)
    if method.newcomer is None:
        some = evaluate.evenly_spaced(owners.bounds[-1])
    most = np.diff(np.searchsorted(some, owners.bounds)).max()
    return owners.line_up(some, owners.even(int(most)))


class Scorer:
    """Scores a lane like `evaluate.score`, but reads private state from `store`.

    Args:
      lane: has the population and the keys on the devices; its federation is not used.
      store: the private state of all clients.
      like: the shapes of the state of all clients.
      kinds: the kinds of the evaluation, each with the function that makes a piece's federation.
      owners: of the clients.
      place: puts arrays on the devices.
    """

    def __init__(
        self,
        lane: Lane,
        store: HostState,
        like: State,
        kinds: list[tuple[Kind, subsets.Part]],
        owners: Owners,
        place: Placement,
    ):
        nothing: Any = None  # a piece has examples of its own
        self._lane, self._store, self._like = lane._replace(federation=nothing), store, like
        self._kinds, self._owners, self._place = kinds, owners, place
        self.compiled: list[Callable[..., Any]]  # `evaluate.score` for the shapes of each kind

    def first_pieces(self) -> list[tuple[Lane, PyTree]]:
        """Lane and private state of the first piece of each kind; all pieces have these shapes."""
        return [
            self._read(kind, part, kind.clients[0], kind.shared[0]) for kind, part in self._kinds
        ]

    def score(self, server: PyTree, played: int) -> Scores:
        """The scores after `played` rounds."""
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
        """Lane and private state of each piece, read while the previous piece is scored."""
        with ThreadPoolExecutor(1) as worker:
            reading = worker.submit(self._read, kind, part, *pieces[0])
            for following in [*pieces[1:], None]:
                piece = reading.result()
                if following is not None:
                    reading = worker.submit(self._read, kind, part, *following)
                yield piece

    def _read(self, kind, part, clients, shared):
        ids, place = kind.owners.share_of_process(clients), self._place
        held = place.put(clients, compared=False)
        lane = self._lane._replace(federation=place.put_part(part(ids, **shared)), held=held)
        # The message to a new client does not depend on private state, so any client's will do.
        holders = self._owners.share_of_process(self._owners.pieces(1)[0]) if kind.new else ids
        private = kind_records.in_segment(self._store.read(holders), self._owners)
        private = place.put_segment(private)
        return lane, from_bits(private, self._like.private)


def _joined(clients, counts):
    """The joined counts of all pieces; a client that is in several places counts once."""
    _, first = np.unique(np.concatenate(clients), return_index=True)
    return jax.tree.map(lambda *a: np.concatenate(a)[first], *counts)


def _cut(rows, length):
    """Rows [S] in pieces of one length, the last piece padded with -1."""
    length = min(length, len(rows))
    padded = np.pad(rows, (0, -len(rows) % length), constant_values=-1)
    return list(padded.reshape(-1, length))


def _the_one(values):
    """The first value that is not None, or None."""
    return next((value for value in values if value is not None), None)
