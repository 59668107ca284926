"""Compares FedMRL with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from inputs import complaint
from rounds import local_work
from scipy.special import log_softmax

from fedjax_lab.models.unlike import pooling

D1, D2 = 4, 16


def entropy(logits, y):
    """The mean cross-entropy."""
    return -log_softmax(logits, 1)[np.arange(len(y)), y].mean()


@pytest.mark.slow
def test_the_loss_and_the_prediction_against_numpy():
    """The heads get the first D1 and all numbers of the projected features of both models."""
    method = toys.make("fedmrl", toys.TASK, m_small=0.7, m_own=1.3, ratio=4)
    state = jax.eval_shape(lambda: method.init(naive.KEYS.init, 1))
    w = toys.random_weights(state.server, 1)
    v = toys.random_weights(jax.tree.map(lambda a: jnp.zeros(a.shape[1:]), state.private), 2)
    upload, kept, [(loss, both, _)], batch = local_work(method, w, v)
    x, y = naive.data_of(0, toys.SKEWED)
    a, b = naive.weights_of(w), naive.weights_of(v)
    assert a[2].shape == (D1, toys.K)
    h = np.concatenate([naive.features(a, x) @ pooling(D2, D1), naive.features(b, x)], 1)
    r = h @ v.params["projection"]["kernel"] + v.params["projection"]["bias"]
    o = r @ b[2] + b[3]
    expected = 0.7 * entropy(r[:, :D1] @ a[2] + a[3], y) + 1.3 * entropy(o, y)
    value, _ = loss(both, batch, jax.random.key(0))
    assert value == pytest.approx(expected, rel=1e-4)
    client = toys.POPULATION._replace(private=v)
    np.testing.assert_allclose(method.predict(w, client, batch.x), o, rtol=1e-3, atol=1e-3)
    naive.close(upload, [leaf + 0.125 for leaf in a])
    naive.close(kept, [leaf + 0.125 for leaf in b])


def test_ratio_beyond_the_features_is_refused():
    assert "ratio must be from 1 to the 16" in complaint(toys.make, "fedmrl", toys.TASK, ratio=17)
