"""The seeds of a run: each in a call of its own, or all on the leading axis of one call.

Functions are written for one seed. `seeds` is the length of the leading axis; 0: there is none.
"""

import operator
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import streams
from fedjax_lab.engine.input import BASE, Simulation
from fedjax_lab.engine.placement import Placement
from fedjax_lab.simulation.population import new_on_host, population_on_host
from fedjax_lab.simulation.simulate import Lane
from fedjax_lab.types import CLIENT_ROWS, POOL, Federation, PyTree, State


class Lanes(NamedTuple):
    """The input of one call of a compiled function: one seed, or all seeds on a leading axis."""

    settings: dict[str, PyTree]  # `Seed.settings`, and the frozen weights under `BASE`
    training: Lane
    scoring: Lane


def make_lanes(simulation: Simulation, place: Placement) -> list[Lanes]:
    """The lanes of a run on its devices: one per seed, or one for all seeds."""
    seeds = simulation.seeds
    keys = [streams.make_keys(jax.random.key(seed.number)) for seed in seeds]
    of_seeds = [(seed.settings, of_seed) for seed, of_seed in zip(seeds, keys, strict=True)]
    groups = [slice(i, i + 1) for i in range(len(seeds))]
    if place.seeds:
        of_seeds = [jax.tree.map(lambda *a: jnp.stack(a), *of_seeds)]
        groups = [slice(None)]
    pool = _make_pool(simulation, place, seeds[0].federation)
    each = partial(_each_lane, simulation, place, pool, groups)
    scored = list(each(simulation.federations))
    trained = each([seed.training for seed in seeds]) if seeds[0].is_pooled else scored
    schedules = _put_schedules(seeds, place, groups)
    base = {} if simulation.base is None else {BASE: place.put_base(simulation.base)}
    return [
        Lanes(
            settings | base,
            training=Lane(keys=keys, schedule=schedule, **to_train),
            scoring=Lane(keys=keys, **to_score),
        )
        for (settings, keys), schedule, to_train, to_score in zip(
            map(place.put, of_seeds), schedules, trained, scored, strict=True
        )
    ]


def _put_schedules(seeds, place, groups):
    """The schedule of each lane, or None."""
    if seeds[0].timeline is None:
        return [None for _ in groups]
    typed = [jax.tree.map(_on_device, seed.timeline.schedule) for seed in seeds]
    return [place.put(stacked(typed[group], place.seeds)[0]) for group in groups]


def _on_device(a):
    return a.astype(np.float32) if a.dtype.kind == "f" else a


def _each_lane(simulation, place, pool, groups, federations) -> Iterator[dict[str, Any]]:
    """Fields of the lanes of these groups of seeds, which share one pool of examples."""
    dealt, put = federations, operator.itemgetter(0)
    if simulation.host is None:  # else rows stay in NumPy, and there is one seed per lane
        dealt, put = place.dealt(federations), place.put_rows

    def put_people(of, group):
        people = [of(federation, simulation.num_classes) for federation in federations[group]]
        return None if people[0] is None else place.put_clients(people)

    for group in groups:
        rows = {name: put([getattr(f, name) for f in dealt[group]]) for name in CLIENT_ROWS}
        yield {
            "federation": pool._replace(**rows),
            "population": put_people(population_on_host, group),
            "new": put_people(new_on_host, group),
        }


def _make_pool(simulation, place, federation):
    """The federation without the clients' rows; in NumPy if examples are streamed."""
    shared = federation._replace(**dict.fromkeys(CLIENT_ROWS), traits={})
    if simulation.host is not None and simulation.host.stream:
        return shared
    pool = {name: place.put_pool(getattr(federation, name)) for name in POOL}
    return place.put(shared._replace(**dict.fromkeys(POOL)))._replace(**pool)


_AXES = Federation._make(0 if name in CLIENT_ROWS else None for name in Federation._fields)


def axes_of(lane: Lane, differing: Sequence[str] = ()) -> Lane:
    """Vmap axes of a lane: 0 for what differs between seeds (clients, keys, rows).

    differing: other fields of the federation that differ between seeds.
    """
    each = zip(lane.federation, _AXES, strict=True)
    federation: Any = Federation._make(None if a is None else axis for a, axis in each)
    others: Any = dict.fromkeys(("population", "keys", "new", "schedule"), 0)
    return Lane(federation._replace(**dict.fromkeys(differing, 0)), **others)


def axes_of_settings(settings: dict[str, PyTree]) -> dict[str, Any]:
    """Vmap axes of a lane's settings: all seeds share the frozen weights."""
    return {key: None if key == BASE else 0 for key in settings}


def settings_of_seeds(lanes: Sequence[Lanes], seeds: int) -> list[dict[str, PyTree]]:
    """The settings of each seed."""
    base = {key: lanes[0].settings[key] for key in lanes[0].settings.keys() & {BASE}}
    differing = [
        {key: value for key, value in of_lane.settings.items() if key != BASE} for of_lane in lanes
    ]
    return [of_seed | base for of_seed in each_seed(differing, seeds)]


def one_seed(a: PyTree, seeds: int) -> PyTree:
    """The shapes of one seed's part of a lane's arrays."""
    first = int(seeds > 0)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x)[first:], jnp.result_type(x)), a)


def lane_of_one_seed(lane: Lane, axes: Lane, state: State, seeds: int) -> tuple[Lane, State]:
    """The shapes of one seed's part of a lane and of its state."""
    federation = [
        one_seed(a, seeds if axis == 0 else 0)
        for a, axis in zip(lane.federation, axes.federation, strict=True)
    ]
    of_seeds = lane.population, lane.keys, lane.schedule, state
    population, keys, schedule, state = one_seed(of_seeds, seeds)
    return Lane(Federation(*federation), population, keys, schedule=schedule), state


def each_seed(trees: Sequence[PyTree], seeds: int) -> list[PyTree]:
    """Splits trees of arrays, one per lane, into one tree per seed."""
    if not seeds:
        return list(trees)
    return [jax.tree.map(lambda a, i=i: a[i], trees[0]) for i in range(seeds)]


def stacked(trees: Sequence[PyTree], seeds: int) -> list[PyTree]:
    """Stacks trees of NumPy arrays, one per seed, into one tree per lane."""
    return [jax.tree.map(lambda *a: np.stack(a), *trees)] if seeds else list(trees)
