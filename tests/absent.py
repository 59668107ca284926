"""Helpers that compile small runs for accelerators that this machine does not have.

The compilers are packages: libtpu (the extra aot-tpu) and the CUDA plugin (the extra aot-cuda).
"""

import itertools

import pytest
import targets
import toys
from slow_cases import in_ci

from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config

TARGETS = {"tpu": "v5e:2x2", "gpu": "h100"}


def devices(kind, count=None):
    """Devices of "tpu" or "gpu" (by default a mesh of four chips, and one GPU), or a skip."""
    if not targets.installed(TARGETS[kind]):
        pytest.skip(f"the compiler for {TARGETS[kind]} is not installed")
    return targets.topology(TARGETS[kind], count or (4 if kind == "tpu" else 1))


def in_turn(names, one, both):
    """Parameters (kind, name): the names in `one` take turns with the kinds of devices.

    Those in `both` get each kind. The other combinations are exhaustive tests.
    """
    chosen = {(kind, name) for kind in TARGETS for name in both}
    chosen |= set(zip(itertools.cycle(TARGETS), one, strict=False))
    return in_ci(chosen, [(kind, name) for kind in TARGETS for name in names])


def engines(config, devices):
    """Yields an abstract engine at each stage of the run that a config describes."""
    simulation = experiment.build(config, devices=devices).simulation
    concrete = None
    if any(stage.prepare for stage in simulation.stages):  # the facts are computed from the data
        concrete = Engine(experiment.build(config).simulation)
    engine = Engine(simulation, abstract=True, facts=concrete and concrete.first_facts)
    for number in range(len(simulation.stages)):
        if number:
            engine.next_stage(concrete and concrete.next_stage())
        yield engine


def config_of(folder, method="fedavg", **sections):
    """The config of a method on toy examples in `folder`, with these sections."""
    return resolve(load_config(f"{toys.write_config(folder, **sections)}:{method}"))
