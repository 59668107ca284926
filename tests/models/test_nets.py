"""Tests convolutional networks and perceptrons against formulas written out here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import CONV, KEY, close, convolve, dense, max_pool, normalize, pool_by_hand, relu
from toys import normal, random_weights

from fedjax_lab.models import alexnet, nets, vgg
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Weights


def random_task(net, shape):
    """A task, and random weights for it."""
    task = make_task(net, shape, net.num_classes)
    return task, random_weights(jax.eval_shape(task.init, KEY))


def check_against(net, shape, by_hand):
    """by_hand(params, variables, x) -> features, the input of the head."""
    task, weights = random_task(net, shape)
    x, p = normal(1, 2, *shape), weights.params
    features = by_hand(p, {"params": p, "batch_stats": weights.stats}, np.asarray(x))
    output, logits = jax.jit(task.apply)(weights, x), dense(features, p["head"])
    assert features.any()
    for actual, expected in ((output.features, features), (output.logits, logits)):
        close(actual, expected, atol=2e-4 * max(1, np.abs(expected).max()))


def convolved(p, variables, x, i, stride=1, pad=None):
    """Convolution number i with its bias, BatchNorm and ReLU."""
    y = convolve(x, p[f"Conv_{i}"]["kernel"], stride, pad=pad) + p[f"Conv_{i}"]["bias"]
    return relu(normalize(y, variables, i))


def dense_layers(p, variables, z, count, first):
    """Dense layers with BatchNorm, numbered from `first`, and ReLU."""
    for i in range(count):
        z = relu(normalize(dense(z, p[f"Dense_{i}"]), variables, first + i))
    return z


FEDBN = nets.fedbn_cnn(3).clone(channels=(2, 3, 4), widths=(5, 6))
WITHOUT_PADDING = CONV.clone(pooled=(True, True))


@pytest.mark.parametrize(
    ("net", "shape", "pooled", "pad"),
    [(FEDBN, (9, 8, 2), (True, True, False), 2), (WITHOUT_PADDING, (14, 14, 1), (True, True), 0)],
)
def test_a_convolutional_network_matches_numpy(net, shape, pooled, pad):
    def by_hand(p, variables, x):
        for i, pool in enumerate(pooled):
            x = convolved(p, variables, x, i, pad=pad)
            x = max_pool(x, 2, 2) if pool else x
        return dense_layers(p, variables, x.reshape(2, -1), len(net.widths), len(pooled))

    check_against(net, shape, by_hand)


@pytest.mark.slow
def test_alexnet_matches_numpy():
    """At this height adaptive pooling repeats pixels; the width is the 256 of FedPick."""
    layers = [(4, 2, True), (1, 2, True), (1, 1, False), (1, 1, False), (1, 1, True)]

    def by_hand(p, variables, x):
        assert [len(p[f"Conv_{i}"]["kernel"]) for i in range(5)] == [11, 5, 3, 3, 3]
        for i, (stride, pad, pooled) in enumerate(layers):
            x = convolved(p, variables, x, i, stride, pad)
            x = max_pool(x, 3, 2) if pooled else x
        assert x.shape == (2, 2, 7, 3)
        return dense_layers(p, variables, pool_by_hand(x, 6).reshape(2, -1), 2, 5)

    net = alexnet.AlexNet(3, channels=(2, 3, 4, 2, 3), widths=(5, 6))
    check_against(net, (100, 256, 3), by_hand)


def small_vgg(maps=(0.0, 0.0), dense=0.0, widths=(5,)):
    return vgg.VGG(3, ((2, 4), (4,)), maps, widths, dense)


@pytest.mark.slow
def test_a_vgg_matches_numpy():
    def by_hand(p, variables, z):
        for stage in (("Conv_0", "Conv_1"), ("Conv_2",)):
            for name in stage:
                z = relu(convolve(z, p[name]["kernel"]) + p[name]["bias"])
            z = max_pool(z, 2, 2)
        return relu(dense(z.reshape(2, -1), p["Dense_0"]))

    check_against(small_vgg(), (8, 9, 2), by_hand)


def test_a_perceptron_matches_numpy():
    def by_hand(p, variables, x):
        return dense_layers(p, variables, x, 1, 0)

    check_against(nets.mlp(3, width=5, norm=True), (4,), by_hand)


@pytest.mark.slow
def test_each_branch_of_a_concatenated_network_is_a_simple_cnn():
    """Branch b has the features of a simple CNN with its weights; the head uses them all."""
    x = normal(1, 3, 16, 16, 1)
    task, weights = random_task(nets.concat_cnn(4, branches=2), (16, 16, 1))
    output = jax.jit(task.apply)(weights, x)
    single, parts = make_task(nets.simple_cnn(4), (16, 16, 1), 4), []
    apply = jax.jit(single.apply)
    for b in (0, 1):
        named = [(kind, i) for kind in ("Conv", "Dense") for i in (0, 1)]
        branch = {f"{kind}_{i}": weights.params[f"{kind}_{2 * b + i}"] for kind, i in named}
        head = {"kernel": np.zeros((84, 4), "f"), "bias": np.zeros(4, "f")}
        parts.append(apply(Weights({**branch, "head": head}, {}), x).features)
    features = np.concatenate(parts, axis=-1)
    np.testing.assert_array_equal(output.features, features)
    close(output.logits, dense(features, weights.params["head"]), rtol=1e-3)
    first = jax.jit(task.init)(KEY).params
    assert not np.allclose(first["Conv_0"]["kernel"], first["Conv_2"]["kernel"])


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
def test_evaluation_is_pure_and_training_follows_the_key():
    """In evaluation dropout is off and BatchNorm uses its running statistics."""
    shape = (9, 9, 1)
    plain = CONV.clone(dense_norm=False)
    task, whole = (
        make_task(net, shape, 3)
        for net in (plain.clone(map_dropout=0.25, dense_dropout=0.5), plain)
    )
    weights, x = jax.jit(whole.init)(KEY), normal(0, 4, *shape)
    apply = jax.jit(task.apply)
    evaluated = apply(weights, x)
    jax.tree.map(np.testing.assert_array_equal, evaluated.stats, weights.stats)
    close(evaluated.logits, jax.jit(whole.apply)(weights, x).logits)
    close(evaluated.logits[:2], apply(weights, x.at[2:].set(0)).logits[:2])

    one, again, other = (apply(weights, x, jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(one.logits, again.logits)
    assert not np.allclose(one.logits, other.logits)
    assert jax.tree.structure(one.stats) == jax.tree.structure(weights.stats)
    assert not np.allclose(one.stats["BatchNorm_0"]["mean"], 0)
    moved = weights._replace(stats=one.stats)
    assert not np.allclose(apply(moved, x).logits, evaluated.logits)


# Dropout


def with_and_without(dropped, plain, shape, images, positive=False):
    """The features of the same images in training with dropout, and without it."""
    task, weights = random_task(plain, shape)
    if positive:  # the ReLU sets nothing to 0
        weights = jax.tree.map(jnp.abs, weights)
    x = jnp.ones((images, *shape)) if positive else normal(1, images, *shape)
    thin = jax.jit(make_task(dropped, shape, 3).apply)(weights, x, KEY).features
    return np.asarray(thin), np.asarray(jax.jit(task.apply)(weights, x).features)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["map_dropout", "dense_dropout"])
def test_each_kind_of_dropout_drops_features_at_its_rate(where):
    """A quarter of the features are dropped, and the others are divided by 0.75."""
    widths = (400,) if where == "dense_dropout" else ()
    net = nets.ConvNet(3, (8,), (False,), widths, kernel=3)
    dropped = net.clone(**{where: 0.25})
    thin, whole = with_and_without(dropped, net, (8, 8, 1), 4, positive=True)
    kept = thin > 0
    assert 0.2 < 1 - kept.mean() < 0.3
    close(thin[kept], whole[kept] / 0.75)


@pytest.mark.slow
def test_map_dropout_of_a_vgg_drops_whole_feature_maps():
    dropped = small_vgg(maps=(0.0, 0.5), widths=())
    thin, whole = with_and_without(dropped, small_vgg(widths=()), (8, 9, 2), 40)
    thin, whole = (a.reshape(40, 4, 4) for a in (thin, whole))  # [B, H W, C]
    alive, kept = whole.any(1), thin.any(1)  # [B, C]
    assert 0.3 < kept[alive].mean() < 0.7
    lost = alive & ~kept
    assert (lost.any(1) & kept.any(1)).any()  # the maps of one image are dropped independently
    close(thin, np.where(kept[:, None], 2 * whole, 0))


@pytest.mark.slow
def test_dense_dropout_of_a_vgg_is_before_the_first_and_after_the_last_dense_layer():
    dropped = small_vgg(dense=0.5, widths=(400,))
    thin, whole = with_and_without(dropped, small_vgg(widths=(400,)), (8, 9, 2), 4)
    assert 0.65 < (thin == 0).mean() < 0.85  # half by the ReLU, half of the others by dropout
    kept = (thin > 0) & (whole > 0)
    assert not np.allclose(thin[kept], 2 * whole[kept])  # dropout acts on the input as well
