"""Checks VGG-9 against naive NumPy."""

from functools import partial

import jax
import numpy as np
import pytest
from naive_layers import convolve, relu
from toys import normal, random_weights

from fedjax_lab.models import vgg
from fedjax_lab.models.task import make_task

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def small_vgg(maps=(0.0, 0.0), dense=0.0, widths=(5,)):
    net = vgg.VGG(3, ((2, 4), (4,)), maps, widths, dense)
    return make_task(net, (8, 9, 2), 3)


@pytest.mark.slow
def test_a_vgg_matches_numpy():
    task = small_vgg()
    weights, x = random_weights(jax.eval_shape(task.init, KEY)), normal(1, 2, 8, 9, 2)
    p, z = weights.params, np.asarray(x)
    for stage in (("Conv_0", "Conv_1"), ("Conv_2",)):
        for name in stage:
            z = relu(convolve(z, p[name]["kernel"]) + p[name]["bias"])
        h, w = z.shape[1] // 2, z.shape[2] // 2
        z = z[:, : 2 * h, : 2 * w].reshape(2, h, 2, w, 2, -1).max((2, 4))
    z = relu(z.reshape(2, -1) @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"])
    output = task.apply(weights, x)
    close(output.features, z, atol=1e-3)
    close(output.logits, z @ p["head"]["kernel"] + p["head"]["bias"], atol=1e-2)


@pytest.mark.slow
def test_map_dropout_drops_whole_feature_maps():
    plain, dropped = small_vgg(widths=()), small_vgg(maps=(0.0, 0.5), widths=())
    weights = random_weights(jax.eval_shape(plain.init, KEY))
    x = normal(1, 40, 8, 9, 2)
    whole = np.asarray(plain.apply(weights, x).features).reshape(40, 4, 4)  # [B, H W, C]
    thin = np.asarray(dropped.apply(weights, x, KEY).features).reshape(40, 4, 4)
    alive = whole.any(1)  # [B, C]
    kept = thin.any(1)
    assert 0.3 < kept[alive].mean() < 0.7
    lost = alive & ~kept
    assert (lost.any(1) & kept.any(1)).any()  # the maps of one image are dropped independently
    close(thin, np.where(kept[:, None], 2 * whole, 0))
    close(dropped.apply(weights, x).features, whole.reshape(40, -1))


@pytest.mark.slow
def test_dense_dropout_is_before_the_first_and_after_the_last_dense_layer():
    plain, dropped = small_vgg(widths=(400,)), small_vgg(dense=0.5, widths=(400,))
    weights = random_weights(jax.eval_shape(plain.init, KEY))
    x = normal(1, 4, 8, 9, 2)
    whole = np.asarray(plain.apply(weights, x).features)
    thin = np.asarray(dropped.apply(weights, x, KEY).features)
    assert 0.65 < (thin == 0).mean() < 0.85  # half by the ReLU, half of the others by dropout
    kept = (thin > 0) & (whole > 0)
    assert not np.allclose(thin[kept], 2 * whole[kept])  # dropout acts on the input as well


def test_vgg9_has_its_default_dropout_rates():
    net = vgg.vgg9(10)
    assert (net.map_dropout, net.dense_dropout) == ((0.0, 0.05, 0.0), 0.1)
