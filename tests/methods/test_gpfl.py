"""Compares GPFL with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

from fedjax_lab import tree
from fedjax_lab.simulation.population import make_population

LAM, MU = 0.5, 0.2


def opened(parts, h, condition):
    """valve(h, c) by the formula."""

    def branch(name):
        dense, norm = parts[name]["dense"], parts[name]["norm"]
        a = np.maximum(condition @ dense["kernel"] + dense["bias"], 0)
        return (a - a.mean()) / np.sqrt(a.var() + 1e-5) * norm["scale"] + norm["shift"]

    return np.maximum((1 + branch("gamma")) * h + branch("beta"), 0)


def entropy(logits, y):
    """The mean cross-entropy."""
    return (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean()


def unit(rows):
    """The rows divided by their norms."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_against_numpy():
    """The conditions and the embeddings that pull are those that were sent."""
    method = toys.make("gpfl", toys.TASK, lam=LAM, mu=MU)
    state = method.init(KEYS.init, toys.C)
    shared, phi = state.server, tree.take(state.private, 0)
    (sent, kept), [(loss, start, _)], batch = (lambda u, k, c, b: ((u, k), c, b))(
        *local_work(method, shared, phi)
    )
    assert sent.params["head"]["kernel"] is None and kept.params["Dense_0"]["kernel"] is None
    w = start._replace(params=jax.tree.map(lambda a: a + 0.125, start.params))
    x, y = naive.data_of(0, toys.SKEWED)
    E_t = np.asarray(shared.params["generic"]["E"])
    parts, model = jax.tree.map(np.asarray, w.params["generic"]), naive.weights_of(w)
    share, h = naive.counts(0) / len(y), naive.features(model, x)
    h_P, h_G = opened(parts, h, share @ E_t), opened(parts, h, E_t.mean(0))
    expected = entropy(h_P @ model[2] + model[3], y)
    expected += entropy(unit(h_G) @ unit(parts["E"]).T, y)
    expected += LAM * np.linalg.norm(h_G - E_t[y], axis=1).mean()
    expected += MU / 2 * (naive.vector(parts) ** 2).sum()
    assert loss(w, batch, jax.random.key(0))[0] == pytest.approx(expected, rel=1e-4)
    client = tree.take(make_population(toys.SKEWED, toys.K), 0)._replace(private=phi)
    parts = jax.tree.map(np.asarray, shared.params["generic"])
    model = naive.weights_of(tree.join(shared, phi))
    h_P = opened(parts, naive.features(model, x), share @ E_t)
    got = method.predict(shared, client, jnp.asarray(x))
    np.testing.assert_allclose(got, h_P @ model[2] + model[3], rtol=1e-4, atol=1e-5)
