"""Runs with equal configs share their compiled programs, since compiling is most of a small run."""

import jax
import pytest

from fedjax_lab.engine import flops, programs
from fedjax_lab.engine.engine import Engine
from fedjax_lab.running import runner

CONFIGS = []  # of the run in progress
LOWERED, COMPILED, COSTS = {}, {}, {}


def key_of(self):
    """The config, seeds and devices of a run, the stage, and the shapes of its arguments."""
    shapes = jax.tree.map(lambda a: (a.shape, str(a.dtype)), (self.lanes, self.sums))
    states = [self._shapes(lane) for lane in range(len(self.lanes))]
    devices = self.place.strategy.sharding
    seeds = self.simulation.seed_numbers
    return repr((CONFIGS[-1], seeds, devices, self.stage_number, shapes, states))


def once(table, key, make):
    if key not in table:
        table[key] = make()
    return table[key]


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    """In a module that imports this fixture, a run reuses the programs of an earlier equal run."""
    run, lower, count, make = runner._run, Engine.lower, flops.round_cost, programs.compiled

    def run_of_config(experiment, *rest):
        CONFIGS.append(experiment.config.to_dict())
        try:
            return run(experiment, *rest)
        finally:
            CONFIGS.pop()

    def lower_once(self):
        self._apply_view()
        return once(LOWERED, key_of(self), lambda: lower(self)) if CONFIGS else lower(self)

    def compile_once(lowered):
        return once(COMPILED, id(lowered.play), lambda: make(lowered)) if CONFIGS else make(lowered)

    def count_once(program, *shapes):
        def compute_cost():
            return count(program, *shapes)

        return once(COSTS, id(program), compute_cost) if CONFIGS else compute_cost()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_run", run_of_config)
        patch.setattr(Engine, "lower", lower_once)
        patch.setattr(programs, "compiled", compile_once)
        patch.setattr(flops, "round_cost", count_once)
        yield
    for table in (LOWERED, COMPILED, COSTS):
        table.clear()
