"""Tests the values and gradients of the convolutions against those of XLA."""

import os
import subprocess
import sys
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from slow_cases import in_ci
from toys import normal

from fedjax_lab.engine import parallel
from fedjax_lab.models import conv, kernels, pooling
from fedjax_lab.models.channelwise import channelwise

FORMULATIONS = tuple(conv.FORMULATIONS.values())
LABELS = ("NHWC", "HWIO", "NHWC")
close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5)


def same(a, b):
    jax.tree.map(close, a, b)


def check_equal(variants, *args, formulations=FORMULATIONS):
    """Checks variants(convolution, *args) of each formulation against XLA's, in one program."""
    convolutions = (lax.conv_general_dilated, *formulations)
    together = jax.jit(lambda *args: [variants(each, *args) for each in convolutions])
    expected, *others = together(*args)
    for ours in others:
        same(ours, expected)


def with_gradients(convolve, x, w):
    """Returns value and gradients of a convolution; the cotangent depends on the value."""
    y, back = jax.vjp(convolve, x, w)
    return y, *back(jnp.sin(y))


def call(convolution, strides=(1, 1), padding="SAME", **settings):
    return lambda x, w: convolution(x, w, strides, padding, dimension_numbers=LABELS, **settings)


@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "dilation"),
    [
        ((5, 5), (1, 1), "VALID", None),
        ((5, 5), (1, 1), "SAME", None),
        ((3, 3), (1, 1), "VALID", None),
        ((1, 1), (1, 1), "VALID", None),
        ((3, 3), (2, 2), "SAME", None),
        ((3, 3), (2, 2), ((1, 1), (1, 1)), None),
        ((5, 5), (2, 2), "VALID", None),
        ((1, 1), (2, 2), "VALID", None),
        ((2, 3), (1, 2), ((0, 2), (3, 1)), None),
        ((3, 3), (1, 1), "SAME", (2, 2)),
        ((3, 2), (2, 3), ((2, 1), (0, 3)), (2, 1)),
        ((3, 3), (1, 1), ((-1, 0), (0, -2)), None),
    ],
)
def test_convolutions_equal_those_of_xla(kernel, strides, padding, dilation):
    x, w = normal(0, 2, 8, 7, 3), normal(1, *kernel, 3, 4)

    def variants(convolution):
        return with_gradients(call(convolution, strides, padding, rhs_dilation=dilation), x, w)

    check_equal(variants)


@pytest.mark.parametrize(
    ("padding", "banded"),
    [
        ("VALID", True),
        ("SAME", True),
        (((1, 2), (2, 0)), True),
        (((0, 0), (0, 2)), True),
        (((0, 0), (-1, -2)), True),
        (((0, 0), (9, 1)), False),  # columns that do not overlap the image
    ],
)
def test_mapped_uses_a_banded_matrix_for_few_channels(padding, banded):
    """The nine columns of 16 channels are computed three at a time."""
    x, w = normal(0, 2, 5, 9, 2), normal(1, 3, 3, 2, 16)
    ours, xla = (
        partial(with_gradients, call(f, (1, 1), padding))
        for f in (conv.mapped, lax.conv_general_dilated)
    )
    program = str(jax.make_jaxpr(call(conv.mapped, (1, 1), padding))(x, w))
    assert ("conv_general_dilated" not in program) == banded
    same(*jax.jit(lambda: (ours(x, w), xla(x, w)))())


def pooled(x, w, bias, padding):
    """The layer of a net on a CPU: convolution, bias, ReLU and pooling."""
    return kernels.CPU.layer(x, w, bias, padding, 2)


def pooled_by_xla(x, w, bias, padding):
    y = lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=LABELS)
    return pooling.by_slices(nn.relu(y + bias), 2)


@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 2), (2, 0)), ((0, -1), (-1, 0))])
@pytest.mark.parametrize("channels", in_ci([16], [6, 16]))
def test_a_thin_convolution_with_pooling_equals_its_three_steps(padding, channels):
    """Heights and widths of the convolution are odd and even; the last odd row is not pooled."""
    x, w, bias = normal(0, 2, 10, 14, 1), normal(1, 5, 3, 1, channels), normal(2, channels)
    ours, xla = (partial(f, padding=padding) for f in (pooled, pooled_by_xla))
    program = str(jax.make_jaxpr(ours)(x, w, bias))
    assert "conv_general_dilated" not in program

    def with_three_gradients(layer):
        y, back = jax.vjp(layer, x, w, bias)
        return y, *back(jnp.sin(y))

    same(*jax.jit(lambda: (with_three_gradients(ours), with_three_gradients(xla)))())


