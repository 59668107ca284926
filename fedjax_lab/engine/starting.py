"""The states with which a stage starts, and the facts from which they are made."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedjax_lab import sampling, streams
from fedjax_lab.engine import parallel, processes
from fedjax_lab.engine.host.assignment import divide
from fedjax_lab.engine.host.host_state import from_bits, to_bits
from fedjax_lab.engine.host.hosted import Hosted
from fedjax_lab.engine.input import Simulation
from fedjax_lab.engine.lanes import axes_of_settings, each_seed, one_seed, stacked
from fedjax_lab.engine.placement import Jit, Placement
from fedjax_lab.engine.programs import make_program, shapes_of
from fedjax_lab.engine.views import Viewed
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import contract, simulate
from fedjax_lab.simulation.asynchronous import first_history, num_places
from fedjax_lab.simulation.simulate import Progress
from fedjax_lab.types import State


def prepared(
    simulation: Simulation,
    number: int,
    place: Placement,
    images: Viewed,
    last: Callable[[], Sequence[State | None]],
) -> list[dict]:
    """The facts that `prepare` of the stage with this number computes, one tree per lane.

    images: the lanes and the plan of the run. last: () -> the state of each seed before the stage.
    """
    stage, (lanes, plan, _) = simulation.stages[number], images
    if stage.prepare is None:
        return [{} for _ in lanes]

    def prepare_seed(seed, population, state):
        key, _ = streams.stage(streams.make_keys(jax.random.key(seed)).init, number)
        population, state = processes.on_host((population, state))
        made = stage.prepare(key, simulate.without_padding(plan, population), state)
        return {name: np.asarray(fact) for name, fact in made.items()}

    populations = each_seed([of_lane.scoring.population for of_lane in lanes], place.seeds)
    facts = list(map(prepare_seed, simulation.seed_numbers, populations, last()))
    facts = processes.call_in_first(lambda: facts)  # the last bit may differ between hosts
    if place.seeds and len({shapes_of(of_seed) for of_seed in facts}) > 1:
        raise BadInput(
            f"the facts of stage {stage.name} differ in size between seeds; use"
            " config.engine.seeds=sequential"
        )
    return stacked(facts, place.seeds)


class Start(NamedTuple):
    """The states with which a stage starts."""

    likes: list[State]  # their shapes, one per lane
    compute: Callable[[], list[State]]
    hosted: Sequence[Hosted] = ()  # the lanes whose private state is on the host, if it is


def begin(
    simulation: Simulation,
    number: int,
    jit: Jit,
    images: Viewed,
    last: Sequence[State | None],
    facts: Sequence[dict],
    folder: Path,
) -> Start:
    """The states with which the stage with this number starts, one per lane.

    Args:
      simulation: the run. A state from which a seed starts replaces that of the method.
      number: that of the stage.
      jit: for the devices of the run.
      images: the lanes and the plan of the run.
      last: the states of the lanes before the stage.
      facts: those of the stage, one tree per lane.
      folder: where a run with private state on disk creates its file.
    """
    given = [seed.start for seed in simulation.seeds if number == 0 and seed.start is not None]
    if simulation.host is not None:
        return _begin_on_host(simulation, number, jit, images, given, folder)
    start = _first_states(simulation, number, jit, images.lanes, last, facts)
    if given:
        states = _from_given(given, jit, start.likes)
        return start._replace(compute=lambda: states)
    return start


def _first_states(simulation, number, jit, lanes, last, facts):
    """The states that the stage's `start`, or else the method's `init`, makes, one per lane.

    MemoryError if those of `init` do not fit.
    """
    place = jit.place

    def first(settings, keys, traits, last, facts):
        stage, _ = simulation.varied(number, settings)
        if stage.start is None:
            return place.padded(simulate.init(stage.method, keys, place.num_clients, traits))
        key = streams.stage(keys.init, number)[1] if number else keys.init
        last = place.without_padding(last)
        return place.padded(stage.start(key, place.num_clients, last, facts))

    each = zip(lanes, last, facts, strict=True)
    args = [
        (of_lane.settings, of_lane.training.keys, of_lane.training.population.traits, *rest)
        for of_lane, *rest in each
    ]
    axes = axes_of_settings(lanes[0].settings), 0, 0, 0, 0
    first = jax.jit(first, inline=True)  # traced once, for the shapes and the states
    shapes = jax.eval_shape(jit.wrap(first, axes, None), *args[0])
    out = place.state_shardings(shapes)
    shaped, run = jit.wrap(first, axes, out), jit.runner(first, axes, out)
    if simulation.stages[number].start is None and not place.abstract:
        size = place.num_bytes(shapes)
        parallel.check_memory(size, "the model and the clients' states need")
    likes = [place.described(jax.eval_shape(shaped, *of_lane), out) for of_lane in args]
    return Start(likes, _computation(run, args, place))


def _computation(run, args, place):
    """The function that calls the jitted function for each lane.

    It is traced here and not in the thread that computes: contexts of JAX, such as
    `jax.threefry_partitionable`, are those of a thread.
    """
    if place.abstract or parallel.jit_is_disabled():
        return lambda: [run(*of_lane) for of_lane in args]
    lowered: dict = {}
    for of_lane in args:
        if (shapes := shapes_of(of_lane)) not in lowered:
            lowered[shapes] = run.lower(*of_lane)

    def compute():
        compiled = {shapes: each.compile() for shapes, each in lowered.items()}
        return [compiled[shapes_of(of_lane)](*of_lane) for of_lane in args]

    return compute


def _from_given(given, jit, states):
    """The given states [seed] on the devices, one per lane, in the shapes of these states."""
    place, first = jit.place, given[0]
    likes = [one_seed(state, place.seeds) for state in states] * max(place.seeds, 1)
    for like, state in zip(likes, given, strict=True):
        _check_given(state, jax.eval_shape(place.without_padding, like))
    bits = jax.device_get(to_bits(given))  # they may lie on other devices

    def restore(bits):
        return place.padded(from_bits(bits, first))

    run = jit.runner(restore, (0,), place.state_shardings(states[0]))
    return [run(state) for state in stacked(bits, place.seeds)]


def _begin_on_host(simulation, number, jit, images, given, folder):
    """Does what `begin` does if the clients' private state is on the host. given: states [seed]."""
    owners = divide(jit.place.num_clients, jit.place.client_sharding)
    program = partial(make_program, simulation, number, images.plan)
    hosted = [
        Hosted(program, of_lane, seed, simulation.host, owners, folder, jit)
        for of_lane, seed in zip(images.lanes, simulation.seeds, strict=True)
    ]
    if not jit.place.abstract:
        for each in hosted:
            each.fill()
    servers = [jit.runner(each.first_server, ())(each.keys) for each in hosted]
    for i, state in enumerate(given):
        _check_given(state, hosted[i].whole_state(State(servers[i], ())))
        hosted[i].keep(state.private)
        servers[i] = jit.place.put(state.server)
    states = [State(server, ()) for server in servers]
    return Start(states, lambda: states, hosted)


