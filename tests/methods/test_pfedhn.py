"""Tests pFedHN, whose clients take part one after another."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from hypernetworks import first, flat, one_round

from fedjax_lab import optim, simulate, tree
from fedjax_lab.methods import hfedf
from fedjax_lab.models.hypernetwork import generate
from fedjax_lab.types import Exchange, State, Weights


def test_each_upload_is_aggregated_before_the_next_message_is_sent():
    """Each client is sent the number of clients before it; the order is that of the sample."""
    plain = toys.make("fedavg", toys.TASK)

    def local(position, client, work):
        return (position, client.id), ()

    def aggregate(server, uploads, cohort):
        position, ids = uploads
        assert position.shape == ids.shape == cohort.n.shape == (1,)
        count, order = server
        return count + 1, order.at[position[0]].set(ids[0])

    exchange = Exchange(lambda server, id: server[0], local, aggregate, one_by_one=True)
    method = plain._replace(round=(exchange,))
    start = State((jnp.int32(0), jnp.full(6, -1)), ())
    state, _ = toys.player(method)(naive.KEYS, 0, 1, start)
    population = simulate.population(toys.FEDERATION, toys.K)
    ids, _ = method.sample(jax.random.fold_in(naive.KEYS.cohort, 0), None, population, 5)
    assert state.server[1].tolist() == [*ids.tolist(), -1]


@pytest.mark.slow
def test_pfedhn_against_numpy():
    """Each client starts from the newest theta; momentum and decay apply to all weights."""
    lr, decay, momentum, clip = 0.02, 0.01, 0.9, 0.5
    method = toys.make(
        "pfedhn",
        toys.TASK,
        server_lr=lr,
        server_decay=decay,
        server_momentum=momentum,
        clip=clip,
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


@pytest.mark.exhaustive
def test_pfedhn_with_one_client_is_hfedf(monkeypatch):
    """pFedHN has Adam instead of SGD and no clipping; hFedF has ReLU and no moving average."""
    monkeypatch.setattr(optim, "sgd", lambda lr, momentum, decay: optim.adam(lr, decay))
    monkeypatch.setattr(hfedf, "ACTIVATION", jax.nn.relu)
    alone = toys.FEDERATION._replace(train=toys.as_rows(toys.FEDERATION.train[:1]))
    plan = toys.PLAN._replace(cohort=1)
    step = {"server_lr": 0.01, "server_decay": 1e-3}
    one = toys.make("pfedhn", clip=0.0, **step)
    start = simulate.init(one, naive.KEYS, 1)
    passed, sums = toys.player(one, plan=plan, federation=alone)(naive.KEYS, 0, 3, start)
    assert float(tree.sq_norm(tree.sub(passed.server.x, start.server.x))) > 1e-2
    for grad_align in (False, True):  # the weight of a single gradient is 1
        other = toys.make("hfedf", ema=1.0, grad_align=grad_align, **step)
        state = simulate.init(other, naive.KEYS, 1)
        state = state._replace(server=state.server._replace(x=start.server.x))
        actual, others = toys.player(other, plan=plan, federation=alone)(naive.KEYS, 0, 3, state)
        toys.close(actual.server.x, passed.server.x, rtol=1e-4, atol=1e-5)
        toys.close(actual.server.stats, passed.server.stats, rtol=1e-4)
        toys.close(others, sums, rtol=1e-4)


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
