"""Tests the networks of Client2Vec's paper: published sizes, padded rows, vmap and loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import SMALL, one_client, small

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models import cct, char_lstm, kernels, mobilenet, resnet
from fedjax_lab.models.task import make_task

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("net", "shape", "count", "width"),
    [
        (resnet.resnet18(10), (32, 32, 3), 11_173_962, 512),
        (resnet.resnet18(10, norm="group"), (32, 32, 3), 11_173_962, 512),
        (resnet.resnet18(10, stem="imagenet"), (64, 64, 3), 11_181_642, 512),
        (resnet.resnet18(50, stem="imagenet"), (64, 64, 3), 11_202_162, 512),
        (mobilenet.mobilenet_v2(10), (64, 64, 3), 2_236_682, 1280),
        (mobilenet.mobilenet_v2(50), (64, 64, 3), 2_287_922, 1280),
        (mobilenet.mobilenet_v2(1000), (64, 64, 3), 3_504_872, 1280),
        (cct.cct7(10), (32, 32, 3), 3_760_139, 256),
        (cct.cct7(50), (32, 32, 3), 3_770_419, 256),
        (cct.cct7(50), (64, 64, 3), 3_967_027, 256),
        (char_lstm.char_lstm(80), (80,), 817_872, 256),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_published_sizes(net, shape, count, width):
    if hasattr(net, "kernels"):
        net = net.clone(kernels=kernels.choose("cpu", "im2col"))
    task = make_task(net, shape, net.num_classes)
    weights = jax.eval_shape(task.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == count
    assert weights.params["head"]["kernel"].shape == (width, net.num_classes)
    layers_with_weights = {name.split("/", 1)[1].rsplit("/", 1)[0] for name in tree.names(weights)}
    assert set(task.layers) == layers_with_weights


def gradient(task, weights, x, mask):
    def loss(params):
        output = task.apply(weights._replace(params=params), x, KEY, mask)
        return jnp.sum(mask[:, None] * jnp.sin(output.logits)), output

    return jax.grad(loss, has_aux=True)(weights.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_padded_rows_have_no_effect(name):
    task, weights, x = small(name)
    w, x = one_client(weights, x)
    real = np.array([0, 2, 3])
    mask = jnp.zeros(5).at[real].set(1)
    apply = jax.jit(task.apply)
    padded, alone = apply(w, x, KEY, mask), apply(w, x[real], KEY, jnp.ones(3))
    jax.tree.map(close, padded.stats, alone.stats)
    close(padded.logits[real], alone.logits)
    close(padded.features[real], alone.features)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet", "lstm"])
def test_clients_trained_with_vmap_in_a_loop_equal_clients_trained_alone(name):
    """Takes two gradient steps, with vmap inside of fori_loop."""
    task, weights, x = small(name)
    mask = jnp.ones(5)

    def step(w, x):
        g, output = gradient(task, w, x, mask)
        params = jax.tree.map(lambda a, b: a - 1e-3 * b, w.params, g)
        return w._replace(params=params, stats=output.stats)

    def steps(w):
        return jax.lax.fori_loop(0, 2, lambda _, w: jax.vmap(step)(w, x), w)

    together, single = jax.jit(steps)(weights), jax.jit(step)
    for i in (0, 1):
        alone, index = one_client(weights, x, i)
        alone = single(single(alone, index), index)
        jax.tree.map(lambda a, b, i=i: close(a[i], b), together, alone)


@pytest.mark.parametrize(("shape", "words"), [((8, 8, 3), "8x8x3"), ((), "numbers")])
def test_char_lstm_rejects_examples_that_are_not_texts(shape, words):
    with pytest.raises(BadInput, match=f"^char_lstm needs texts .*{words}"):
        make_task(char_lstm.char_lstm(5), shape, 5)


@pytest.mark.parametrize("net", [resnet.resnet18(3), mobilenet.mobilenet_v2(3), cct.cct7(3)])
def test_image_networks_reject_examples_that_are_not_images(net):
    with pytest.raises(BadInput, match=f"^{net.name} needs images .* 80"):
        make_task(net, (80,), 3)