def _check_given(state, like):
    """Raises BadInput unless the state from which a run starts has these shapes."""
    contract.check_alike("the state that the run starts from must be", state, like)


def no_progress(simulation: Simulation, place: Placement) -> list[Progress]:
    """The sums before the first round after an evaluation, one per lane."""
    methods = [stage.method for stage in simulation.stages]
    places = any(method.extra.empty_places for method in methods)
    custom_sample = any(sampling.is_own(method.sample) for method in methods)
    timed = "pace" in simulation.seeds[0].training.traits
    scheduled = simulation.seeds[0].timeline is not None
    occurring = {
        "arrived": timed or simulation.plan.failures.dropout > 0,
        "drawn": scheduled or places,
        "misdrawn": custom_sample,
        "seconds": timed,
    }
    counts = [name for name, occurs in occurring.items() if occurs]

    def one():  # a separate copy per lane, since their buffers are donated
        none = simulate.no_progress(counts)
        if place.seeds:
            none = jax.tree.map(lambda a: np.stack([a] * place.seeds), none)
        return place.put(none)

    return [one() for _ in range(1 if place.seeds else len(simulation.seeds))]


def first_sums(
    simulation: Simulation, jit: Jit, states: Callable[[], Sequence[State]]
) -> list[Progress]:
    """The sums before the first round, one per lane.

    The history of an asynchronous run has the first states of the server, which `states` returns.
    """
    sums = no_progress(simulation, jit.place)
    schedules = [seed.timeline.schedule for seed in simulation.seeds if seed.timeline]
    if not schedules:
        return sums
    method, places = simulation.stages[0].method, num_places(schedules)

    def first(server):
        return first_history(method, server, places)

    run = jit.runner(first, (0,))
    pairs = zip(states(), sums, strict=True)
    return [of_lane._replace(history=run(state.server)) for state, of_lane in pairs]
