"""Every method, transform and model compiles for TPU chips and for a GPU; models fit in memory.

In CI, methods of each kind take turns with the devices, and transforms that compute in different
ways are compiled: some are carried by a method here, and test_transforms.py has others. One network
of each class is compiled; test_workload_tpu.py has a convolutional network and a vision transformer
for TPU chips.
"""

import absent
import numpy as np
import optional
import pytest
from slow_cases import OF_POSITIONS, in_ci

from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.width import client_bytes
from fedjax_lab.experiment import experiment, registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.models.frozen import model_of
from fedjax_lab.testing.toy import needs_adapters

pytestmark = [pytest.mark.compilers, pytest.mark.usefixtures("as_users_compile")]

CARRIED = {
    "fedavgm": ("privacy", {"name": "adaptive", "noise": 0.1}),
    "fedbabu": ("compression", {"name": "qsgd"}),
    "fedcm": ("aggregator", {"name": "norm_bound"}),
    "feddisco": ("attack", {"name": "gaussian"}),
    "feddyn": ("compression", {"name": "low_rank"}),
    "fedexp": ("downlink", {"name": "qsgd"}),
    "fedlc": ("attack", {"name": "label_flip"}),
    "fedntd": ("compression", {"name": "random_k"}),
    "fedopt": ("privacy", {"name": "central", "noise": 0.1}),
    "fedprox": ("privacy", {"name": "example_level", "noise": 0.1}),
    "fedrs": ("attack", {"name": "sign_flip"}),
    "fedsam": ("compression", {"name": "sign"}),
    "moon": ("compression", {"name": "top_k"}),
    "scaffold": ("privacy", {"name": "local", "noise": 0.1}),
}
# With stages, validation rows, several models, one client at a time, and scores of its own.
KINDS = ("fedconcat", "fedfomo", "ifca", "hfedf", "knn_per")
# Noise of an adapted size, factors of updates, rounded messages, and clipping of each example.
CARRYING = ("fedavgm", "feddyn", "fedexp", "fedprox")
BOTH = ("fedavg", "fediir")  # a plain one, and several exchanges


@pytest.mark.parametrize(
    ("kind", "name"), absent.in_turn(sorted(registry.METHODS), [*CARRYING, *KINDS], BOTH)
)
def test_every_method_compiles(tmp_path, small_network, kind, name):
    sections = {"local": {"batch_size": 8}}
    if needs_adapters(name):
        optional.module("qwix")
        sections["adapter"] = {"name": "lora", "targets": "Dense_0", "rank": 2}
    if name == "fedfomo":
        sections["partition"] = {"validation": 0.2}
    if name in CARRIED:
        section, settings = CARRIED[name]
        if section == "privacy":
            optional.module("dp_accounting")
        sections[section] = settings
    devices = absent.devices(kind)
    for engine in absent.engines(absent.config_of(tmp_path, name, **sections), devices):
        (programs,) = engine.lower().values()
        assert programs.play.compile().as_text()
        assert programs.score.compile().as_text()


TEXTS = {"char_lstm", "fasttext", "text_cnn", "transformer", "word_lstm"}  # models for text
CHOSEN = {
    *(("gpu", name) for name in ("digit_cnn", "word_lstm", "text_cnn")),
    ("tpu", "fasttext"),
}
# By how many times the compiled program, with its padding, may exceed the bound of width.py. A TPU
# lays out narrow layers, such as those of hfedf_cnn, in tiles of 128 lanes.
PADDED = {"tpu": 2.5, "gpu": 1.25}


def config_of(folder, name):
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


OF_CLASSES = sorted(registry.NAMED["model"].keys() - OF_POSITIONS)
EVERY = [(kind, name) for kind in absent.TARGETS for name in OF_CLASSES]


@pytest.mark.parametrize(("kind", "name"), in_ci(CHOSEN, EVERY))
def test_every_model_compiles_within_the_memory_limit(tmp_path, kind, name):
    job = experiment.build(config_of(tmp_path, name), devices=absent.devices(kind, 1))
    (programs,) = Engine(job.simulation, abstract=True).lower().values()
    temporary = programs.play.compile().memory_analysis().temp_size_in_bytes
    plan = job.simulation.plan
    assert 0 < temporary <= PADDED[kind] * plan.cohort * client_bytes(model_of(job.task), plan)
    assert programs.score.compile().as_text()
