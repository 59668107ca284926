"""Engines of small runs for accelerators that are not there."""

import numpy as np
import pytest
import toys

from fedjax_lab import experiment, registry, tree
from fedjax_lab.config import load_config, resolve
from fedjax_lab.engine import Engine


def engines(config, devices):
    """An abstract engine in each stage of the run of a config file, FILE.py:METHOD."""
    config = resolve(load_config(config))
    simulation = experiment.build(config, devices=devices).simulation
    beside = None
    if any(stage.prepare for stage in simulation.stages):  # facts follow from the data
        beside = Engine(experiment.build(config).simulation)
    engine = Engine(simulation, abstract=True, facts=beside and beside.first_facts)
    for number in range(len(simulation.stages)):
        if number:
            engine.next_stage(beside and beside.next_stage())
        yield engine


def names(slow):
    """All models as parameters of a test, some of them marked as slow."""
    marks = {True: [pytest.mark.slow], False: []}
    return [pytest.param(name, marks=marks[name in slow]) for name in registry.NAMED["model"]]


def write_model_config(folder, name):
    """The path of a config: the model on four clients, each with two batches of what it reads."""
    rng = np.random.default_rng(0)
    texts = name == "char_lstm"
    shape = (80,) if texts else (32, 32, 3)
    x = rng.integers(0, 10, (4 * 64 + 16, *shape)).astype(np.int8 if texts else np.uint8)
    split = np.where(np.arange(len(x)) < 16, "test", "train")
    np.savez(folder / "data.npz", x=x, y=np.arange(len(x)) % 10, split=split)
    partition, local = {"name": "iid", "num_clients": 4}, {"batch_size": 32}
    return toys.write_config(
        folder, partition=partition, local=local, model={"name": name}, run={"cohort": 4}
    )


def check_compiles(folder, name, devices):
    """A round and an evaluation of FedAvg with the model compile, within the bound of memory."""
    (engine,) = engines(write_model_config(folder, name), devices)
    (programs,) = engine.lower().values()
    temporary = programs.play.compile().memory_analysis().temp_size_in_bytes
    assert programs.score.compile().as_text()
    print(name, temporary, tree.num_bytes(engine.states[0].server))
