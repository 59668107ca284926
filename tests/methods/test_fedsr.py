"""Tests FedSR: its loss against NumPy, its priors and its predictions."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from hypernetworks import KEY, first
from rounds import loss_of

from fedjax_lab import tree
from fedjax_lab.methods.fedsr import divergence, length
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Weights


def test_divergence_is_the_kl_divergence_of_two_gaussians():
    """The expected value is the mean log-ratio of the densities over 200,000 draws."""
    rng = np.random.default_rng(0)
    mu, sigma = rng.normal(size=(1, 3)), rng.uniform(0.5, 1.5, (1, 3))
    prior = {"mu": rng.normal(size=(4, 3)), "sigma": rng.normal(size=(4, 3)), "log_c": np.log(0.8)}
    actual = jax.jit(divergence)(mu, sigma, prior, jnp.array([2]))
    m, s = 0.8 * mu, 0.8 * sigma
    r_m, r_s = prior["mu"][2], np.log1p(np.exp(prior["sigma"][2]))
    z = m + s * rng.normal(size=(200_000, 3))
    log_ratio = np.log(r_s / s) - ((z - m) / s) ** 2 / 2 + ((z - r_m) / r_s) ** 2 / 2
    assert float(actual[0]) == pytest.approx(log_ratio.sum(1).mean(), rel=0.02)


def test_the_gradient_of_the_length_is_zero_at_the_origin():
    np.testing.assert_allclose(length(jnp.array([[3.0, 4.0], [0.0, 0.0]])), [5, 0], atol=1e-6)
    toys.same(jax.grad(lambda z: length(z).sum())(jnp.zeros((2, 3))), jnp.zeros((2, 3)))


@pytest.mark.parametrize("power", [1, 2])
def test_fedsr_loss_against_numpy(power):
    """The loss sums cross-entropy, length and divergence from the prior. Two rows are padding."""
    loss, w = loss_of(toys.make("fedsr", toys.TASK, l2r=0.3, cmi=0.2, l2r_power=power))
    prior = w.params["prior"]
    prior = {**prior, "mu": prior["mu"] + 0.3, "sigma": prior["sigma"] - 0.5, "log_c": jnp.log(1.2)}
    w = w._replace(params={**w.params, "prior": prior})
    batch = toys.example(12)
    value, _ = jax.jit(loss)(w, batch, KEY)
    x, y = np.asarray(batch.x, float)[:10], np.asarray(batch.y)[:10]
    net = naive.weights_of(Weights(w.params["net"], {}))
    mu = naive.features(net, x)
    s = x @ np.asarray(w.params["spread"]["kernel"]) + np.asarray(w.params["spread"]["bias"])
    sigma = np.log1p(np.exp(s))
    xi = np.asarray(jax.random.normal(jax.random.fold_in(KEY, 1), (12, 16)))[:10]
    z = mu + sigma * xi
    logits = z @ net[2] + net[3]
    ce = (np.log(np.exp(logits).sum(1)) - logits[np.arange(10), y]).mean()
    R_2 = (np.linalg.norm(z, axis=1) ** power).mean()
    R_c = float(jnp.mean(divergence(jnp.asarray(mu), jnp.asarray(sigma), prior, jnp.asarray(y))))
    assert float(value) == pytest.approx(ce + 0.3 * R_2 + 0.2 * R_c, rel=1e-4)


def test_priors_are_private():
    state = jax.eval_shape(lambda: first(toys.make("fedsr")))
    assert {name.split("/")[1] for name in tree.names(state.private)} == {"prior"}
    assert state.private.params["prior"]["mu"].shape == (toys.C, toys.K, 16)
    assert {*state.server.params} == {"net", "spread", "prior"}
    assert not jax.tree.leaves(state.server.params["prior"])


def test_predictions_are_mean_probabilities_over_samples():
    method = toys.make("fedsr", toys.TASK)
    state = first(method)
    client = tree.take(toys.POPULATION, 0)._replace(private=tree.take(state.private, 0))
    x = toys.FEDERATION.x[:6]
    predict = jax.jit(method.predict)
    p = np.exp(predict(state.server, client, x))
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    message, private = method.newcomer(state)
    again = predict(message, client._replace(private=private), x)
    np.testing.assert_allclose(np.exp(again), p, rtol=1e-5)
    w = state.server.params
    net = naive.weights_of(Weights(w["net"], {}))
    sigma = np.log1p(np.exp(np.asarray(x) @ w["spread"]["kernel"] + w["spread"]["bias"]))
    xi = np.asarray(jax.random.normal(jax.random.key(0), (20, 16)))
    logits = (naive.features(net, np.asarray(x)) + sigma * xi[:, None]) @ net[2] + net[3]
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(p, softmax.mean(0), rtol=1e-4, atol=1e-5)


def test_without_hidden_layers_the_spread_is_a_dense_layer_on_the_inputs():
    task = make_task(nets.mlp(toys.K, depth=0), (toys.D,), toys.K)
    play = toys.player(toys.make("fedsr", task))
    state, _ = jax.eval_shape(lambda: play(naive.KEYS, 0, 2))
    assert state.server.params["spread"]["kernel"].shape == (toys.D, toys.D)
