"""Optimizers against the rules of PyTorch, and gradient clipping."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from inputs import complaint

from fedjax_lab import optim, tree
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.optimizers import make_optimizer
from fedjax_lab.experiment.registry import NAMED
from fedjax_lab.types import Weights


@pytest.mark.parametrize(
    "momentum, steps, expected",
    [(0.0, 7, 7.0), (0.9, 1, 1.0), (0.9, 5, (5 - 0.9 * (1 - 0.9**5) / 0.1) / 0.1)],
)
def test_reach_is_fednovas_normalization_times_the_learning_rate(momentum, steps, expected):
    reach = jax.jit(lambda k: optim.reach(optim.sgd(0.3, momentum, 0.1), k))
    assert float(reach(steps)) == pytest.approx(0.3 * expected, rel=1e-5)
    adam = optim.reach(optim.adam(0.3, 0.1), steps)
    assert float(adam) == pytest.approx(0.3 * steps, rel=1e-5)


B1, B2, EPS = 0.9, 0.999, 1e-8


def adam_step(t, d, s):
    m, v = s["m"], s["v"] = B1 * s["m"] + (1 - B1) * d, B2 * s["v"] + (1 - B2) * d * d
    return m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + EPS)


def sgd_step(t, d, s):
    s["m"] = 0.9 * s["m"] + d  # d at first, not (1 - 0.9) d
    return s["m"]


def nesterov_step(t, d, s):
    return d + 0.9 * sgd_step(t, d, s)


def nadam_step(t, d, s):
    now, after = (B1 * (1 - 0.5 * 0.96 ** (i * 4e-3)) for i in (t, t + 1))
    s["product"] = s.get("product", 1.0) * now
    m, v = s["m"], s["v"] = B1 * s["m"] + (1 - B1) * d, B2 * s["v"] + (1 - B2) * d * d
    root = np.sqrt(v / (1 - B2**t)) + EPS
    old = after * m / (1 - s["product"] * after)
    return (d * (1 - now) / (1 - s["product"]) + old) / root


def radam_step(t, d, s):
    m, v = s["m"], s["v"] = B1 * s["m"] + (1 - B1) * d, B2 * s["v"] + (1 - B2) * d * d
    largest = 2 / (1 - B2) - 1
    length = largest - 2 * t * B2**t / (1 - B2**t)
    m = m / (1 - B1**t)
    if length <= 5:
        return m
    over = (length - 4) * (length - 2) * largest
    factor = np.sqrt(over / ((largest - 4) * (largest - 2) * length) * (1 - B2**t))
    return m * factor / (np.sqrt(v) + EPS)


def rmsprop_step(t, d, s):
    s["v"] = 0.99 * s["v"] + 0.01 * d * d
    s["m"] = 0.9 * s["m"] + d / (np.sqrt(s["v"]) + EPS)
    return s["m"]


def adagrad_step(t, d, s):
    s["v"] += d * d
    return d / (np.sqrt(s["v"]) + 1e-10)


def lion_step(t, d, s):
    sign = np.sign(0.9 * s["m"] + 0.1 * d)
    s["m"] = 0.99 * s["m"] + 0.01 * d
    return sign


RULES = {  # PyTorch's direction of a step, settings, whether weight decay is decoupled
    "sgd": (sgd_step, {"momentum": 0.9}, False),
    "adam": (adam_step, {}, False),
    "nesterov": (nesterov_step, {"momentum": 0.9}, False),
    "adamw": (adam_step, {}, True),
    "nadam": (nadam_step, {}, False),
    "radam": (radam_step, {}, False),
    "rmsprop": (rmsprop_step, {"momentum": 0.9}, False),
    "adagrad": (adagrad_step, {}, False),
    "lion": (lion_step, {}, True),
}


@pytest.mark.parametrize("size", [1.0, 1e-6])
@pytest.mark.parametrize("name", RULES)
def test_optimizer_steps_equal_those_of_pytorch(name, size):
    """Gradients have ordinary sizes or are tiny; then it matters what eps is added to."""
    step, settings, decoupled = RULES[name]
    lr, decay = 0.1, 0.5 * size
    local = {"optimizer": name, "lr": lr, "weight_decay": decay, **settings}
    tx, w = make_optimizer(resolve({"local": local}).local), 2.0
    params, s = jnp.float32(w), {"m": 0.0, "v": 0.0}
    opt, update = tx.init(params), jax.jit(tx.update)
    for t, g in enumerate(size * np.random.default_rng(0).normal(size=12), 1):
        updates, opt = update(jnp.float32(g), opt, params)
        params = optax.apply_updates(params, updates)
        shrunk = decay * w if decoupled else 0.0
        w -= lr * (step(t, g + (0.0 if decoupled else decay * w), s) + shrunk)
        np.testing.assert_allclose(params, w, rtol=2e-5)


@pytest.mark.parametrize("name", NAMED["optimizer"])
def test_every_optimizer_has_a_reach(name):
    local = resolve({"local": {"optimizer": name, "lr": 0.2, "weight_decay": 0.1}}).local
    made = make_optimizer(local)
    reach = float(optim.reach(made, 6))
    assert np.isfinite(reach) and reach > 0
    twice = make_optimizer({**local, "lr": 0.4})
    assert float(optim.reach(twice, 6)) == pytest.approx(2 * reach, rel=1e-5)


def test_settings_of_an_optimizer_are_checked():
    for name in ("adamw", "nadam", "radam", "rmsprop"):
        said = complaint(resolve, {"local": {"optimizer": name, "eps": -1.0}})
        assert "config.local.eps must be at least 0" in said
    said = complaint(resolve, {"local": {"optimizer": "adamw", "beta1": 1.0}})
    assert "config.local.beta1 must be at least 0 and below 1" in said
    assert "did you mean 'adamw'" in complaint(resolve, {"local": {"optimizer": "adanw"}})


# Clipping.


def test_a_gradient_is_clipped_by_its_global_norm():
    """PyTorch's clip_grad_norm_ adds 1e-6 to the norm, which matters for small gradients."""
    g = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
    assert optim.clip(g, 0.0) is g
    run = jax.jit(optim.clip)  # the norm is traced, as in a joint run
    toys.same(run(g, 0.0), g)
    for clip in (optim.clip, run):
        toys.same(clip(g, 5.5), g)
        toys.close(clip(g, 0.5), {"a": np.array([0.3, 0.0]), "b": np.array([[0.4]])}, rtol=1e-6)
    zero = tree.zeros(g)
    toys.same(optim.clip(zero, 0.5), zero)
    small = {"a": jnp.array([3e-6, 4e-6])}
    factor = 2e-6 / (5e-6 + 1e-6)
    toys.close(optim.clip(small, 2e-6), {"a": factor * np.array([3e-6, 4e-6])}, rtol=1e-5, atol=0)


