"""Every model compiles for a TPU chip or a GPU, to train and to evaluate, and fits in memory.

In CI one network of each class is compiled; test_methods.py compiles perceptrons, and
test_workload_tpu.py a convolutional network and a vision transformer, for TPU chips.
"""

import absent
import numpy as np
import pytest
from slow_cases import in_ci

from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.width import client_bytes
from fedjax_lab.experiment import experiment, registry
from fedjax_lab.experiment.config import resolve

pytestmark = [pytest.mark.compilers, pytest.mark.usefixtures("as_users_compile")]

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


EVERY = [(kind, name) for kind in absent.TARGETS for name in registry.NAMED["model"]]


@pytest.mark.parametrize(("kind", "name"), in_ci(CHOSEN, EVERY))
def test_every_model_compiles_within_the_memory_limit(tmp_path, kind, name):
    job = experiment.build(config_of(tmp_path, name), devices=absent.devices(kind, 1))
    (programs,) = Engine(job.simulation, abstract=True).lower().values()
    temporary = programs.play.compile().memory_analysis().temp_size_in_bytes
    plan = job.simulation.plan
    assert 0 < temporary <= PADDED[kind] * plan.cohort * client_bytes(job.task, plan)
    assert programs.score.compile().as_text()
