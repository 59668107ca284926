"""Tests networks and tasks against published sizes and formulas written out here."""

from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import normal, random_weights

from fedjax_lab.errors import BadInput
from fedjax_lab.models import kernels, layers, nets
from fedjax_lab.models.task import make_task

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


NETS = [
    (nets.mlp, (8, 8, 1), 4_810),
    (nets.simple_cnn, (32, 32, 3), 62_006),
    (nets.simple_cnn, (28, 28, 1), 44_426),
    (nets.lenet, (64, 64, 3), 4_336_906),
    (nets.lenet, (32, 32, 3), 797_962),
    (nets.mcmahan_cnn, (28, 28, 1), 1_663_370),
    (nets.pfl_cnn, (32, 32, 3), 1_626_442),
    (nets.pfllib_cnn, (28, 28, 1), 582_026),
    (nets.digit_cnn, (28, 28, 3), 47_626),
    (nets.digit_cnn, (32, 32, 3), 66_058),
]


def small_net(**settings):
    """Returns the task of a small network with all kinds of layers, for images of 9x9x1."""
    net = nets.ConvNet(3, (2, 4), (True, False), (5,), kernel=3, norm=True, **settings)
    return make_task(net, (9, 9, 1), 3)


SMALL = small_net()


@cache
def first_weights(seed=0):
    """Returns first weights that fit every `small_net`, whatever its dropout."""
    return jax.jit(SMALL.init)(jax.random.key(seed))


def same(a, b):
    jax.tree.map(close, a, b)


