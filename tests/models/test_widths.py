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
from fedjax_lab.models import nets, widths
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Batch, Weights

K = 3


class Residual(nn.Module):
    """Convolutions with BatchNorm, a stream to which two of them are added, and a dense layer."""

    widths: tuple[int, int, int] = (4, 6, 5)  # of the stream, inside of the block, before the head
    act: str = "silu"

    @nn.compact
    def __call__(self, x, train: bool = False):
        stream, inner, last = self.widths
        act = getattr(nn, self.act)
        x = act(nn.Conv(stream, (3, 3))(x))
        y = nn.BatchNorm(use_running_average=not train)(self.conv(inner, x))
        y = self.conv(stream, act(y))
        x = act(x + nn.BatchNorm(use_running_average=not train)(y))
        z = act(nn.Dense(last)(nn.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)))
        return nn.Dense(K, name="head")(z), z

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
        chosen = [np.flatnonzero(units[places]) for places in known.of_leaf(name, leaf.ndim)]
        free = [np.arange(n) for n in leaf.shape[: leaf.ndim - len(chosen)]]
        return leaf[np.ix_(*free, *chosen)]

    return tree.map_named(one, weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer, start", [(optax.sgd(0.1, momentum=0.9), 0), (optax.adamw(0.01), 3)]
)
def test_masked_weights_train_as_a_narrower_model(optimizer, start):
    """A residual net: what is left out stays 0, and the rest is that of the narrower net."""
    with jax.enable_x64(True):
        shape, rng = (4, 4, 2), np.random.default_rng(0)
        task = make_task(Residual(), shape, K, dtype=jnp.float64)
        small = make_task(Residual((2, 3, 3)), shape, K, dtype=jnp.float64)
        first = task.init(jax.random.key(0))
        first = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), first)
        known = widths.of_task(task)
        units = widths.of_part(known, lambda i, n: widths.window(0.5, start, n))
        assert sorted(known.sizes) == [4, 5, 6]  # the stream is one group
        x, y = rng.normal(size=(7, *shape)), rng.integers(0, K, 7)
        masked = trained(task, widths.masked(known, units, first), optimizer, x, y)
        expected = trained(small, sliced(known, units, first), optimizer, x, y)
        outside = jax.tree.map(jnp.subtract, masked, widths.masked(known, units, masked)).params
        assert all(not a.any() for a in jax.tree.leaves(outside))
        for a, b in zip(
            jax.tree.leaves(sliced(known, units, masked)), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-13)
        assert widths.num_bytes(known, units, first) == tree.num_bytes(expected)


@pytest.mark.slow
def test_levels_that_have_a_narrower_program():
    """Not those of nets whose random numbers depend on the width, and not many levels."""
    net = make_task(Residual(), (4, 4, 2), K)._replace(levels=(0.4, 0.5, 1.0))
    assert widths.levels(net) == (0.4, 0.5)
    many = tuple(np.linspace(0.1, 0.9, 9))
    assert widths.levels(net._replace(levels=many)) == ()
    assert widths.levels(make_task(Dropped(), (5,), K)._replace(levels=(0.5,))) == ()


class Dropped(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        z = nn.Dropout(0.5)(nn.relu(nn.Dense(40)(x)), deterministic=not train)
        return nn.Dense(K, name="head")(z), z


def test_units_of_a_net_whose_maps_are_flattened():
    known = widths.of_task(make_task(nets.simple_cnn(K), (20, 20, 1), K))
    assert known.sizes == (6, 16, 120, 84) and known.outputs == K
    given, made = known.axes["Dense_0"]
    np.testing.assert_array_equal(given, 6 + np.arange(2 * 2 * 16) % 16)
    np.testing.assert_array_equal(made, 22 + np.arange(120))
    np.testing.assert_array_equal(known.axes["Conv_0"][0], [226])  # the image is never left out


def test_windows_move_in_a_circle_and_visit_all_channels_equally_often():
    rows = np.array([widths.window(0.5, t, 5) for t in range(5)])
    np.testing.assert_array_equal(rows[3], [1, 0, 0, 1, 1])
    np.testing.assert_array_equal(rows.sum(0), [3] * 5)
    for rate, size in ((0.2, 10), (0.6, 5), (1 / 16, 16), (1 / 16, 6), (1.0, 7)):
        assert widths.number(jnp.float32(rate), size) == np.ceil(np.round(rate * size, 6))


class Plain(nn.Module):
    middle: str = "sigmoid"

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x)
        if self.middle == "norm":
            x = nn.GroupNorm(2)(x)
        elif self.middle == "layer_norm":
            x = nn.relu(nn.LayerNorm()(x))
        elif self.middle == "gate":
            x = x * nn.sigmoid(nn.Dense(4)(x))
        elif self.middle == "shifted":
            x = x + jnp.roll(nn.relu(nn.Dense(4)(x)), 1, axis=-1)
        else:
            x = getattr(nn, self.middle)(x)
        return nn.Dense(K, name="head")(x), x


def test_layer_norm_has_the_moments_of_the_part():
    """Against NumPy with the last three of four channels; the plain model has others."""
    task = make_task(Plain("layer_norm"), (5,), K)._replace(levels=(0.5, 0.75))
    assert widths.levels(task) == task.levels
    known, rng = widths.of_task(task), np.random.default_rng(0)
    units = widths.of_part(known, lambda i, n: widths.window(0.75, 1, n))
    w = jax.tree.map(lambda a: rng.normal(size=a.shape), task.init(jax.random.key(0)))
    x, kept = rng.normal(size=(6, 5)), slice(1, 4)
    dense, norm, head = (w.params[name] for name in ("Dense_0", "LayerNorm_0", "head"))
    h = (x @ dense["kernel"] + dense["bias"])[:, kept]
    h = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-6)
    h = np.maximum(h * norm["scale"][kept] + norm["bias"][kept], 0)
    part = widths.masked(known, units, w)
    logits = widths.applied(known, units, task.apply)(part, x).logits
    np.testing.assert_allclose(logits, h @ head["kernel"][kept] + head["bias"], rtol=1e-4)
    assert np.abs(logits - task.apply(part, x).logits).max() > 0.05


@pytest.mark.parametrize(
    "middle, words",
    [
        ("sigmoid", "not 0 if the layers before it output 0"),
        ("norm", "layer GroupNorm_0 has weights"),
        ("gate", "does not see the channels of layer Dense_0 as they are"),
        ("shifted", "are added"),
        ("tanh", "does not see the channels of layer Dense_0 as they are"),
    ],
)
def test_models_whose_parts_are_not_known_are_refused(middle, words):
    error = complaint(widths.of_task, make_task(Plain(middle), (5,), K))
    assert words in error and "use Dense and Conv layers, ReLU" in error
