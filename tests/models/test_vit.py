"""Checks the vision transformer against naive NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint
from naive_layers import attention, dense, gelu, layer_norm, one_client, small

from fedjax_lab import losses
from fedjax_lab.models.task import make_task
from fedjax_lab.models.vit import ViT, vit
from fedjax_lab.types import Batch

KEY = jax.random.key(0)

close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


def block_by_hand(x, p):
    s = x + attention(layer_norm(x, p["LayerNorm_0"]), p["Attention_0"], heads=2)
    return s + dense(gelu(dense(layer_norm(s, p["LayerNorm_1"]), p["mlp_0"])), p["mlp_1"])


def test_a_vit_matches_numpy():
    task, weights, x = small("vit")
    w, x = one_client(weights, x)
    output = jax.jit(task.apply)(w, x)
    p, x = jax.tree.map(np.asarray, w.params), np.asarray(x)
    corners = [(i, j) for i in (0, 2) for j in (0, 2, 4)]  # patches row by row
    patches = [x[:, i : i + 2, j : j + 2].reshape(len(x), -1) for i, j in corners]
    z = dense(np.stack(patches, axis=1), p["patches"]) + p["Positions_0"]["embedding"]
    for i in (0, 1):
        z = block_by_hand(z, jax.tree.map(lambda a, i=i: a[i], p["blocks"]))
    pooled = layer_norm(z, p["LayerNorm_0"]).mean(1)
    close(output.features, pooled, atol=1e-3)
    close(output.logits, dense(pooled, p["head"]), atol=1e-3)


def test_parameter_count_of_the_default_vit():
    shapes = jax.eval_shape(make_task(vit(10), (32, 32, 3), 10).init, KEY).params
    assert sum(a.size for a in jax.tree.leaves(shapes)) == 5_355_466
    assert shapes["blocks"]["Attention_0"]["qkv"]["kernel"].shape == (12, 192, 576)


@pytest.mark.slow
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


@pytest.mark.slow
def test_rematerialization_saves_memory_and_keeps_the_gradient():
    (plain, more), (again, less) = gradient(remat=False), gradient(remat=True)
    jax.tree.map(partial(close, atol=1e-6), again, plain)
    assert less < 0.5 * more


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 10}, "config.model.heads=3 does not divide config.model.width=10"),
        ({"depth": 0}, "config.model.depth must be above 0, got 0"),
        ({"patch": 5}, "config.model.patch=5 does not divide images of 8x12; use a divisor"),
        ({"patch": 9}, "vit needs images of at least 9x9, not 8x12x3"),
    ],
)
def test_a_bad_setting_is_named_in_the_error(settings, message):
    assert complaint(lambda: make_task(vit(3, **settings), (8, 12, 3), 3)) == message
