"""Runs while the user has stricter settings of JAX for code of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint

import fedjax_lab
from fedjax_lab import defaults, ranges
from fedjax_lab.data import from_arrays
from fedjax_lab.errors import BadInput
from fedjax_lab.running import runner

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = X[:, :3].argmax(1)


@defaults.restored()
def mixed(x):
    return x + jnp.ones((2, 1), jnp.int8)


@pytest.fixture
def strict():
    with (
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
        jax.transfer_guard("disallow"),
    ):
        yield


def test_the_usual_settings_hold_inside_and_the_users_outside(strict):
    assert mixed(np.ones(3, np.float32)).shape == (2, 3)
    with pytest.raises(Exception, match="Disallowed host-to-device transfer|promotion"):
        mixed.__wrapped__(np.ones(3, np.float32))


def test_a_part_that_is_called_directly_has_the_usual_settings(strict):
    @ranges.checked("method")
    def part(x, *, scale: float = 1.0):
        return mixed.__wrapped__(x) * scale

    assert part(np.ones(3, np.float32), scale=2.0).shape == (2, 3)
    assert jax.config.jax_numpy_rank_promotion == "raise"


@pytest.mark.parametrize("door", [runner.run, runner.run_together])
def test_a_run_has_the_usual_settings_from_its_first_line(door, strict, monkeypatch):
    def stop(argument):
        raise BadInput(jax.config.jax_numpy_rank_promotion)

    monkeypatch.setattr(runner.loggers, "find", stop)
    monkeypatch.setattr(runner, "join", stop)
    assert complaint(door, [], []) == "allow"


@pytest.mark.slow
def test_a_run_trains_predicts_and_scores_in_spite_of_them(strict):
    config = {
        "data": from_arrays(X, Y, client=np.arange(40) % 3),
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"name": "mlp", "depth": 0},
        "local": {"epochs": 1},
        "run": {"rounds": 1, "eval_every": 1},
    }
    run = fedjax_lab.run(config, quiet=True)
    with defaults.restored():
        usual = fedjax_lab.run(config, quiet=True)
    assert run.metrics[-1]["accuracy"] == usual.metrics[-1]["accuracy"]
    np.testing.assert_array_equal(run.predict(X[:3]), usual.predict(X[:3]))
    assert run.score((X, Y))["global"] == usual.score((X, Y))["global"]
    assert jax.config.jax_numpy_rank_promotion == "raise"
