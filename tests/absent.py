"""Helpers that compile small runs for accelerators that this machine does not have."""

import numpy as np
import pytest
import toys

from fedjax_lab import experiment, registry, transforming
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.engine import Engine
from fedjax_lab.width import client_bytes

TEXTS = {"char_lstm", "fasttext", "text_cnn", "transformer", "word_lstm"}  # models for text
SLOW = {"resnet18", "resnet50", "mobilenet_v2", "cct7"}


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


def models():
    """The names of all models as parameters; those that compile slowly are exhaustive tests."""
    marks = {True: [pytest.mark.exhaustive], False: []}
    return [pytest.param(name, marks=marks[name in SLOW]) for name in registry.NAMED["model"]]


def model_config(folder, name):
    """A config of FedAvg with this model and four clients, each with two batches of examples."""
    rng = np.random.default_rng(0)
    side = 64 if name == "alexnet_bn" else 32
    x = rng.integers(0, 256, (4 * 64 + 16, side, side, 3), dtype=np.uint8)
    if name in TEXTS:
        x = rng.integers(0, 10, (len(x), 80)).astype(np.float32)
    split = np.where(np.arange(len(x)) < 16, "test", "train")
    np.savez(folder / "data.npz", x=x, y=np.arange(len(x)) % 10, split=split)
    return resolve(
        {
            "data": {"name": "arrays", "path": str(folder / "data.npz")},
            "partition": {"name": "iid", "num_clients": 4},
            "model": {"name": name},
            "local": {"batch_size": 32},
        }
    )


def check_compiles(folder, name, devices, padded):
    """Checks that a round and an evaluation compile, and that width.py bounds the round's memory.

    padded: by how many times the compiled program, with its padding, may exceed that bound.
    """
    job = experiment.build(model_config(folder, name), devices=devices)
    (programs,) = Engine(job.simulation, abstract=True).lower().values()
    temporary = programs.play.compile().memory_analysis().temp_size_in_bytes
    plan = job.simulation.plan
    assert 0 < temporary <= padded * plan.cohort * client_bytes(job.task, plan)
    assert programs.score.compile().as_text()


def fedavg_with(folder, devices, clients=8, **sections):
    """An abstract engine of FedAvg with a wide MLP and all clients in each round.

    With correlated noise half of the clients are in a round, because clients take turns.

    sections: sections of the config, such as a transform or where state and data are stored.
    """
    toys.write_examples(folder / "data.npz")
    model = {"name": "mlp", "width": 4096}
    partition = {"name": "iid", "num_clients": clients}
    if "bands" in sections.get("privacy", {}):
        sections["run"] = {"cohort": clients // 2}
    file = toys.write_config(folder, model=model, partition=partition, **sections)
    (engine,) = engines(resolve(load_config(f"{file}:fedavg")), devices)
    return engine


def transforms():
    """(section, name, settings) of each transform, as parameters of a test."""
    settings = {name: {"noise": 0.1} for name in registry.NAMED["privacy"]}
    settings["banded"] = {"noise": 0.1, "bands": 2}
    return [
        pytest.param(section, name, settings.get(name, {}), id=name)
        for section in transforming.TRANSFORMS
        for name in registry.NAMED[section]
        if name not in ("none", "backdoor")  # backdoor needs images; otherwise it is like others
    ]