@pytest.mark.slow
def test_scaffold_control_variates_are_means_of_clipped_gradients():
    """A control variate is a difference of weights divided by the reach, without clipping."""
    largest, is_clipped = 0.2, []
    method, w = toys.make("scaffold", toys.TASK), naive.first_weights()
    plan = naive.FULL._replace(clip=largest, optimizer=optim.sgd(naive.LR))
    state, _ = toys.player(method, plan=plan)(naive.KEYS, 0, 1)
    i = naive.cohort(method, 0)[0]
    x, y = naive.data_of(i)
    seen = []
    v = [a.copy() for a in w]
    for _ in range(naive.STEPS):
        g, longer = naive.clipped_gradient(v, x, y, largest)
        is_clipped.append(longer)
        seen.append(g)
        v = naive.add(v, seen[-1], -naive.LR)
    assert all(is_clipped)
    mean = naive.mean(np.full(naive.STEPS, 1 / naive.STEPS), seen)
    naive.close(Weights(tree.take(state.private, i), {}), mean, rtol=1e-3)


def test_a_layer_may_have_a_learning_rate_of_its_own():
    params = {"body": {"kernel": jnp.ones(2)}, "head": {"kernel": jnp.ones(2)}}
    gradient = jax.tree.map(lambda a: 2 * a, params)
    for make in (optim.sgd, optim.adamw):
        own = optim.scaled(make(0.1), "head", 5.0)
        updates, _ = own.update(gradient, own.init(params), params)
        for layer, lr in (("body", 0.1), ("head", 0.5)):
            plain = make(lr)
            expected, _ = plain.update(gradient, plain.init(params), params)
            np.testing.assert_allclose(
                updates[layer]["kernel"], expected[layer]["kernel"], rtol=1e-6
            )
