"""The states with which a stage starts, and the facts from which they are made."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from fedjax_lab import streams
from fedjax_lab.engine import parallel, processes
from fedjax_lab.engine.host.assignment import divide
from fedjax_lab.engine.host.host_state import from_bits, to_bits
from fedjax_lab.engine.host.hosted import Hosted
from fedjax_lab.engine.input import Simulation
from fedjax_lab.engine.lanes import Lanes, axes_of_settings, each_seed, stacked
from fedjax_lab.engine.placement import Jit, Placement
from fedjax_lab.engine.programs import make_program, shapes_of, varied
from fedjax_lab.engine.views import plan_of_images
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.asynchronous import first_history, num_places
from fedjax_lab.simulation.simulate import Progress
from fedjax_lab.types import Plan, State


def prepared(
    simulation: Simulation,
    number: int,
    place: Placement,
    lanes: Sequence[Lanes],
    last: Sequence[State | None],
) -> list[dict]:
    """The facts that `prepare` of the stage with this number computes, one tree per lane.

    last: the final state of each seed in the last stage.
    """
    stage, plan = simulation.stages[number], plan_of_images(simulation, place)

    def prepare_seed(seed, population, state):
        key, _ = streams.stage(streams.make_keys(jax.random.key(seed)).init, number)
        population, state = processes.on_host((population, state))
        made = stage.prepare(key, simulate.without_padding(plan, population), state)
        return {name: np.asarray(fact) for name, fact in made.items()}

    populations = each_seed([of_lane.scoring.population for of_lane in lanes], place.seeds)
    facts = list(map(prepare_seed, simulation.seed_numbers, populations, last))
    facts = processes.call_in_first(lambda: facts)  # the last bit may differ between hosts
    if place.seeds and len({shapes_of(of_seed) for of_seed in facts}) > 1:
        raise BadInput(
            f"the facts of stage {stage.name} differ in size between seeds; use"
            " config.engine.seeds=sequential"
        )
    return stacked(facts, place.seeds)


def first_states(
    simulation: Simulation,
    number: int,
    jit: Jit,
    lanes: Sequence[Lanes],
    last: Sequence[State | None],
    facts: Sequence[dict],
) -> tuple[list[State], Callable[[], list[State]]]:
    """The states that the stage's `start`, or else the method's `init`, makes, one per lane.

    last: the states of the lanes at the end of the last stage. Returns the shapes of the states,
    and a function that computes them. MemoryError if those of `init` do not fit.
    """
    place = jit.place

    def first(settings, keys, traits, last, facts):
        stage, _ = varied(simulation, number, settings)
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
    described = [place.described(jax.eval_shape(shaped, *of_lane), out) for of_lane in args]
    return described, lambda: [run(*of_lane) for of_lane in args]


def from_given(given: Sequence[State], jit: Jit, like: State) -> list[State]:
    """The given states [seed] on the devices, one per lane. like: a lane's state."""
    first, bits = given[0], jax.device_get(to_bits(given))  # they may lie on other devices

    def begin(bits):
        return jit.place.padded(from_bits(bits, first))

    run = jit.runner(begin, (0,), jit.place.state_shardings(like))
    return [run(state) for state in stacked(bits, jit.place.seeds)]


def with_history(
    simulation: Simulation, jit: Jit, states: Sequence[State], sums: Sequence[Progress]
) -> list[Progress]:
    """The first sums of an asynchronous run, whose history has the first states of the server."""
    schedules = [seed.timeline.schedule for seed in simulation.seeds if seed.timeline]
    method, places = simulation.stages[0].method, num_places(schedules)

    def first(server):
        return first_history(method, server, places)

    run = jit.runner(first, (0,))
    pairs = zip(states, sums, strict=True)
    return [of_lane._replace(history=run(state.server)) for state, of_lane in pairs]


def make_hosted(
    simulation: Simulation,
    number: int,
    jit: Jit,
    lanes: Sequence[Lanes],
    plan: Plan,
    folder: Path,
) -> list[Hosted]:
    """The seeds of a run that keeps its clients' state on the host, one per lane."""
    assert simulation.host is not None
    owners = divide(jit.place.num_clients, jit.place.client_sharding)
    program = partial(make_program, simulation, number, plan)
    return [
        Hosted(program, of_lane, seed, simulation.host, owners, folder, jit)
        for of_lane, seed in zip(lanes, simulation.seeds, strict=True)
    ]


def server_state(hosted: Hosted, jit: Jit) -> State:
    """The server's part of the initial state; the clients' part is put into the store."""
    if not jit.place.abstract:
        hosted.fill()
    return State(jit.runner(hosted.first_server, ())(hosted.keys), ())
