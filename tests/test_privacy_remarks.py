"""What a private run says before training if its guarantee is worth nothing."""

import numpy as np
import optional
import pytest
import toys

from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import guaranteed

optional.module("dp_accounting")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A function that builds a private run of 4 rounds with so many clients."""

    def build(clients, **privacy):
        folder = tmp_path_factory.mktemp("toy")
        y = np.arange(20 * clients) % 4
        x = np.random.default_rng(0).normal(size=(len(y), 5)).astype(np.float32)
        np.savez(folder / "data.npz", x=x, y=y, client=np.arange(len(y)) % clients)
        config = load_config(
            toys.write_config(
                folder,
                partition={"name": "by_client", "num_clients": 0},
                run={"rounds": 4, "eval_every": 4, "cohort": clients // 2},
                privacy={"name": "central", **privacy},
            )
        )
        return experiment.build(resolve(config))

    return build


def test_a_large_delta_and_noise_above_all_updates_are_named(built):
    few = built(5, noise=1.0)  # delta is 5^-1.1 = 0.17
    assert "a delta of 0.17 for 5 clients is no guarantee" in guaranteed.remark(few)
    given = built(40, noise=0.1, delta=0.03)  # above 1/40
    assert "a delta of 0.03 for 40 clients" in guaranteed.remark(given)


def test_the_length_of_the_noise_is_that_of_the_formula(built):
    made = built(40, noise=30.0, delta=1e-4)
    d = sum(a.size for a in map(np.asarray, toys_leaves(made)))
    length = 30 * np.sqrt(4 * d) / (20 * 4)  # sigma S sqrt(d T) / m, over S T
    assert guaranteed.remark(made).startswith(
        f"privacy: the noise of all rounds together is {length:.2g} times as long"
    )


def toys_leaves(made):
    import jax

    return jax.tree.leaves(made.task.init(jax.random.key(0)).params)


def test_a_sound_guarantee_needs_no_remark(built):
    assert guaranteed.remark(built(40, noise=1.0, delta=1e-4)) == ""
    assert guaranteed.remark(built(40, epsilon="inf")) == ""
