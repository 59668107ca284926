"""Tests of the parts of a model: masked weights compute what a narrower model computes."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from inputs import complaint

from fedjax_lab import tree
from fedjax_lab.models import nets, parts, widths
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Batch, Weights

K = 3


class Residual(nn.Module):
    """Convolutions with a norm, a stream to which two of them are added, and a dense layer."""

    widths: tuple[int, int, int] = (4, 6, 5)  # of the stream, inside of the block, before the head
    act: str = "silu"
    groups: int = 0  # of GroupNorm; 0: BatchNorm

    @nn.compact
    def __call__(self, x, train: bool = False):
        stream, inner, last = self.widths
        act = getattr(nn, self.act)
        x = act(nn.Conv(stream, (3, 3))(x))
        y = self.normalized(self.conv(inner, x), train)
        y = self.conv(stream, act(y))
        x = act(x + self.normalized(y, train))
        z = act(nn.Dense(last)(nn.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)))
        return nn.Dense(K, name="head")(z), z

    def normalized(self, x, train):
        if self.groups:
            return nn.GroupNorm(self.groups, use_fast_variance=False)(x)
        return nn.BatchNorm(use_running_average=not train)(x)

    def conv(self, channels, x):  # a bias has the gradient 0 before BatchNorm, up to rounding
        return nn.Conv(channels, (3, 3), use_bias=False)(x)


@partial(jax.jit, static_argnums=(0, 2))
def trained(task, weights, optimizer, x, y):
    """The weights after three steps, in double precision."""

    def loss(params, stats, key):
        out = task.apply(Weights(params, stats), x, key, jnp.ones(len(x)))
        return task.loss(out.logits, Batch(x, y, jnp.ones(len(x)))), out.stats

    moments = optimizer.init(weights.params)
    for step in range(3):
        key = jax.random.key(step)
        grads, stats = jax.grad(loss, has_aux=True)(*weights, key)
        updates, moments = optimizer.update(grads, moments, weights.params)
        weights = Weights(optax.apply_updates(weights.params, updates), stats)
    return weights


def sliced(known, units, weights):
    """The weights of the narrower model."""

    def one(name, leaf):
        chosen = [np.flatnonzero(units[places]) for places in known.leaf_places(name, leaf.ndim)]
        free = [np.arange(n) for n in leaf.shape[: leaf.ndim - len(chosen)]]
        return leaf[np.ix_(*free, *chosen)]

    return tree.map_named(one, weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer, start, inner, groups",
    [
        (optax.sgd(0.1, momentum=0.9), 0, 6, 0),
        (optax.adamw(0.01), 3, 6, 0),
        pytest.param(optax.adamw(0.01), 3, 8, 2, marks=pytest.mark.exhaustive),
    ],
)
def test_masked_weights_train_as_a_narrower_model(optimizer, start, inner, groups):
    """A residual net: what is left out stays 0, and the rest is that of the narrower net."""
    with jax.enable_x64(True):
        shape, rng = (4, 4, 2), np.random.default_rng(0)
        net = Residual((4, inner, 5), groups=groups)
        task = make_task(net, shape, K, dtype=jnp.float64)
        small = make_task(net.clone(widths=(2, inner // 2, 3)), shape, K, dtype=jnp.float64)
        first = task.init(jax.random.key(0))
        first = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), first)
        known = widths.task_widths(task)
        units = parts.part_units(known, lambda i, n: parts.window(0.5, start, n))
        assert sorted(known.sizes) == sorted([4, 5, inner])  # the stream is one group
        x, y = rng.normal(size=(7, *shape)), rng.integers(0, K, 7)
        of_part = task._replace(apply=parts.applied(known, units, task.apply))
        masked = trained(of_part, parts.masked(known, units, first), optimizer, x, y)
        expected = trained(small, sliced(known, units, first), optimizer, x, y)
        outside = jax.tree.map(jnp.subtract, masked, parts.masked(known, units, masked)).params
        assert all(not a.any() for a in jax.tree.leaves(outside))
        for a, b in zip(
            jax.tree.leaves(sliced(known, units, masked)), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-13)
        assert parts.num_bytes(known, units, first) == tree.num_bytes(expected)


@pytest.mark.slow
def test_levels_that_have_a_narrower_program():
    """Not those of nets whose random numbers depend on the width, and not many levels."""
    net = make_task(Residual(), (4, 4, 2), K)._replace(levels=(0.4, 0.5, 1.0))
    assert parts.levels(net) == (0.4, 0.5)
    many = tuple(np.linspace(0.1, 0.9, 9))
    assert parts.levels(net._replace(levels=many)) == ()
    assert parts.levels(make_task(Dropped(), (5,), K)._replace(levels=(0.5,))) == ()


class Dropped(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        z = nn.Dropout(0.5)(nn.relu(nn.Dense(40)(x)), deterministic=not train)
        return nn.Dense(K, name="head")(z), z


def test_units_of_a_net_whose_maps_are_flattened():
    known = widths.task_widths(make_task(nets.simple_cnn(K), (20, 20, 1), K))
    assert known.sizes == (6, 16, 120, 84) and known.outputs == K
    given, made = known.axes["Dense_0"]
    np.testing.assert_array_equal(given, 6 + np.arange(2 * 2 * 16) % 16)
    np.testing.assert_array_equal(made, 22 + np.arange(120))
    np.testing.assert_array_equal(known.axes["Conv_0"][0], [226])  # the image is never left out


def test_windows_move_in_a_circle_and_visit_all_channels_equally_often():
    rows = np.array([parts.window(0.5, t, 5) for t in range(5)])
    np.testing.assert_array_equal(rows[3], [1, 0, 0, 1, 1])
    np.testing.assert_array_equal(rows.sum(0), [3] * 5)
    for rate, size in ((0.2, 10), (0.6, 5), (1 / 16, 16), (1 / 16, 6), (1.0, 7)):
        assert parts.number(jnp.float32(rate), size) == np.ceil(np.round(rate * size, 6))


class Plain(nn.Module):
    middle: str = "sigmoid"

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x)
        if self.middle == "norm":
            x = nn.RMSNorm()(x)
        elif self.middle == "some":
            x = nn.Dense(4)(nn.GroupNorm(2)(x[:, :2]))
        elif self.middle == "layer_norm":
            x = nn.relu(nn.LayerNorm()(x))
        elif self.middle == "gate":
            x = x * nn.sigmoid(nn.Dense(4)(x))
        elif self.middle == "shifted":
            x = x + jnp.roll(nn.relu(nn.Dense(4)(x)), 1, axis=-1)
        else:
            x = getattr(nn, self.middle)(x)
        return nn.Dense(K, name="head")(x), x


@pytest.mark.slow
def test_layer_norm_has_the_moments_of_the_part():
    """Against NumPy with the last three of four channels; the plain model has others."""
    task = make_task(Plain("layer_norm"), (5,), K)._replace(levels=(0.5, 0.75))
    assert parts.levels(task) == task.levels
    known, rng = widths.task_widths(task), np.random.default_rng(0)
    units = parts.part_units(known, lambda i, n: parts.window(0.75, 1, n))
    w = jax.tree.map(lambda a: rng.normal(size=a.shape), task.init(jax.random.key(0)))
    x, kept = rng.normal(size=(6, 5)), slice(1, 4)
    dense, norm, head = (w.params[name] for name in ("Dense_0", "LayerNorm_0", "head"))
    h = (x @ dense["kernel"] + dense["bias"])[:, kept]
    h = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-6)
    h = np.maximum(h * norm["scale"][kept] + norm["bias"][kept], 0)
    part = parts.masked(known, units, w)
    logits = parts.applied(known, units, task.apply)(part, x).logits
    np.testing.assert_allclose(logits, h @ head["kernel"][kept] + head["bias"], rtol=1e-4)
    assert np.abs(logits - task.apply(part, x).logits).max() > 0.05


class Grouped(nn.Module):
    """A convolution and a dense layer with GroupNorm: by number of groups, and by their size."""

    widths: tuple[int, int] = (8, 12)

    @nn.compact
    def __call__(self, x):
        first, second = self.widths
        x = nn.GroupNorm(2, use_fast_variance=False)(nn.Conv(first, (2, 2))(x))
        x = nn.Dense(second)(jax.nn.relu(x).mean((1, 2)))
        x = jax.nn.relu(nn.GroupNorm(None, 3, use_scale=False, use_fast_variance=False)(x))
        return nn.Dense(K, name="head")(x), x


@pytest.mark.parametrize("divided", [{"num_groups": 2}, {"num_groups": None, "group_size": 2}])
def test_group_norm_divides_the_channels_of_a_part_anew(divided):
    """Against NumPy with six of eight channels in three groups of two, or in two of three."""
    rng, kept = np.random.default_rng(0), np.array([0, 2, 3, 5, 6, 7])
    x, units = rng.normal(size=(5, 3, 3, 8)).astype(np.float32), np.isin(np.arange(8), kept)
    p = {"scale": rng.normal(size=8), "bias": rng.normal(size=8)}
    norm = nn.GroupNorm(**divided).bind({"params": p})
    got = parts._group_norm(norm, jnp.float32(units), x * units)[..., kept]
    groups = 3 if "group_size" in divided else 2
    parted = x[..., kept].reshape(5, 9, groups, -1)
    moments = parted.mean((1, 3), keepdims=True), parted.var((1, 3), keepdims=True)
    y = ((parted - moments[0]) / np.sqrt(moments[1] + 1e-6)).reshape(5, 3, 3, 6)
    np.testing.assert_allclose(got, y * p["scale"][kept] + p["bias"][kept], atol=1e-5)
    assert np.abs(norm(x * units)[..., kept] - got).max() > 0.1  # the plain layer has others


@pytest.mark.exhaustive
def test_group_norm_of_a_part_is_that_of_a_narrower_model():
    """A random part, in double precision; without its own moments the logits are others."""
    with jax.enable_x64(True):
        rng, shape = np.random.default_rng(0), (3, 3, 2)
        task = make_task(Grouped(), shape, K, dtype=jnp.float64)
        small = make_task(Grouped((4, 6)), shape, K, dtype=jnp.float64)
        known = widths.task_widths(task)
        assert known.divisors == {"GroupNorm_0": 2, "GroupNorm_1": 3}
        units = parts.part_units(known, lambda i, n: jnp.asarray(rng.permutation(n) < n // 2))
        w = jax.tree.map(lambda a: rng.normal(size=a.shape), task.init(jax.random.key(0)))
        part, x = parts.masked(known, units, w), rng.normal(size=(5, *shape))
        narrow, run = sliced(known, units, w), parts.applied(known, units, task.apply)
        each = (run, part), (run, narrow), (small.apply, narrow), (task.apply, part)
        masked, sliced_, expected, plain = jax.jit(lambda: [f(w, x).logits for f, w in each])()
        np.testing.assert_allclose([masked, sliced_], [expected] * 2, rtol=1e-12)
        assert np.abs(plain - expected).max() > 0.1


def test_parts_that_a_group_norm_cannot_divide_are_refused():
    axes = {f"GroupNorm_{i}": 2 * (8 * i + np.arange(n),) for i, n in enumerate((8, 12))}
    known = widths.Widths((8, 12), K, axes, {"GroupNorm_0": 2, "GroupNorm_1": 3})
    parts.check_groups(known, (0.5, 1.0), "config.partition.capacity")
    for rate, words in [
        (0.125, "=0.125 leaves 1 of the 8 channels of layer GroupNorm_0"),
        (
            0.4,
            "GroupNorm whose number of channels must be a multiple of 3; the nearest rate is 0.5",
        ),
    ]:
        assert words in complaint(parts.check_groups, known, (1.0, rate), "config.m.widths")


@pytest.mark.parametrize(
    "middle, words",
    [
        ("sigmoid", "not 0 if the layers before it output 0"),
        ("norm", "layer RMSNorm_0 has weights"),
        ("some", "layer GroupNorm_0, a GroupNorm, sees only some channels"),
        ("gate", "does not see the channels of layer Dense_0 as they are"),
        ("shifted", "are added"),
        ("tanh", "does not see the channels of layer Dense_0 as they are"),
    ],
)
def test_models_whose_parts_are_not_known_are_refused(middle, words):
    error = complaint(widths.task_widths, make_task(Plain(middle), (5,), K))
    assert words in error and "use Dense and Conv layers, ReLU" in error
