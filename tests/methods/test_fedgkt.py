"""Compares FedGKT with plain NumPy, and counts its bytes."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work
from scipy.special import log_softmax

from fedjax_lab.engine import counts
from fedjax_lab.methods import fedgkt

T, ALPHA, D = 2.0, 0.7, 16


def made():
    """The method, and random weights of the server and of a client."""
    method = toys.make(
        "fedgkt", toys.TASK, temperature=T, alpha=ALPHA, server_width=5, server_depth=1
    )
    W = toys.random_weights(jax.eval_shape(lambda: method.init(KEYS.init, 1)).server.W, 1)
    return method, W, toys.random_weights(jax.eval_shape(toys.TASK.init, KEYS.init), 2)


def distilled(z, o, y, alpha=ALPHA):
    """CE of the logits o, and the divergence from the teacher z, by the formulas."""
    log_p, log_q = log_softmax(z / T, 1), log_softmax(o / T, 1)
    apart = (np.exp(log_p) * (log_p - log_q)).sum(1).mean()
    return -log_softmax(o, 1)[np.arange(len(y)), y].mean() + alpha * T**2 * apart


@pytest.mark.slow
@pytest.mark.parametrize("trained", [0.0, 1.0])
def test_the_loss_and_the_upload_against_numpy(trained):
    """The teacher is the server's net on the features of the model before the training."""
    method, W, v = made()
    upload, kept, [(loss, start, options)], batch = local_work(method, (W, trained), v)
    x, y = naive.data_of(0, toys.SKEWED)
    own, server = naive.weights_of(v), naive.weights_of(W)
    z = naive.logits(server, naive.features(own, x))
    np.testing.assert_allclose(options["references"](batch), z, rtol=1e-3, atol=1e-3)
    w = toys.random_weights(v, 3)
    value, _ = loss(w, batch._replace(references=jnp.asarray(z)), jax.random.key(0))
    expected = distilled(z, naive.logits(naive.weights_of(w), x), y, ALPHA * trained)
    assert value == pytest.approx(expected, rel=1e-4)
    after = [a + 0.125 for a in own]
    naive.close(kept, after)
    np.testing.assert_allclose(upload.h, naive.features(after, x), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(upload.z, naive.logits(after, x), rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(upload.y, y)
    client = toys.POPULATION._replace(private=v)
    np.testing.assert_allclose(method.predict((W, 1.0), client, x), z, rtol=1e-3, atol=1e-3)


def test_the_server_draws_existing_rows():
    """Each row that exists is drawn equally often, and no other."""
    mask = np.array([1, 1, 0, 0, 1, 0, 1, 0])
    draw = jax.jit(jax.vmap(fedgkt.drawn, (0, None)))
    places = draw(jax.random.split(jax.random.key(0), 50), jnp.cumsum(jnp.asarray(mask)))
    share = np.bincount(np.ravel(places), minlength=len(mask)) / places.size
    np.testing.assert_allclose(share, mask / 4, atol=0.03)


def test_bytes_are_those_of_rows_and_logits():
    """Features, logits and label of each row up, and logits of each row down."""
    method = toys.make("fedgkt")
    up, down = toys.bytes_of(method)
    n = np.asarray(toys.FEDERATION.train.count).mean()
    lacking = counts.absent_bytes(method, [toys.FEDERATION])[0]
    np.testing.assert_allclose(
        (up, down) - lacking, (4 * n * (D + toys.K + 1), 4 * n * toys.K), rtol=1e-6
    )
