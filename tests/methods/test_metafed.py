"""MetaFed: the local work of its stages in NumPy, models in turn, and training alone."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import local_work

from fedjax_lab import tree
from fedjax_lab.methods import metafed
from fedjax_lab.methods.metafed import Private, Server
from fedjax_lab.types import State

OWN, PASSED = (toys.random_weights(toys.TASK.init(KEYS.init), seed) for seed in (5, 6))


def methods(task=toys.TASK, **settings):
    """The methods of the three stages."""
    alone, accumulate, personalize = toys.make("metafed", task, **settings)(7)
    assert (alone.rounds, accumulate.rounds, personalize.rounds) == (1, 5, 1)
    return alone.method, accumulate.method, personalize.method


def turn(method, keeps, trained=True):
    """The upload, what the client keeps, and the training of a turn, with its loss at OWN."""
    message = Server(PASSED, jnp.array(trained))
    upload, kept, [call], batch = local_work(method, message, Private(OWN, jnp.array(keeps)))
    batch = batch._replace(references=call.options["references"](batch))
    return upload, kept, call, call.loss(OWN, batch, None)[0], batch


def expected_loss(lam, batch):
    own, passed = (naive.weights_of(w) for w in (OWN, PASSED))
    x, y = np.asarray(batch.x), np.asarray(batch.y)
    apart = naive.features(own, x) - naive.features(passed, x)
    return naive.gradient(own, x, y)[0] + lam * np.mean(apart**2)


def share_right(w, batch):
    return np.mean(naive.predict(naive.weights_of(w), np.asarray(batch.x)) == np.asarray(batch.y))


@pytest.mark.slow
def test_a_turn_of_a_client_against_numpy():
    """A client that keeps its model learns from the features of the last one."""
    _, method, _ = methods(lam=2.0)
    assert method.extra.one_by_one
    for keeps, trained, start, lam in (
        (True, True, OWN, 2.0),
        (False, True, PASSED, 0.0),
        (False, False, OWN, 0.0),
        (True, False, OWN, 0.0),
    ):
        upload, kept, call, loss, batch = turn(method, keeps, trained)
        toys.same(call.weights, start)
        np.testing.assert_allclose(loss, expected_loss(lam, batch), rtol=1e-5)
        toys.same((upload, kept.w_i), (jax.tree.map(lambda a: a + 0.125, start),) * 2)
        assert kept.keeps == keeps
    stacked = jax.tree.map(lambda a: a[None], upload)
    toys.same(metafed.pass_on(None, stacked, None), Server(upload, jnp.array(True)))


@pytest.mark.slow
def test_personalization_weighs_the_distance_by_the_validation_accuracies():
    _, _, method = methods(lam=2.0)
    upload, kept, call, loss, batch = turn(method, True)
    a_i, a_p = share_right(OWN, batch), share_right(PASSED, batch)
    assert a_i != a_p and upload == ()
    lam = 0 if a_p <= a_i and a_p < 0.5 else 2 * 10 ** min(1, 5 * (a_p - a_i)) / 10
    np.testing.assert_allclose(loss, expected_loss(lam, batch), rtol=1e-5)
    toys.same(kept.w_i, jax.tree.map(lambda a: a + 0.125, OWN))


@pytest.mark.parametrize(
    ("a_i", "a_p", "lam"),
    [(0.4, 0.3, 0), (0.3, 0.3, 0), (0.9, 0.7, 0.01), (0.2, 0.3, 10**-0.5), (0.2, 0.9, 1)],
)
def test_trust(a_i, a_p, lam):
    assert metafed.trust(jnp.float32(a_i), jnp.float32(a_p)) == pytest.approx(lam, rel=1e-5)


def test_a_client_keeps_its_model_if_it_is_better_than_the_threshold():
    for threshold, above in ((0.0, True), (1.0, False)):
        method, _, _ = methods(threshold=threshold, alone_epochs=3)
        private = Private(OWN, jnp.array(False))
        upload, kept, [call], batch = local_work(method, (), private)
        assert call.options == {"epochs": 3} and upload == ()
        assert share_right(kept.w_i, batch) > 0 and kept.keeps == above


@pytest.mark.slow
@pytest.mark.parametrize("share_bn", [False, True])
def test_batch_norm_layers_are_passed_on_only_with_share_bn(share_bn):
    _, method, _ = methods(toys.NORM, share_bn=share_bn)
    shape = toys.NORM.init(KEYS.init)
    own, passed = (toys.random_weights(shape, seed) for seed in (5, 6))
    message = Server(passed, jnp.array(True))
    _, _, [call], _ = local_work(method, message, Private(own, jnp.array(False)))
    got, named = tree.by_name(call.weights), map(tree.by_name, (own, passed))
    of_client, of_message = named
    for name, a in got.items():
        kept = "BatchNorm" in name and not share_bn
        toys.same(a, (of_client if kept else of_message)[name])


@pytest.mark.exhaustive
def test_models_that_nobody_keeps_are_trained_in_turn():
    _, method, _ = methods(threshold=1.0)
    alone = State((), Private(tree.repeat(OWN, toys.C), jnp.zeros(toys.C, bool)))
    accumulate = toys.make("metafed", toys.TASK)(7)[1]
    state = accumulate.start(KEYS.init, toys.C, alone, {})
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 2, state)
    w = naive.weights_of(OWN)
    for t in range(2):
        for i in naive.cohort(toys.make("fedavg"), t):
            w = naive.sgd(w, *naive.data_of(i))
    naive.close(state.server.w_p, w)


@pytest.mark.exhaustive
def test_clients_that_keep_their_models_train_alone_without_the_distance():
    _, method, _ = methods(toys.NORM, lam=0.0)
    w = tree.repeat(toys.NORM.init(KEYS.init), toys.C)
    server = Server(tree.take(w, 0), jnp.array(False))
    state = State(server, Private(w, jnp.ones(toys.C, bool)))
    plan = toys.PLAN._replace(cohort=toys.C)
    state, _ = toys.player(method, plan=plan)(KEYS, 0, 3, state)
    alone, _ = toys.player(toys.make("local"), plan=plan)(KEYS, 0, 3)
    toys.close(state.private.w_i, alone.private, rtol=1e-5, atol=1e-6)