@pytest.mark.parametrize(("net", "shape", "count"), NETS)
def test_published_sizes(net, shape, count):
    task = make_task(net(10), shape, 10)
    weights = jax.eval_shape(task.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == count
    output = jax.eval_shape(task.apply, weights, jax.ShapeDtypeStruct((7, *shape), jnp.float32))
    assert output.logits.shape == (7, 10)
    head = weights.params["head"]
    assert head["kernel"].shape == (output.features.shape[1], 10)
    assert bool(weights.stats) == bool(task.batch_norms)


@pytest.mark.parametrize(("net", "shape", "count"), NETS)
def test_weights_and_outputs_are_float32_in_64_bit_mode(net, shape, count):
    """A layer with float64 parameters would make all later layers slow and twice as large."""
    with jax.enable_x64(True):
        task = make_task(net(10), shape, 10)
        weights = jax.eval_shape(task.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
        out = jax.eval_shape(task.apply, weights, x, jax.random.key(0), jnp.ones(2, jnp.float32))
    assert {str(a.dtype) for a in jax.tree.leaves((weights, out))} == {"float32"}


def test_head_maps_features_to_logits():
    weights = first_weights()
    output = jax.jit(SMALL.apply)(weights, normal(0, 4, 9, 9, 1))
    head = jax.tree.map(np.asarray, weights.params["head"])
    close(output.logits, np.asarray(output.features) @ head["kernel"] + head["bias"])


def test_settings_change_widths_channels_and_kernels():
    assert nets.mlp(10, width=7, depth=3).widths == (7, 7, 7)
    assert nets.digit_cnn(10, width=4).channels == (4, 8)
    assert nets.lenet(10).clone(kernels=kernels.TPU).kernels is kernels.TPU


@pytest.mark.parametrize(
    ("shape", "words"), [((12, 15, 3), ("lenet", "12x15x3")), ((784,), ("lenet", "784"))]
)
def test_images_of_unsuitable_shape_are_rejected(shape, words):
    with pytest.raises(BadInput) as error:
        make_task(nets.lenet(10), shape, 10)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_the_smallest_image_is_accepted():
    make_task(nets.lenet(10), (16, 16, 3), 10)  # 16 -> 12 -> 6 -> 2 -> 1


def test_first_weights_are_uniform_with_a_bound_by_fan_in():
    net = nets.ConvNet(10, (16,), (True,), (), kernel=5)
    params = jax.jit(make_task(net, (8, 8, 3), 10).init)(KEY).params
    for name, fan_in in [("Conv_0", 75), ("head", 64)]:
        bound = fan_in**-0.5
        for leaf in params[name].values():
            assert np.abs(leaf).max() <= bound
        kernel = params[name]["kernel"]
        assert np.abs(kernel).max() > 0.95 * bound
        assert abs(kernel.std() / (bound / np.sqrt(3)) - 1) < 0.1
        assert params[name]["bias"].std() > 0.3 * bound


@pytest.mark.slow
def test_padded_rows_have_no_effect():
    """Logits, running statistics and gradients of a padded batch are those of the real rows."""
    weights = first_weights()
    x, mask = normal(0, 6, 9, 9, 1), jnp.array([1.0, 1, 0, 1, 0, 1])
    y = jnp.array([0, 2, 1, 1, 0, 2])
    real = np.flatnonzero(mask)

    def loss(params, x, y, mask):
        output = SMALL.apply(weights._replace(params=params), x, KEY, mask)
        log_p = jnp.take_along_axis(jax.nn.log_softmax(output.logits), y[:, None], 1)[:, 0]
        return -(mask * log_p).sum() / mask.sum(), output

    train = jax.jit(jax.grad(loss, has_aux=True))
    padded_gradient, padded = train(weights.params, x, y, mask)
    gradient, alone = train(weights.params, x[real], y[real], jnp.ones(len(real)))
    same(padded_gradient, gradient)
    same(padded.stats, alone.stats)
    close(padded.logits[real], alone.logits)

    _, other = train(weights.params, jnp.where(mask[:, None, None, None] > 0, x, 9.0), y, mask)
    np.testing.assert_array_equal(other.logits[real], padded.logits[real])
    jax.tree.map(np.testing.assert_array_equal, other.stats, padded.stats)


# The task


@pytest.fixture(scope="module")
def apply():
    """`apply` of a network with BatchNorm and both kinds of dropout."""
    return jax.jit(small_net(map_dropout=0.25, dense_dropout=0.5).apply)


def test_evaluation_is_pure_and_uses_running_statistics(apply):
    weights, x = first_weights(), normal(0, 4, 9, 9, 1)
    whole = apply(weights, x)
    jax.tree.map(np.testing.assert_array_equal, whole.stats, weights.stats)
    close(whole.logits[:2], apply(weights, x.at[2:].set(0)).logits[:2])

    trained = apply(weights, x, KEY)
    assert jax.tree.structure(trained.stats) == jax.tree.structure(weights.stats)
    assert not np.allclose(trained.stats["BatchNorm_0"]["mean"], 0)
    moved = weights._replace(stats=trained.stats)
    assert not np.allclose(apply(moved, x).logits, whole.logits)


def test_dropout_follows_the_key_and_is_off_in_evaluation(apply):
    weights, x = first_weights(), normal(0, 4, 9, 9, 1)
    one, other = (apply(weights, x, jax.random.key(k)).logits for k in (1, 2))
    assert not np.allclose(one, other)
    np.testing.assert_array_equal(one, apply(weights, x, jax.random.key(1)).logits)
    close(apply(weights, x).logits, jax.jit(SMALL.apply)(weights, x).logits)


def test_a_network_without_batch_norm_has_no_statistics():
    task = make_task(nets.mlp(3), (5,), 3)
    weights = jax.eval_shape(task.init, KEY)
    assert weights.stats == {}
    assert task.batch_norms == ()
    assert jax.eval_shape(task.apply, weights, normal(0, 2, 5), KEY).stats == {}


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = layers.BatchNorm(name="calm")(x, train)
        x = nn.BatchNorm(use_running_average=not train, name="second")(x)
        return nn.Dense(4, name="BatchNorm_of_the_name_only")(x)


class Outer(nn.Module):
    @nn.compact
    def __call__(self, x, train=False, mask=None):
        inner = Inner(name="block")
        z = nn.LayerNorm(name="tidy")(inner(x, train))
        z = nn.GroupNorm(2)(inner(z, train))
        return nn.Dense(3, name="head")(z), z


def test_layers_are_found_by_type():
    task = make_task(Outer(), (4,), 3)
    named = "block/BatchNorm_of_the_name_only"
    norms = ("block/calm", "block/second")
    assert task.layers == (*norms, named, "tidy", "GroupNorm_0", "head")
    assert task.batch_norms == norms
    assert task.dense == (named, "head")


class Headless(nn.Module):
    @nn.compact
    def __call__(self, x, train=False, mask=None):
        z = layers.BatchNorm()(nn.Dense(3)(x), train)
        return z, x


def test_a_model_that_does_not_end_in_its_head_is_rejected():
    with pytest.raises(BadInput, match="must be the Dense that computes the logits"):
        make_task(Headless(), (4,), 3)


def test_layers_of_a_convolutional_network_are_listed_in_order():
    task = make_task(nets.digit_cnn(10, width=2), (28, 28, 3), 10)
    convolutions = ("Conv_0", "BatchNorm_0", "Conv_1", "BatchNorm_1")
    assert task.layers == (*convolutions, "Dense_0", "head")
    assert task.dense == ("Dense_0", "head")


@pytest.mark.slow
def test_gradients_of_clients_under_vmap_equal_those_of_each_alone():
    weights = [first_weights(seed) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights)
    x, mask = normal(0, 2, 4, 9, 9, 1), jnp.array([[1.0, 1, 1, 0], [1, 1, 0, 0]])

    def gradient(weights, x, mask):
        def loss(params):
            output = SMALL.apply(weights._replace(params=params), x, KEY, mask)
            return jnp.sum(mask[:, None] * output.logits**2), output.stats

        return jax.grad(loss, has_aux=True)(weights.params)

    together, alone = jax.jit(jax.vmap(gradient))(stacked, x, mask), jax.jit(gradient)
    for i in (0, 1):
        same(jax.tree.map(lambda a, i=i: a[i], together), alone(weights[i], x[i], mask[i]))


def by_hand(w, x):
    """Applies conv, BatchNorm, ReLU and pool; dense and ReLU; head. In evaluation mode."""
    p, stats = w.params, w.stats
    for i in range(2):
        kernel, bias = p[f"Conv_{i}"]["kernel"], p[f"Conv_{i}"]["bias"]
        labels = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=labels)
        s, b = stats[f"BatchNorm_{i}"], p[f"BatchNorm_{i}"]
        x = (x + bias - s["mean"]) / jnp.sqrt(s["var"] + 1e-5) * b["scale"] + b["bias"]
        x = jnp.maximum(x, 0)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    z = x.reshape(len(x), -1) @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]
    z = jnp.maximum(z, 0)
    return z @ p["head"]["kernel"] + p["head"]["bias"], z


