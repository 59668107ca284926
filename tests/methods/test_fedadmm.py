"""FedADMM: its invariant, FedDyn as a special case, and plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import PLAIN, rounds

from fedjax_lab import simulate, tree
from fedjax_lab.types import Weights

KEYS = naive.KEYS


@pytest.mark.exhaustive
def test_the_model_is_the_mean_of_all_augmented_models():
    """Checked after every round, with five of eight clients in each."""
    method = toys.make("fedadmm", rho=0.1)
    play, state = toys.player(method), None
    for t in range(3):
        state, _ = play(KEYS, t, 1, state)
        w, y = state.private
        augmented = tree.add(w, y, 10)
        toys.close(jax.tree.map(lambda a: a.mean(0), augmented), state.server.params, atol=1e-4)
    assert float(tree.sq_norm(y)) > 1e-6


@pytest.mark.slow
def test_fedadmm_with_all_clients_and_equal_sizes_is_feddyn():
    rows = np.arange(toys.C * 20).reshape(toys.C, 20)
    federation = toys.FEDERATION._replace(train=toys.as_rows(rows))
    plan = naive.FULL._replace(cohort=toys.C, batch_size=20)

    def play(name, **settings):
        method = toys.make(name, toys.TASK, **settings)
        lane = simulate.Lane(federation, simulate.population(federation, toys.K), KEYS)
        state = simulate.init(method, KEYS, toys.C)
        program = simulate.Program(method, plan, toys.VECTORIZED)
        args = lane, state, simulate.no_progress(), jnp.int32(0), jnp.int32(3)
        return jax.jit(simulate.play, static_argnums=0)(program, *args)[0]

    one = play("fedadmm", rho=0.1)
    other = play("feddyn", alpha=0.1, clip=1e6)
    toys.close(one.server, other.server.theta, rtol=1e-3, atol=1e-4)
    toys.close(one.private[1], tree.scale(-1, other.private), rtol=1e-3, atol=1e-4)


def test_fedadmm_against_numpy():
    rho, server_lr = 0.2, 0.7
    method = toys.make("fedadmm", toys.TASK, rho=rho, server_lr=server_lr)
    theta = naive.first_weights()
    w = {i: theta for i in range(toys.C)}
    y = {i: [np.zeros_like(a) for a in theta] for i in range(toys.C)}
    for t in range(3):
        ids, changes = naive.cohort(method, t), []
        for i in ids:

            def pull(v, i=i, theta=theta):
                return naive.add(y[i], naive.sub(v, theta), rho)

            new = naive.sgd(theta, *naive.data_of(i), pull, momentum=0.0)
            dual = naive.add(y[i], naive.sub(new, theta), rho)
            before = naive.add(w[i], y[i], 1 / rho)
            changes.append(naive.sub(naive.add(new, dual, 1 / rho), before))
            w[i], y[i] = new, dual
        theta = naive.add(theta, naive.mean(np.full(len(ids), 1 / toys.C), changes), server_lr)
    state = rounds(method, 3, PLAIN)
    naive.close(state.server, theta)
    for i in range(toys.C):
        kept = tree.take(state.private, i)
        naive.close(Weights(kept[0], {}), w[i])
        naive.close(Weights(kept[1], {}), y[i])