def test_a_thin_convolution_with_pooling_under_vmap_over_clients_equals_one_client_at_a_time():
    x, w, bias = normal(0, 3, 2, 9, 8, 2), normal(1, 3, 3, 3, 2, 6), normal(2, 3, 6)

    def loss(x, w, bias):
        return jnp.sum(jnp.sin(pooled(x, w, bias, "SAME")))

    gradients = jax.value_and_grad(loss, (0, 1, 2))
    together = jax.jit(jax.vmap(gradients))(x, w, bias)
    alone = [jax.jit(gradients)(*client) for client in zip(x, w, bias, strict=True)]
    same(together, jax.tree.map(lambda *values: jnp.stack(values), *alone))


def test_of_equal_numbers_in_a_pooling_window_the_first_gets_the_gradient():
    x, w, bias = jnp.ones((1, 5, 5, 1)), jnp.ones((2, 2, 1, 1)), jnp.zeros(1)
    gradients = [
        jax.jit(jax.grad(lambda x, f=f: jnp.sum(f(x, w, bias, "VALID"))))(x)
        for f in (pooled, pooled_by_xla)
    ]
    same(*gradients)


def test_convolutions_under_vmap_equal_those_of_xla():
    """Images, kernels or both differ by client; gradients are inside and outside of vmap."""
    x, w = normal(0, 3, 2, 6, 5, 2), normal(1, 3, 3, 3, 2, 4)
    cases = [((0, 0), x, w), ((0, None), x, w[0]), ((None, 0), x[0], w)]

    def variants(convolution):
        convolve = call(convolution, (2, 1), ((1, 0), (1, 1)))
        grad = partial(with_gradients, convolve)
        inside = [jax.vmap(grad, axes)(x, w) for axes, x, w in cases]
        return inside, [with_gradients(jax.vmap(convolve, axes), x, w) for axes, x, w in cases]

    check_equal(variants)


@pytest.mark.slow
def test_convolutions_in_scan_and_loop_equal_those_of_xla():
    """Trains clients of two seeds in a scan of two steps, then in a loop of traced length."""
    x, w = normal(0, 2, 3, 2, 5, 5, 2), normal(1, 2, 3, 3, 3, 2, 2) / 4

    def train(convolution, x, w, n):
        convolve = call(convolution)

        def loss(w, x):
            return jnp.sum(jnp.tanh(convolve(x, w)) ** 2)

        def step(w, _):
            return w - 0.1 * jax.grad(loss)(w, x), loss(w, x)

        w, losses = lax.scan(step, w, None, length=2)
        return lax.fori_loop(0, n, lambda _, w: w - 0.1 * jax.grad(loss)(w, x), w), losses

    def variants(convolution, n):
        over_clients = jax.vmap(partial(train, convolution), (0, 0, None))
        shared_images = jax.vmap(over_clients, (None, 0, None))(x[0], w, n)
        return jax.vmap(over_clients, (0, 0, None))(x, w, n), shared_images

    check_equal(variants, 2)


def test_by_shape_uses_products_for_kernels_of_clients_on_few_channels_or_small_images(monkeypatch):
    """A kernel that clients share is applied by one convolution to the images of all clients."""
    few, many = 2 * 2 * 3 * 3 * 5 * 4, 0
    cases = [  # (channels, FEW_BYTES, padding, axes, number of convolutions)
        (3, many, "SAME", (0, 0), 0),
        (3, many, "SAME", (0, None), 1),
        (5, few, "VALID", (0, 0), 0),
        (5, few - 1, "VALID", (0, 0), 1),
        (5, 4 * few, "SAME", (0, 0), 1),
    ]
    for channels, few_bytes, padding, axes, convolutions in cases:
        monkeypatch.setattr(conv, "FEW_BYTES", few_bytes)
        x, w = normal(0, 2, 1, 4, 4, channels), normal(1, 2, 3, 3, channels, 2)
        w = w if axes[1] == 0 else w[0]
        convolve = call(conv.by_shape, padding=padding)
        program = str(jax.make_jaxpr(jax.vmap(convolve, axes))(x, w))
        assert program.count("conv_general_dilated[") == convolutions


def test_convolutions_under_shard_map_equal_those_of_xla():
    mesh = jax.make_mesh((1,), ("client",), axis_types=(jax.sharding.AxisType.Auto,))
    x, w = normal(0, 2, 1, 4, 4, 2), normal(1, 2, 3, 3, 2, 2)
    spec = PartitionSpec("client")

    def variants(convolution):
        each = jax.vmap(partial(with_gradients, call(convolution)))
        return jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x, w)

    check_equal(variants)