@pytest.mark.slow
def test_conv_net_equals_its_formula():
    net = nets.ConvNet(3, (2, 4), (True, True), (5,), kernel=3, norm=True)
    task = make_task(net, (14, 14, 1), 3)
    w = random_weights(task.init(KEY))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(6, 14, 14, 1)), jnp.float32)
    out, (logits, features) = task.apply(w, x), by_hand(w, x)
    np.testing.assert_allclose(out.features, features, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out.logits, logits, rtol=1e-4, atol=1e-4)


def test_mlp_equals_its_formula():
    task = make_task(nets.mlp(3, width=5, norm=True), (4,), 3)
    w = random_weights(task.init(KEY))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(6, 4)), jnp.float32)
    p, s = w.params, w.stats["BatchNorm_0"]
    z = x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]
    z = (z - s["mean"]) / jnp.sqrt(s["var"] + 1e-5) * p["BatchNorm_0"]["scale"]
    z = jnp.maximum(z + p["BatchNorm_0"]["bias"], 0)
    np.testing.assert_allclose(task.apply(w, x).features, z, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["map_dropout", "dense_dropout"])
def test_each_kind_of_dropout_drops_features_at_its_rate(where):
    """A quarter of the features are dropped, and the others are divided by 0.75."""
    widths = (400,) if where == "dense_dropout" else ()
    net = nets.ConvNet(3, (8,), (False,), widths, kernel=3, **{where: 0.25})
    task = make_task(net, (8, 8, 1), 3)
    w = jax.tree.map(jnp.abs, random_weights(task.init(KEY)))  # the ReLU sets nothing to 0
    x = jnp.ones((4, 8, 8, 1))
    whole, with_dropout = (task.apply(w, x, key).features for key in (None, jax.random.key(0)))
    kept = np.asarray(with_dropout) > 0
    assert 0.2 < 1 - kept.mean() < 0.3
    np.testing.assert_allclose(with_dropout[kept], whole[kept] / 0.75, rtol=1e-4)


def test_pfl_cnn_has_its_published_dropout_rates():
    net = nets.pfl_cnn(10)
    assert (net.map_dropout, net.dense_dropout) == (0.25, 0.5)
