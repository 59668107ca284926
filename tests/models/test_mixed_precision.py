"""Tests that products are in bfloat16; weights, gradients, statistics and outputs in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from slow_cases import OF_POSITIONS, in_ci

from fedjax_lab import losses, tree
from fedjax_lab.experiment.registry import NAMED, look_up
from fedjax_lab.models import layers, nets
from fedjax_lab.models.cct import CCT
from fedjax_lab.models.char_lstm import CharLSTM
from fedjax_lab.models.task import make_task
from fedjax_lab.models.vit import ViT
from fedjax_lab.types import Batch

K = 10
NETS = {
    "mlp": nets.mlp(K, width=16, norm=True),
    "cnn": nets.digit_cnn(K, width=4),
    "dropout": nets.pfl_cnn(K).clone(channels=(4, 4), widths=(8,)),
    "cct": CCT(K, width=16, blocks=2, heads=2, hidden=16),
    "vit": ViT(K, width=16, depth=2, heads=2, patch=8, remat=True),
    "lstm": CharLSTM(K, width=16),
}


def example(net, size=32):
    """Returns a batch of four images or four texts, the last of which is padding."""
    rng = np.random.default_rng(0)
    texts = isinstance(net, CharLSTM) or hasattr(net, "vocabulary")
    x = rng.integers(0, K, (4, 12)) if texts else rng.normal(size=(4, size, size, 3))
    return Batch(jnp.asarray(x, jnp.float32), jnp.arange(4), jnp.array([1.0, 1, 1, 0]))


def task_of(net, batch, dtype):
    return make_task(net, batch.x.shape[1:], K, compute_dtype=dtype)


def step(task, batch, weights):
    """Returns ((loss, output), gradient) of a jitted training step."""

    def value(params):
        return losses.risk(task)(weights._replace(params=params), batch, jax.random.key(1))

    return jax.jit(jax.value_and_grad(value, has_aux=True))(weights.params)


def check(net, tolerance):
    """Checks that a training step is close to one in float32, with a relative tolerance."""
    batch = example(net)
    exact, mixed = (task_of(net, batch, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    weights = exact.init(jax.random.key(0))
    toys.same(mixed.init(jax.random.key(0)), weights)
    expected, out = (step(task, batch, weights) for task in (exact, mixed))
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(out))
    assert tree.finite(out)
    (_, before), gradient = expected
    (_, after), mixed_gradient = out
    for a, b in ((before, after), (gradient, mixed_gradient)):
        assert tree.sq_norm(optax.tree.sub(a, b)) < tolerance**2 * tree.sq_norm(a)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NETS)
def test_a_step_in_bfloat16_is_close_to_float32(name):
    check(NETS[name], 0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", in_ci(["cnn", "lstm", "vit"], NETS))
def test_all_products_of_small_networks_are_in_bfloat16(name):
    check_products(NETS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(NAMED["model"].keys() - OF_POSITIONS))
def test_all_products_of_registered_models_are_in_bfloat16(name):
    check_products(look_up("model", name)(K), size=64)


def check_products(net, size=32):
    """Checks that all products of a training step are in bfloat16, and its outputs in float32."""
    batch = example(net, size)
    task = task_of(net, batch, jnp.bfloat16)
    weights = tree.zeros(jax.eval_shape(task.init, jax.random.key(0)))

    def value(params):
        return losses.risk(task)(weights._replace(params=params), batch, jax.random.key(1))

    traced = jax.jit(jax.grad(value, has_aux=True)).trace(weights.params)
    assert {a.dtype for a in jax.tree.leaves(traced.out_info)} == {jnp.dtype(jnp.float32)}
    lines = traced.lower().as_text().splitlines()
    products = [line for line in lines if "dot_general" in line or "convolution(" in line]
    assert products
    for line in products:
        types = line.rsplit(":", 1)[1]
        assert "f32" not in types.replace("bf16", ""), line


def test_batch_norm_moments_are_computed_in_float32():
    """The mean of two neighboring bfloat16 numbers is not representable in bfloat16."""

    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x, train=False, mask=None):
            z = layers.BatchNorm()(x, train, mask)
            return layers.dense(z, 2, name="head"), z

    task = make_task(Norm(), (1,), 2, compute_dtype=jnp.bfloat16)
    x = jnp.tile(jnp.array([[1.0], [1.0078125]]), (50, 1))
    out = jax.jit(lambda key: task.apply(task.init(key), x, key))(jax.random.key(0))
    assert out.stats["BatchNorm_0"]["mean"] == pytest.approx(0.1 * 1.00390625, rel=1e-6)


@pytest.mark.slow
def test_characters_are_not_rounded_to_bfloat16():
    """257 is not representable in bfloat16."""
    task = make_task(CharLSTM(300, width=8, depth=1), (3,), 300, compute_dtype=jnp.bfloat16)
    weights = task.init(jax.random.key(0))
    apply = jax.jit(lambda x: task.apply(weights, x).logits)
    a, b = (apply(jnp.full((1, 3), c, jnp.float32)) for c in (256, 257))
    assert not np.allclose(a, b, atol=1e-3)


@pytest.mark.slow
def test_apply_at_continues_from_the_input_of_a_layer():
    """`apply_at` with the input of a layer gives the same output as the whole model."""
    batch = example(NETS["cnn"])
    task = task_of(NETS["cnn"], batch, jnp.bfloat16)
    weights = task.init(jax.random.key(0))
    for layer in ("Conv_1", "BatchNorm_0", "head"):
        inside = task.apply_at(layer, weights, batch.x).features
        assert inside.dtype == jnp.float32
        toys.same(task.apply_at(layer, weights, batch.x, inside), task.apply(weights, batch.x))
