"""Plays one seed of a run whose private state, and optionally whose examples, are on the host."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from fedjax_lab import streams
from fedjax_lab.engine import parallel
from fedjax_lab.engine.host import evaluation, kind_records, playing, subsets
from fedjax_lab.engine.host.assignment import Owners
from fedjax_lab.engine.host.host_state import HostState, from_bits, to_bits
from fedjax_lab.engine.input import BASE, Host, Seed
from fedjax_lab.engine.lanes import Lanes
from fedjax_lab.engine.placement import Jit
from fedjax_lab.engine.tracing import depends
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import by_kind, evaluate, outline, simulate
from fedjax_lab.simulation.client_work import work_sets
from fedjax_lab.simulation.metrics import Whole
from fedjax_lab.simulation.simulate import Lane, Program, Progress
from fedjax_lab.types import NEW_ROWS, POPULATION_ROWS, Method, State


class Hosted:
    """Plays and scores a seed like the engine's programs, after `use` has set compiled programs.

    The states that its methods take and return have only the server's part.

    program: settings -> the program of the seed. lanes: its input. seed: its federations; the rows
        in the lanes' federations are not used, and, if examples are streamed, nor are the examples.
    owners: the division of the clients among the processes.
    folder: where to create the file of the private state, if it is on disk.
    """

    def __init__(
        self,
        program: Callable[[dict[str, Any]], Program],
        lanes: Lanes,
        seed: Seed,
        host: Host,
        owners: Owners,
        folder: Path,
        jit: Jit,
    ):
        self._make_program, self._settings = program, (settings := lanes.settings)
        self._program = program({key: of for key, of in settings.items() if key != BASE})
        self._lanes, self._seed, self._stream, self._jit = lanes, seed, host.stream, jit
        self._owners, self.keys = owners, lanes.training.keys
        self._num_clients = len(seed.training.train)
        traits = seed.training.traits
        shapes = jax.eval_shape(partial(self._init, traits=traits), self.keys)
        self._like = shapes._replace(private=kind_records.numbered(shapes.private, traits))
        check(self._program.method, self._like)
        place = folder if host.on_disk else None
        self._store = HostState(self._like.private, self._num_clients, place, owners.segment)
        self._player, self._scorer = self._make_player(), self._make_scorer()
        block, evaluation = self._player.first_block(), self._scorer.first_pieces()
        self.shapes = _described(
            ((block.lane, block.private), evaluation)
        )  # of the programs' inputs

    def first_server(self, keys: Any) -> Any:
        """The server's part of the initial state."""
        return self._init(keys).server

    def fill(self) -> None:
        """Stores the initial private state of this process's clients, a piece of them at a time.

        MemoryError if `init` can only be computed for all clients at once, and that does not fit.
        """
        keys = streams.make_keys(jax.random.key(self._seed.number))  # on this process's device
        length = len(self._store.pieces()[0])

        def entries(keys, start):
            private = self._init(keys).private
            cut = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=length)
            return to_bits(jax.tree.map(cut, private))

        piece = self._jit.wrap(entries, (), None).lower(keys, np.int32(0)).compile()
        if (sizes := piece.memory_analysis()) is not None:
            parallel.check_memory(sizes.temp_size_in_bytes, "the clients' initial state needs")
        self._store.fill(lambda ids: piece(keys, np.int32(ids[0])))

    def keep(self, private: Any) -> None:
        """Stores the private state [C, ...] of all clients."""

        def entries(ids):
            return to_bits(by_kind.take(private, ids))

        self._store.fill(entries)

    def lower(
        self, server: Any, sums: Progress
    ) -> tuple[Any, list[Any], tuple[Program, Lane, State]]:
        """The lowered programs and a round, as in `programs.Programs`; `score` is a list."""
        (lane, private), evaluation = self.shapes
        state, number = State(server, private), np.int32(0)
        place, everywhere = self._jit.place, self._jit.place.strategy.sharding
        out = State(everywhere, place.segment_sharding), everywhere
        settings = self._settings
        self._program = outline.checked(self._program, lane, state)
        play = self._jit.wrap(self._bind_settings(simulate.play), (), out, donate_argnums=(2, 3))
        score = self._jit.wrap(self._bind_settings(evaluate.score), (), everywhere)
        scores = [
            score.lower(settings, of_piece, State(server, private), number)
            for of_piece, private in evaluation
        ]
        play = play.lower(settings, lane, state, sums, number, number)
        return play, scores, (self._program, lane, state)

    def _bind_settings(self, function):
        """A function of a program as one of its settings, which may be large arrays."""
        sent = self._program.message_bytes

        def bound(settings, *args):
            return function(self._make_program(settings)._replace(message_bytes=sent), *args)

        return bound

    def use(self, play: Any, score: list[Any]) -> None:
        """Sets the compiled versions of the programs that `lower` returned."""
        self._player.compiled = partial(play, self._settings)
        self._scorer.compiled = [partial(each, self._settings) for each in score]

    def play(self, settings, lane, state: State, sums: Progress, start, count):
        """Plays a block of rounds, as `programs.Programs.play`."""
        return self._player.play(state, sums, int(start), int(count))

    def score(self, settings, lane, state: State, t) -> evaluate.Scores:
        """Evaluates the models, as `programs.Programs.score`."""
        self._player.flush()
        return self._scorer.score(state.server, int(t))

    def kept(self) -> HostState:
        """The store with the private state of this process's clients after the rounds played."""
        self._player.flush()
        return self._store

    def whole_state(self, state: State) -> State:
        """The state with the private part of this process's clients, which is not copied."""
        return state._replace(private=from_bits(self.kept().everything(), self._like.private))

    def forget(self) -> None:
        """Discards the state on the devices; the next round starts from the stored state."""
        self._player.forget()

    def _init(self, keys, traits=MappingProxyType({})):
        return simulate.init(self._program.method, keys, self._num_clients, traits)

    def _make_player(self):
        whole, lane = self._seed.training, self._lanes.training
        sets = work_sets(self._program.method)
        fitting = self._clients_that_fit(whole, sets)
        cohort = outline.cohort_size(self._program, lane, self._like)
        ahead = playing.draws_ahead(self._program, lane, self._like.server)
        size = playing.block_size(self._program, self._owners, cohort, fitting, ahead)
        part = self._part(lane, whole, sets, size.clients)
        return playing.Player(
            self._program, lane, self._store, self._like, part, size, self._owners, self._jit
        )

    def _make_scorer(self):
        whole, lane = self._seed.federation, self._lanes.scoring
        batch, each = self._program.plan.eval_batch, (POPULATION_ROWS, NEW_ROWS)
        clients, rows = min(self._clients_that_fit(whole, sets) for sets in each), len(whole.y)
        if self._stream:  # a multiple of the batch size
            rows = max(1, playing.EXAMPLE_BYTES // subsets.example_bytes(whole) // batch) * batch
        kinds = [
            (kind, self._part(lane, whole, kind.sets, kind.room, kind.num_rows))
            for kind in evaluation.kinds(self._program.method, whole, self._owners, clients, rows)
        ]
        _check_metrics(self._program.plan, [kind for kind, _ in kinds])
        return evaluation.Scorer(
            lane, self._store, self._like, kinds, self._owners, self._jit.place
        )

    def _clients_that_fit(self, whole, sets):
        size = subsets.example_bytes(whole) if self._stream else 0
        counts = [rows.count for name in sets if (rows := getattr(whole, name)) is not None]
        return playing.clients_that_fit(self._store.bytes_of_one, size, counts)

    def _part(self, lane, whole, sets, clients, shared=0):
        if self._stream:
            return subsets.with_examples(whole, sets, clients, shared, self._owners)
        return subsets.row_subsets(lane.federation, whole, sets, self._owners)


def _described(a):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), a)


def check(method: Method, like: State) -> None:
    """Raises BadInput if a method needs the private state of all clients at once. like: shapes."""
    for name, function in (("newcomer", method.newcomer), ("record", method.record)):
        if function is not None and depends(partial(_apply_parts, function), *like[::-1]):
            raise BadInput(
                f"the method's `{name}` reads the private state of all clients at once, but this"
                " run keeps it on the host; use config.engine.state=replicated and"
                " config.engine.data=replicated"
            )


def _check_metrics(plan, kinds):
    """Raises BadInput if a metric needs all examples at once, but they are scored in pieces."""
    in_pieces = any(len(kind.shared) > 1 for kind in kinds)
    names = [metric.name for metric in plan.metrics if isinstance(metric, Whole)]
    if in_pieces and names:
        raise BadInput(
            f"metric {names[0]!r} needs a model's outputs for all test examples at once, but this"
            " run streams the examples and scores them in pieces; use config.engine.data=replicated"
            " or sharded, or remove the metric from config.run.metrics"
        )


def _apply_parts(function, private, server):
    return function(State(server, private))
