"""Tests pFedHN, whose clients take part one after another."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from hypernetworks import first, flat, one_round

from fedjax_lab import tree
from fedjax_lab.models.hypernetwork import generate
from fedjax_lab.types import Weights


@pytest.mark.slow
def test_pfedhn_against_numpy():
    """Each client starts from the newest theta; momentum and decay apply to all weights."""
    lr, decay, momentum, clip = 0.02, 0.01, 0.9, 0.5
    method = toys.make(
        "pfedhn", toys.TASK, server_lr=lr, server_decay=decay, server_momentum=momentum, clip=clip
    )
    state = first(method)
    x, _ = jax.flatten_util.ravel_pytree(state.server.x)
    unravel = jax.flatten_util.ravel_pytree(state.server.x)[1]
    x, m, clipped = np.asarray(x, float), 0.0, False
    for t in range(2):
        for i in naive.cohort(method, t):
            now = unravel(jnp.asarray(x, jnp.float32))
            phi, pull = jax.vjp(lambda x: generate(x.theta, x.nu[i], jax.nn.relu), now)  # noqa: B023
            w = naive.weights_of(Weights(phi, {}))
            a, b, c, d = naive.sub(w, naive.sgd(w, *naive.data_of(i)))
            delta = {"Dense_0": {"bias": b, "kernel": a}, "head": {"bias": d, "kernel": c}}
            g = flat(pull(jax.tree.map(jnp.float32, delta))[0])
            clipped |= np.linalg.norm(g) > clip
            g = g * min(1.0, clip / np.linalg.norm(g)) + decay * x
            m = momentum * m + g
            x = x - lr * m
        state = one_round(method, state, t)
    assert clipped
    np.testing.assert_allclose(flat(state.server.x), x, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_running_statistics_pass_from_client_to_client():
    """Each client halves the statistics and adds its id; the server keeps the last ones."""
    method = toys.make("pfedhn")

    def local(phi, client, work):
        stats = jax.tree.map(lambda a: a / 2 + client.id, phi.stats)
        return Weights(tree.zeros(phi.params), stats), ()

    (exchange,) = method.round
    counting = method._replace(round=(exchange._replace(local=local),))
    state = first(method)
    expected = jax.tree.map(np.asarray, state.server.stats)
    for i in naive.cohort(method, 0):
        expected = jax.tree.map(lambda a: a / 2 + i, expected)  # noqa: B023
    after = one_round(counting, state)
    toys.close(after.server.stats, expected, rtol=1e-6)
    assert len(jax.tree.leaves(expected)) == 2


def test_the_order_of_the_clients_of_a_round_is_random():
    """The set of clients of a round is the same as in FedAvg."""
    method = toys.make("pfedhn")
    for t in range(3):
        assert set(naive.cohort(method, t)) == set(naive.cohort(toys.make("fedavg"), t))
    orders = {tuple(naive.cohort(method, t, toys.C)) for t in range(4)}
    assert len(orders) == 4 and all(sorted(o) == list(range(toys.C)) for o in orders)