def test_unsupported_convolutions_are_passed_to_xla():
    x, w = normal(0, 2, 6, 6, 4), normal(1, 3, 3, 2, 4)
    settings = dict(padding="SAME", lhs_dilation=(1, 1), feature_group_count=2)
    ours, xla = (call(f, **settings) for f in (conv.mapped, lax.conv_general_dilated))
    same(jax.jit(ours)(x, w), jax.jit(xla)(x, w))
    line, taps = normal(0, 2, 6, 3), normal(1, 3, 3, 4)
    labels = ("NWC", "WIO", "NWC")
    same(
        conv.im2col(line, taps, (1,), "SAME", dimension_numbers=labels),
        lax.conv_general_dilated(line, taps, (1,), "SAME", dimension_numbers=labels),
    )


def test_flax_layers_can_use_each_formulation():
    x = normal(0, 2, 7, 7, 3)
    settings = dict(features=4, kernel_size=(3, 3), strides=2, padding=1)
    weights = {"params": {"kernel": normal(1, 3, 3, 3, 4), "bias": normal(2, 4)}}

    def variants(convolution):
        return nn.Conv(**settings, conv_general_dilated=convolution).apply(weights, x)

    check_equal(variants)


@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "dilation"),
    [
        ((3, 3), (1, 1), ((1, 1), (1, 1)), None),
        ((3, 2), (2, 1), "SAME", None),
        ((3, 3), (2, 2), ((1, 1), (1, 1)), (2, 1)),
    ],
)
def test_depthwise_convolutions_equal_those_of_xla(kernel, strides, padding, dilation):
    """Each channel has one kernel, and each of the two clients has different kernels."""
    x, w = normal(0, 2, 3, 8, 7, 4), normal(1, 2, *kernel, 1, 4)
    settings = dict(rhs_dilation=dilation, feature_group_count=4)

    def variants(convolution):
        convolve = call(convolution, strides, padding, **settings)
        return jax.vmap(partial(with_gradients, convolve))(x, w)

    check_equal(variants, formulations=[conv.mapped, conv.im2col, conv.grouped])


LONG_LOOP = """
import jax, jax.numpy as jnp
from fedjax_lab.engine import parallel
parallel.use_every_core()
from fedjax_lab.models import nets
from fedjax_lab.types import Federation

net = nets.digit_cnn(10)
x = jax.random.normal(jax.random.key(0), (32, 28, 28, 3))
variables = net.init(jax.random.key(1), x)

def loss(params, x):
    weights = {**variables, "params": params}
    (logits, _), _ = net.apply(weights, x, train=True, mutable="batch_stats")
    return (jax.nn.logsumexp(logits, axis=1) - logits[:, 0]).mean()

def largest_difference(shared, federation, rows, x):
    def step(i, carry):
        first, largest = carry
        g = jax.grad(loss)(variables["params"], x + 0.0 * i)["Conv_0"]["kernel"]
        first = jnp.where(i == 0, g, first)
        return first, jnp.maximum(largest, jnp.abs(g - first).max())
    zeros = jnp.zeros_like(variables["params"]["Conv_0"]["kernel"])
    return jax.lax.fori_loop(0, 60, step, (zeros, 0.0))[1]

strategy = parallel.on_mesh(parallel.make_mesh(jax.devices()), parallel.sequential())
xs = jnp.stack([x] * len(jax.devices()))
nothing = Federation(*[None] * len(Federation._fields))
print(len(xs), jax.jit(strategy.each(largest_difference))(0, nothing, xs, xs).max())
"""


@pytest.mark.exhaustive
def test_gradients_stay_bitwise_equal_in_a_long_loop_on_every_device():
    """Without a spare thread, gradients of up to 0.08 change by 0.013 after about 25 steps."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    environment.pop("NPROC")
    command = [sys.executable, "-c", LONG_LOOP]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["2", "0.0"]


@pytest.mark.skipif(
    jax.default_backend() != "cpu" or jax.device_count() == 1, reason="needs several CPU devices"
)
def test_devices_without_a_spare_thread_cause_a_warning(monkeypatch):
    monkeypatch.setenv("NPROC", str(len(jax.devices())))
    with pytest.warns(UserWarning, match="without a spare thread"):
        parallel.choose("auto", cohort=4, in_turn=True, equal_steps=True, client_bytes=lambda: 1)


# The kernels of all platforms.


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
def test_per_client_gradients_agree_on_the_kernels_of_all_platforms(axes):
    """The clients may share the weights or the images."""
    x, w = normal(0, 3, 2, 6, 5, 2), normal(1, 3, 3, 2, 2, 2)
    args = [a if axis == 0 else a[0] for a, axis in zip((x, w), axes, strict=True)]

    @jax.jit
    def gradients(*args):
        kinds = map(kernels.choose, ("cpu", "gpu", "tpu"))
        each = [[jax.grad(score, (0, 1)) for score in scores_of(kind)] for kind in kinds]
        return [[jax.vmap(grad, axes)(*args) for grad in grads] for grads in each]

    expected, *others = gradients(*args)
    for actual in others:
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
