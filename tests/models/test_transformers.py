"""Tests CCT and the vision transformer against NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import (
    KEY,
    attention,
    close,
    convolve,
    dense,
    gelu,
    layer_norm,
    one_client,
    random_variables,
    relu,
    small,
)
from scipy.special import softmax
from slow_cases import slow_but
from toys import normal

from fedjax_lab import losses
from fedjax_lab.models import cct
from fedjax_lab.models.task import make_task
from fedjax_lab.models.vit import ViT, vit
from fedjax_lab.types import Batch


def cct_block_by_hand(x, p):
    """A block of two heads; the normalized sum, not the sum, goes around the dense layers."""
    attended = attention(layer_norm(x, p["LayerNorm_0"]), p["Attention_0"], heads=2)
    s = layer_norm(x + attended, p["LayerNorm_1"])
    return s + dense(gelu(dense(s, p["mlp_0"])), p["mlp_1"])


def vit_block_by_hand(x, p):
    s = x + attention(layer_norm(x, p["LayerNorm_0"]), p["Attention_0"], heads=2)
    return s + dense(gelu(dense(layer_norm(s, p["LayerNorm_1"]), p["mlp_0"])), p["mlp_1"])


def cct_by_hand(p, x):
    z = np.pad(relu(convolve(x, p["Conv_0"]["kernel"])), ((0, 0), (1, 1), (1, 1), (0, 0)))
    places = [(i, j) for i in range(0, 5, 2) for j in range(0, 4, 2)]  # windows of 5x4, row by row
    z = np.stack([z[:, i : i + 3, j : j + 3].max((1, 2)) for i, j in places], axis=1)
    z = z + p["Positions_0"]["embedding"]
    for i in (0, 1):
        z = cct_block_by_hand(z, p[f"Block_{i}"])
    z = layer_norm(z, p["LayerNorm_0"])
    share = softmax(dense(z, p["pool"])[..., 0], axis=1)  # [B, N]
    return np.einsum("bn,bnd->bd", share, z)


def vit_by_hand(p, x):
    corners = [(i, j) for i in (0, 2) for j in (0, 2, 4)]  # patches row by row
    patches = [x[:, i : i + 2, j : j + 2].reshape(len(x), -1) for i, j in corners]
    z = dense(np.stack(patches, axis=1), p["patches"]) + p["Positions_0"]["embedding"]
    for i in (0, 1):
        z = vit_block_by_hand(z, jax.tree.map(lambda a, i=i: a[i], p["blocks"]))
    return layer_norm(z, p["LayerNorm_0"]).mean(1)


@pytest.mark.parametrize(
    ("name", "by_hand"), slow_but(["vit"], [("cct", cct_by_hand), ("vit", vit_by_hand)])
)
def test_a_transformer_matches_numpy(name, by_hand):
    task, weights, x = small(name)
    w, x = one_client(weights, x)
    output = jax.jit(task.apply)(w, x)
    p = jax.tree.map(np.asarray, w.params)
    features = by_hand(p, np.asarray(x))
    close(output.features, features, atol=1e-3)
    close(output.logits, dense(features, p["head"]), atol=1e-3)


# CCT


@pytest.mark.slow
def test_stochastic_depth_drops_each_branch_of_an_example():
    block, x = cct.Block(2, 5, 0.0, skip=0.5), normal(1, 200, 3, 4)
    variables = random_variables(block, x, False)
    p = variables["params"]
    y = jax.jit(lambda: block.apply(variables, x, True, rngs={"dropout": KEY}))()
    x = np.asarray(x)
    neither = layer_norm(x, p["LayerNorm_1"])
    same = np.isclose(y, neither, atol=1e-4).all((1, 2))
    assert 0.15 < same.mean() < 0.35  # both branches are dropped for a quarter
    doubled = 2 * attention(layer_norm(x, p["LayerNorm_0"]), p["Attention_0"], heads=2)
    s = layer_norm(x + doubled, p["LayerNorm_1"])
    assert 0.15 < np.isclose(y, s, atol=1e-3).all((1, 2)).mean() < 0.35


@pytest.mark.slow
def test_attention_dropout_drops_weights_in_training_only():
    module, x = cct.Attention(1, 0.25), jnp.eye(60)[None]
    qkv = np.concatenate([np.zeros((60, 120)), np.eye(60)], axis=1)  # equal weights; v = x
    out = {"kernel": np.eye(60), "bias": np.zeros(60)}
    variables = {"params": {"qkv": {"kernel": qkv}, "out": out}}  # its output is the weights
    close(module.apply(variables, x, False), np.full((1, 60, 60), 1 / 60))
    with_dropout = np.asarray(module.apply(variables, x, True, rngs={"dropout": KEY}))
    assert 0.2 < (with_dropout == 0).mean() < 0.3
    close(with_dropout[with_dropout > 0], 1 / 60 / 0.75)


def test_stochastic_depth_and_dropout_rates_of_cct7():
    rates = []

    def record(call, args, kwargs, context):
        if isinstance(context.module, cct.Block):
            rates.append((context.module.skip, context.module.attention_dropout))
        return call(*args, **kwargs)

    with nn.intercept_methods(record):
        jax.eval_shape(cct.cct7(10).init, KEY, jnp.zeros((1, 8, 8, 3)))
    np.testing.assert_allclose(rates, [(i / 60, 0.1) for i in range(7)])


@pytest.mark.slow
def test_first_weights_of_cct_have_the_intended_scale():
    net = cct.CCT(10, width=64, blocks=1, heads=2, hidden=64)
    params = jax.jit(make_task(net, (12, 12, 3), 10).init)(KEY).params
    for name, layer in {**params["Block_0"], "head": params["head"]}.items():
        if "kernel" in layer:
            assert abs(layer["kernel"].std() / 0.02 - 1) < 0.1, name
            assert not layer["bias"].any()
    assert abs(params["Positions_0"]["embedding"].std() / 0.2 - 1) < 0.1
    assert abs(params["Conv_0"]["kernel"].std() / np.sqrt(2 / 27) - 1) < 0.1
    assert set(params["Block_0"]["Attention_0"]["qkv"]) == {"kernel"}


# The vision transformer


@pytest.mark.exhaustive
def test_each_block_has_different_initial_weights():
    kernels = make_task(vit(3, width=8, heads=2), (8, 8, 3), 3).init(KEY).params["blocks"]["mlp_0"]
    assert len(np.unique(kernels["kernel"])) == kernels["kernel"].size


def gradient(remat, depth=6):
    """The gradient of a training step, and the bytes of temporary memory of its program."""
    task = make_task(ViT(3, 16, depth, heads=2, patch=2, remat=remat), (16, 16, 3), 3)
    weights = task.init(KEY)
    x = jax.random.normal(KEY, (8, 16, 16, 3))
    batch = Batch(x, jnp.arange(8) % 3, jnp.ones(8))

    def risk(params):
        return losses.risk(task)(weights._replace(params=params), batch, KEY)[0]

    compiled = jax.jit(jax.grad(risk)).lower(weights.params).compile()
    return compiled(weights.params), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.exhaustive
def test_rematerialization_saves_memory_and_keeps_the_gradient():
    (plain, more), (again, less) = gradient(remat=False), gradient(remat=True)
    jax.tree.map(lambda a, b: close(a, b, atol=1e-6), again, plain)
    assert less < 0.5 * more
