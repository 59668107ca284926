"""JAX's 64-bit mode: a whole run, and no float32 in what computes with float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from rounds import loss_of

import fedjax_lab
from fedjax_lab import losses
from fedjax_lab.methods import fedpick
from fedjax_lab.types import Batch


@pytest.fixture
def wide():
    """64-bit mode for the whole process, as JAX_ENABLE_X64=1 sets it: a run has several threads."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="module")
def toy(folder):
    """The config of a run with every kind of score and metric."""
    toys.write_examples(folder / "data.npz", domain=np.arange(300) % 2)
    names = ("auroc", "ece", "macro_f1", "top5")
    return toys.config(
        folder,
        partition={"validation": 0.2, "new_clients": 0.2},
        model={"norm": True},
        run={"rounds": 3, "eval_every": 2, "cohort": 3, "metrics": names},
    )


@pytest.mark.exhaustive
def test_a_whole_run_in_64_bit_mode_gives_the_losses_of_32_bits(toy, wide):
    """Random numbers that are drawn as floats may differ, so the run has no lost uploads."""
    rows_64 = fedjax_lab.run(toy, seeds=[0, 1], quiet=True).metrics
    jax.config.update("jax_enable_x64", False)
    rows = fedjax_lab.run(toy, seeds=[0, 1], quiet=True).metrics
    assert [row["round"] for row in rows_64] == [2, 2, 3, 3]
    for narrow, other in zip(rows, rows_64, strict=True):
        assert narrow.keys() == other.keys()
        for key in ("train_loss", "global_loss", "global_auroc"):
            assert other[key] == pytest.approx(narrow[key], rel=1e-2)


@pytest.mark.slow
def test_fedpick_computes_in_the_type_of_its_weights(wide):
    method, key = fedpick.fedpick(toys.NORM), jax.random.key(1)
    state = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), method.init(key, toys.C))
    batch = Batch(jnp.ones((5, toys.D)), jnp.zeros(5, jnp.int32), jnp.ones(5))

    def gradient(state):
        loss, w = loss_of(method, state)
        return jax.grad(lambda params: loss(w._replace(params=params), batch, key)[0])(w.params)

    types = str(jax.make_jaxpr(gradient)(state))  # of all values that are computed
    assert "f64" in types and "f32" not in types


@pytest.mark.slow
def test_features_have_the_type_of_the_weights(wide):
    task, x = toys.NORM, jnp.ones((3, toys.D))
    w = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), task.init(jax.random.key(0)))
    for layer in task.layers:
        assert task.apply_at(layer, w, x).features.dtype == jnp.float64
    value, _ = losses.risk(task)(w, Batch(x, jnp.zeros(3, jnp.int32), jnp.ones(3)), None)
    assert value.dtype == jnp.float64
