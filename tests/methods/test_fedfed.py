"""FedFed: its losses and shared rows against NumPy, bytes, and FedAvg as a special case."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import rounds
import toys
from naive import KEYS
from scipy.special import log_softmax

from fedjax_lab import losses, streams, tree
from fedjax_lab.methods import fedfed
from fedjax_lab.simulation import simulate
from fedjax_lab.types import Batch, State

KEY, ROWS = jax.random.key(4), 9
SERVER = fedfed.first_state(toys.TASK, ROWS, KEYS.init, toys.C).server


def normal(key, shape):
    return np.asarray(jax.random.normal(key, shape))


def robust(q, x, eps=0.0):
    """q(x), and the mean and the logarithm of the variance of z, by the formulas."""
    q = jax.tree.map(np.asarray, q)

    def layer(name, h):
        return h @ q[name]["kernel"] + q[name]["bias"]

    both = layer("z", np.maximum(layer("encoder", x), 0))
    mu, log_var = both[:, : fedfed.LATENT], both[:, fedfed.LATENT :]
    h = np.maximum(layer("decoder", mu + np.exp(log_var / 2) * eps), 0)
    return layer("out", h), mu, log_var


def entropy(w, x, y):
    return -log_softmax(naive.logits(naive.weights_of(w), x), 1)[np.arange(len(y)), y].mean()


def test_the_loss_of_the_distillation_against_numpy():
    batch = toys.example()
    x, y = np.asarray(batch.x), np.asarray(batch.y)[:-2]
    eps = normal(streams.extra(KEY), (len(x), fedfed.LATENT))
    made, mu, log_var = robust(SERVER.w.params["q"], x, eps)
    x_s = x - made
    x_p = x_s + 0.3 * normal(streams.extra(KEY, 2), x.shape)
    f = fedfed.classifier(SERVER.w)
    kl = (mu**2 + np.exp(log_var) - 1 - log_var)[:-2].mean() / 2
    expected = 2 * entropy(f, x_p[:-2], y) + 0.4 * entropy(f, x[:-2], y)
    expected += 5 * (x_s[:-2] ** 2).mean() + 7 * kl
    value, _ = fedfed.distillation(toys.TASK, 0.3, 5.0, 7.0, SERVER.w, batch, KEY)
    assert value == pytest.approx(expected, rel=1e-4)


def test_a_client_shares_what_its_autoencoder_does_not_make_with_noise():
    """Padding is sent as zeros, whatever its rows hold."""
    batch, q = toys.example(ROWS), SERVER.w.params["q"]
    work = SimpleNamespace(draw=lambda size: batch, upload_key=lambda: KEY)
    sent, _ = fedfed.share(ROWS, 0.3, q, rounds.FIRST_CLIENT, work)
    x = np.asarray(batch.x)
    x_p = x - robust(q, x)[0] + 0.3 * normal(streams.extra(KEY), x.shape)
    np.testing.assert_allclose(sent.x[:-2], x_p[:-2], rtol=1e-4, atol=1e-5)
    y = batch.y.at[-2:].set(0)
    toys.same(sent, batch._replace(x=sent.x.at[-2:].set(0), y=y))
    server = fedfed.keep_rows(SERVER, tree.repeat(sent, 2), SimpleNamespace(id=jnp.array([3, 1])))
    toys.same(tree.take(server.rows, 3), sent)
    assert float(jnp.sum(server.rows.mask)) == 2 * (ROWS - 2)


def shared_rows():
    """Rows of all clients; the last two of each are padding, and no row has the class 3."""
    x = toys.normal(1, toys.C, ROWS, toys.D)
    y = jnp.tile(jnp.array([0, 0, 1, 0, 2, 2, 1, 3, 3]), (toys.C, 1))
    return Batch(x, y, jnp.tile((jnp.arange(ROWS) < ROWS - 2) * 1.0, (toys.C, 1)))


def loss_of_training(weight):
    caught, batch = [], toys.example()
    work = SimpleNamespace(frozen=shared_rows(), train=lambda w, loss: caught.append(loss))
    fedfed.train(toys.TASK, weight, None, rounds.FIRST_CLIENT, work)
    w = toys.TASK.init(KEYS.init)
    return caught[0](w, batch, KEY)[0], w, batch


def test_the_loss_of_the_training_against_numpy():
    value, w, batch = loss_of_training(3.0)
    rows = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), shared_rows())
    x, y, there = np.asarray(rows.x), np.asarray(rows.y), np.asarray(rows.mask) > 0
    of_class = [np.flatnonzero(there & (y == c)) for c in range(3)]  # three classes have rows
    k_class, k_row = jax.random.split(streams.extra(KEY))
    c = np.asarray(jax.random.randint(k_class, batch.y.shape, 0, 3))
    sizes = jnp.array([len(of_class[k]) for k in c])
    r = np.asarray(jax.random.randint(k_row, batch.y.shape, 0, sizes))
    places = np.array([of_class[k][j] for k, j in zip(c, r, strict=True)])
    own = entropy(w, np.asarray(batch.x)[:-2], np.asarray(batch.y)[:-2])
    places = places[:-2]  # as many as own rows
    expected = own + 3 * entropy(w, x[places], y[places])
    assert value == pytest.approx(expected, rel=1e-4)


def test_without_weight_the_loss_is_that_of_fedavg():
    value, w, batch = loss_of_training(0.0)
    toys.same(value, losses.risk(toys.TASK)(w, batch, KEY)[0])


@pytest.mark.exhaustive
def test_without_weight_the_training_is_fedavg():
    distill, share, train = toys.make("fedfed", toys.TASK, weight=0.0, rows=ROWS, distill_rounds=2)(
        3
    )
    assert (distill.rounds, share.rounds, share.reliable, train.rounds) == (2, 1, True, 3)
    before = simulate.init(distill.method, KEYS, toys.C)
    start = train.start(KEYS.init, toys.C, share.start(KEYS.init, toys.C, before, {}), {})
    federation = toys.FEDERATION._replace(frozen=shared_rows())
    state, sums = toys.player(train.method, federation=federation)(KEYS, 0, 3, start)
    expected, expected_sums = toys.player(toys.make("fedavg", toys.TASK))(KEYS, 0, 3)
    toys.close((state.server.w, sums), (expected.server, expected_sums), rtol=1e-5, atol=2e-6)


def test_rows_are_sent_once_in_each_direction():
    """A row has D inputs, a label and a mask. All other messages are models."""
    q, of_rows = tree.num_bytes(SERVER.w.params["q"]), 4 * ROWS * (toys.D + 2)
    distill, share, train = toys.make("fedfed", toys.TASK, rows=ROWS)(3)
    f = tree.num_bytes(toys.TASK.init(KEYS.init))
    assert toys.bytes_of(distill.method) == (f + q, f + q)
    assert toys.bytes_of(share.method._replace(init=distill.method.init)) == (of_rows, q)
    ids, _ = share.method.sample(KEYS.cohort, (), toys.POPULATION, 2)
    assert len(ids) == toys.C and tree.num_bytes(train.frozen(SERVER)) == toys.C * of_rows
    state = train.start(KEYS.init, toys.C, State(SERVER, ()), {})
    toys.same(train.method.round[0].send(state.server, 0), toys.TASK.init(KEYS.init))
