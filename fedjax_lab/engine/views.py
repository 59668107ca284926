"""What a stage's method gets instead of the examples: `Stage.frozen` and `view`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.engine.input import Simulation
from fedjax_lab.engine.lanes import Lanes, axes_of, axes_of_settings, make_lanes, one_seed
from fedjax_lab.engine.placement import Jit, Placement
from fedjax_lab.engine.programs import make_program
from fedjax_lab.simulation.client_work import fetch
from fedjax_lab.types import ROWS, Plan, State

_PLAIN = {"center": np.float32(0), "scale": np.float32(1)}  # leaves examples unchanged
_NOT_SCORED = dict.fromkeys(ROWS[1:])  # removes all rows but those to train on


class Viewed(NamedTuple):
    """The lanes and the plan of a stage."""

    lanes: list[Lanes]
    plan: Plan
    differing: tuple[str, ...] = ()  # fields of a federation that differ between seeds: `axes_of`


def unviewed(simulation: Simulation, place: Placement) -> Viewed:
    """The lanes and the plan of a run on its devices, for a stage without a view."""
    new = simulation.seeds[0].federation.new_train
    plan = simulation.plan._replace(
        num_clients=place.num_clients if place.padding else 0,
        num_new=len(new) if new is not None and len(new) % place.parts else 0,
    )
    return Viewed(make_lanes(simulation, place), plan)


def viewed(
    simulation: Simulation,
    number: int,
    jit: Jit,
    images: Viewed,
    states: Callable[[], Sequence[State]],
) -> Viewed:
    """The lanes and the plan of a stage, as its view of the examples requires.

    number: of the stage. images: without a view. states: returns those with which
    the stage starts.
    """
    stage, (lanes, plan, _) = simulation.stages[number], images
    plan = _reliable(plan) if stage.reliable else plan
    before, plan = plan.batch_size, stage.plan(plan)
    longest = lanes[0].training.federation.train.longest
    size = min(plan.batch_size, max(before, longest))
    equal = plan.equal_steps and size == before  # equal numbers of other batches may differ
    plan = plan._replace(batch_size=size, equal_steps=equal)
    changed = Viewed(lanes, plan)
    if stage.embeddings is not None:
        x = jit.place.put_pool(stage.embeddings().examples)
        fields = [{"x": x, **_PLAIN, **_NOT_SCORED}] * len(lanes)
        changed = Viewed(_changed(lanes, fields), plan._replace(augment=None, example_shape=()))
    select = stage.frozen
    if select is not None:
        freeze = jit.runner(lambda state: select(state.server), (0,))
        lanes = _changed(changed.lanes, [{"frozen": freeze(state)} for state in states()])
        changed = Viewed(lanes, changed.plan, ("frozen",))
    return changed if stage.view is None else _transformed(simulation, number, changed, jit)


def _reliable(plan):
    """The plan of a stage in which no upload is lost or late."""
    clock = plan.failures.clock and plan.failures.clock._replace(first=0, deadline=0.0)
    return plan._replace(failures=plan.failures._replace(dropout=0.0, clock=clock))


def frozen_bytes(simulation: Simulation, number: int, state: State, seeds: int) -> int:
    """The bytes that a stage sends once to each client of one seed.

    They are the frozen weights of the model in the first stage, and the frozen part of the state.

    number: of the stage. state: of a lane.
    """
    stage, size = simulation.stages[number], 0
    if number == 0 and simulation.base is not None and not simulation.seeds[0].is_pooled:
        size = tree.num_bytes(simulation.base.base)
    if stage.frozen is None:
        return size
    return size + tree.num_bytes(jax.eval_shape(stage.frozen, one_seed(state.server, seeds)))


def _transformed(simulation, number, before, jit):
    """Replaces the examples by their transforms: once for the pool, or else in every batch."""
    plan, lanes = before.plan, before.lanes
    transformed = plan._replace(view=simulation.stages[number].view)
    if plan.augment is not None or plan.feature_skew is not None:  # a skew depends on the client
        return before._replace(plan=transformed)

    def whole(settings, federation):
        program = make_program(simulation, number, transformed, settings)
        return _view_pool(program.plan, simulation.strategy, federation)

    axes = axes_of(lanes[0].scoring, before.differing).federation
    axes, out = (axes_of_settings(lanes[0].settings), axes), jit.place.viewed_pool_sharding
    flat = jit.runner(lambda *of_lane: _flat(whole(*of_lane)), axes, out)
    each = [(of_lane.settings, of_lane.scoring.federation) for of_lane in lanes]
    shapes = one_seed(jax.eval_shape(jit.wrap(whole, axes, out), *each[0]), jit.place.seeds)
    lanes = _changed(lanes, [{"x": flat(*of_lane), **_PLAIN} for of_lane in each])
    plan = plan._replace(example_shape=shapes.shape[1:])
    return Viewed(lanes, plan, ("frozen", "x"))


def _view_pool(plan, strategy, federation):
    """All examples of the pool after the plan's view, [R, ...]."""
    count, size = federation.x.shape[0], plan.eval_batch
    rows = jnp.arange(-(-count // size) * size) % count

    def block(shared, federation, rows, entry):
        return fetch(federation, rows, plan).x

    everyone = strategy.everyone(block, plan.cohort)
    seen = everyone((), federation, rows.reshape(-1, size), ())
    return seen.reshape(-1, *seen.shape[2:])[:count]


def _flat(examples):
    """Examples [R, ...] as rows of a pool, [R, D]."""
    return examples.reshape(len(examples), -1)


def _changed(lanes, fields: list[dict[str, Any]]):
    """The lanes, with these fields of the federations of each one replaced."""

    def changed(lane, new):
        return lane._replace(federation=lane.federation._replace(**new))

    return [
        of_lane._replace(
            training=changed(of_lane.training, new), scoring=changed(of_lane.scoring, new)
        )
        for of_lane, new in zip(lanes, fields, strict=True)
    ]
