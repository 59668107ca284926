"""Tests that the kernels of all platforms give equal results, with and without `vmap`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import normal

from fedjax_lab.models import conv, kernels, pooling, vgg
from fedjax_lab.models.channelwise import channelwise
from fedjax_lab.models.nets import ConvNet

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
NETS = {
    "pooled": ConvNet(3, (2, 3), (False, True), (4,), kernel=3, map_dropout=0.25),
    "normed": ConvNet(3, (2, 3), (True, True), (4,), kernel=3, padding="SAME", norm=True),
    "vgg": vgg.VGG(3, ((2, 3), (2,)), (0.0, 0.5), (4,), 0.1),
}


def trained(net, clients):
    """Returns loss and gradients of (seeds, clients...), each with its images and weights."""
    x = normal(0, *clients, 2, 8, 8, 2)
    weights = net.init(jax.random.key(1), jnp.ones((2, 8, 8, 2)))
    scale = 1 + 0.1 * normal(2, *clients)

    def loss(scale, x):
        client_weights = jax.tree.map(lambda a: scale * a, weights)

        def score(variables):
            settings = {"rngs": {"dropout": jax.random.key(3)}, "mutable": ["batch_stats"]}
            (logits, _), _ = net.apply(variables, x, train=True, **settings)
            return jnp.sum(logits**2)

        return jax.value_and_grad(score)(client_weights)

    for _ in clients:
        loss = jax.vmap(loss)
    return jax.jit(loss)(scale, x)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "clients"),
    [(name, clients) for name in NETS for clients in ((), (1,), (6,), (2, 4))],
)
def test_the_kernels_of_all_platforms_agree(name, clients):
    """The cases are no vmap, a cohort of one client, one of six, and two seeds of four."""
    expected, *others = (
        trained(NETS[name].clone(kernels=kernels.choose(platform)), clients)
        for platform in ("cpu", "gpu", "tpu")
    )
    for actual in others:
        jax.tree.map(close, actual, expected)


def test_shared_weights_turn_the_clients_into_rows_of_one_batch():
    x, w = normal(0, 3, 2, 6, 5, 2), normal(1, 3, 3, 2, 4)
    convolve = partial(conv.grouped, window_strides=(1, 1), padding="SAME")
    labels = ("NHWC", "HWIO", "NHWC")

    def scored(x, w):
        return convolve(x, w, dimension_numbers=labels)

    program = str(jax.make_jaxpr(jax.vmap(scored, (0, None)))(x, w))
    assert "feature_group_count=1" in program
    close(jax.vmap(scored, (0, None))(x, w), jnp.stack([scored(a, w) for a in x]))


def scores_of(kind):
    """A score of each layer of the kernels, as functions of the images and the weights."""
    labels = ("NHWC", "HWIO", "NHWC")
    return (
        lambda x, w: kind.convolution(x, w, (1, 1), "SAME", dimension_numbers=labels).sum(),
        lambda x, w: kind.activate(x, w[0, 0, 0], 2).sum(),
        lambda x, w: kind.max_pool(x, 2).sum() * w.sum(),
    )


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_per_client_gradients_agree_on_cpu_and_tpu_kernels(axes):
    """The clients may share the weights or the images."""
    x, w = normal(0, 3, 2, 6, 5, 2), normal(1, 3, 3, 2, 2, 2)
    args = [a if axis == 0 else a[0] for a, axis in zip((x, w), axes, strict=True)]

    @jax.jit
    def gradients(*args):
        kinds = kernels.choose("cpu"), kernels.choose("tpu")
        each = [[jax.grad(score, (0, 1)) for score in scores_of(kind)] for kind in kinds]
        return [[jax.vmap(grad, axes)(*args) for grad in grads] for grads in each]

    expected, actual = gradients(*args)
    jax.tree.map(close, actual, expected)


def test_a_channelwise_layer_sees_clients_as_channels():
    shapes = []

    def scale(x, weight):
        shapes.append((x.shape, weight.shape))
        return x * weight

    x, weight = normal(0, 3, 2, 5), normal(1, 3, 5)
    close(jax.vmap(channelwise(scale))(x, weight), x * weight[:, None])
    assert shapes[-1] == ((2, 15), (15,))
    close(jax.vmap(channelwise(scale), (None, 0))(x[0], weight), x[0] * weight[:, None])
    assert shapes[-1] == ((2, 15), (15,))
    close(jax.vmap(channelwise(scale), (0, None))(x, weight[0]), x * weight[0])
    assert shapes[-1] == ((6, 5), (5,))


def test_the_platform_determines_the_kernels():
    assert kernels.choose("cpu") == kernels.CPU
    assert kernels.choose("cpu").convolution is conv.mapped
    assert kernels.choose("gpu").max_pool is pooling.by_slices
    assert kernels.choose("tpu").convolution is conv.grouped
    named = kernels.choose("tpu", "im2col")
    assert named == kernels.TPU._replace(convolution=conv.im2col)
