"""Writes the programs of a stage for one seed, lowers them for all seeds, and compiles them."""

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_lab.engine import parallel
from fedjax_lab.engine.input import Simulation
from fedjax_lab.engine.lanes import Lanes, axes_of_settings, lane_of_one_seed
from fedjax_lab.engine.placement import Jit
from fedjax_lab.simulation import evaluate, outline, simulate
from fedjax_lab.simulation.simulate import Lane, Program, Progress
from fedjax_lab.types import Plan, PyTree, State


class Programs(NamedTuple):
    """The programs of one stage, lowered or compiled; plain functions if jit is disabled."""

    play: Any  # (settings, lane, state, sums, start, count): a block of rounds
    score: Any  # (settings, lane, state, t): the evaluation; a list of several for a hosted lane
    of_round: tuple[Program, Lane, State]  # of one seed, as shapes
    clients: int  # in a round of one seed


def make_program(
    simulation: Simulation, number: int, plan: Plan, settings: dict[str, PyTree]
) -> Program:
    """The program of the stage with this number, for a seed with these settings."""
    stage, fields = simulation.varied(number, settings)
    if plan.view is not None:
        fields = {**fields, "view": stage.view}  # of this seed
    program = Program(stage.method, plan._replace(**fields), simulation.strategy)

    def in_round(program, t):
        changed = simulation.scheduled(number, settings, t)
        if changed is settings:
            return program
        stage, fields = simulation.varied(number, changed)
        return program._replace(method=stage.method, plan=program.plan._replace(**fields))

    return program._replace(scheduled=in_round)


def lower(
    jit: Jit,
    program: Callable[[dict[str, PyTree]], Program],
    lanes: Lanes,
    axes: Lane,
    state: State,
    sums: Progress,
) -> Programs:
    """Lowers the programs of a lane. program: settings -> the program of one seed."""
    number = np.int32(0)
    lane, of_one = lane_of_one_seed(lanes.training, axes, state, jit.place.seeds)

    def training(settings):
        return _training_program(program(settings), jit.place)

    checked = outline.checked(training({}), lane, of_one)

    def play(settings, *args):
        sent = checked.message_bytes
        return simulate.play(training(settings)._replace(message_bytes=sent), *args)

    def score(settings, *args):
        return evaluate.score(program(settings), *args)

    everywhere = jit.place.strategy.sharding
    out = jit.place.state_shardings(state), everywhere
    of_settings = axes_of_settings(lanes.settings)
    block = jit.wrap(play, (of_settings, axes, 0, 0, None, None), out, donate_argnums=(2, 3))
    scored = jit.wrap(score, (of_settings, axes, 0, None), everywhere)
    if not parallel.jit_is_disabled():
        block = block.lower(lanes.settings, lanes.training, state, sums, number, number)
        scored = scored.lower(lanes.settings, lanes.scoring, state, number)
    return make_programs(block, scored, (checked, lane, of_one))


def _training_program(program, place):
    """Returns the program with the number of the clients that train, if they are padded."""
    count = place.num_training if place.num_training % place.parts else 0
    return program._replace(plan=program.plan._replace(num_clients=count))


def make_programs(play: Any, score: Any, of_round: tuple[Program, Lane, State]) -> Programs:
    """The programs with the clients of a round."""
    return Programs(play, score, of_round, outline.cohort_size(*of_round))


def compiled(programs: Programs) -> Programs:
    """The compiled programs."""
    if parallel.jit_is_disabled():
        return programs
    lowered, structure = jax.tree.flatten((programs.play, programs.score))
    at_once = len(lowered) if jax.process_count() == 1 else 1  # processes keep the same order
    with ThreadPoolExecutor(at_once) as pool:  # XLA does much of a compilation in one thread
        made = list(pool.map(lambda each: each.compile(), lowered))
    play, score = jax.tree.unflatten(structure, made)
    return programs._replace(play=play, score=score)


def check_memory(programs: Programs) -> None:
    """MemoryError if a round of these compiled programs needs more memory than a CPU has free."""
    if parallel.jit_is_disabled():
        return
    if (sizes := programs.play.memory_analysis()) is not None:
        parallel.check_memory(sizes.temp_size_in_bytes, "a round needs")


def shapes_of(a: PyTree) -> Hashable:
    """The structure, shapes and types of arrays; lanes with equal ones share their programs."""
    leaves, tree = jax.tree.flatten(a)
    return tree, *((x.shape, str(x.dtype)) for x in leaves)
