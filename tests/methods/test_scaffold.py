"""Tests SCAFFOLD: its special cases, and rounds against NumPy."""

import naive
import numpy as np
import optax
import pytest
import toys
from naive import KEYS
from rounds import PLAIN, rounds
from slow_cases import slow_but

from fedjax_lab import optim, tree
from fedjax_lab.simulation import simulate
from fedjax_lab.types import Weights


@pytest.mark.exhaustive
def test_the_first_round_of_scaffold_is_that_of_fedavg():
    """All control variates are zero then. With the mean by size it is equal bit for bit."""
    one, _ = toys.player(toys.make("scaffold", weights="size"))(KEYS, 0, 1)
    other, _ = toys.player(toys.make("fedavg"))(KEYS, 0, 1)
    toys.same(one.server[0], other.server)


@pytest.mark.slow
def test_a_client_divides_its_drift_by_the_number_of_its_steps():
    """The client is alone in the first round, so that its model is the server's model."""
    plan = toys.PLAN._replace(cohort=1, optimizer=optim.sgd(0.05))
    method = toys.make("scaffold")
    state, _ = toys.player(method, plan=plan)(KEYS, 0, 1)
    w_0 = simulate.init(method, KEYS, toys.C).server[0]
    (i,) = np.flatnonzero(np.abs(state.private["head"]["kernel"]).sum((1, 2)))
    steps, most = (
        plan.epochs * -(-int(n) // plan.batch_size) for n in (toys.POPULATION.n[i], toys.N)
    )
    assert steps < most
    drift = optax.tree.scale(1 / (steps * 0.05), optax.tree.sub(w_0.params, state.server[0].params))
    toys.close(tree.take(state.private, i), drift, rtol=1e-3)


@pytest.mark.parametrize(
    "weights, momentum, server_lr, decay",
    slow_but(["uniform"], [("size", naive.MOMENTUM, 0.5, 1.0), ("uniform", 0.0, 0.9, 0.7)]),
)
def test_scaffold_against_numpy(weights, momentum, server_lr, decay):
    """In the last case both learning rates decay from round to round."""
    method = toys.make("scaffold", toys.TASK, server_lr=server_lr, weights=weights)

    def decayed(t):
        optimizer = optim.sgd(naive.LR * decay**t, momentum, naive.DECAY)
        rate = server_lr * decay**t
        made = toys.make("scaffold", toys.TASK, server_lr=rate, weights=weights)
        return made, {"optimizer": optimizer}

    w = naive.first_weights()
    c = [np.zeros_like(a) for a in w]
    c_i = {i: c for i in range(toys.C)}
    for t in range(4):
        ids, lr = naive.cohort(method, t), naive.LR * decay**t
        models, changes = [], []
        for i in ids:
            correction = naive.sub(c, c_i[i])
            how = {"momentum": momentum, "lr": lr}
            y = naive.sgd(w, *naive.data_of(i), lambda v, correction=correction: correction, **how)
            K = naive.STEPS
            effective_steps = (K - momentum * (1 - momentum**K) / (1 - momentum)) / (1 - momentum)
            new = naive.add(naive.sub(c_i[i], c), naive.sub(w, y), 1 / (lr * effective_steps))
            changes.append(naive.sub(new, c_i[i]))
            c_i[i] = new
            models.append(y)
        uniform = naive.mean(np.full(len(ids), 1 / len(ids)), models)
        mean = uniform if weights == "uniform" else naive.mean_by_size(ids, models)
        w = naive.add(w, naive.sub(mean, w), server_lr * decay**t)
        c = naive.add(c, naive.mean(np.full(len(ids), 1 / toys.C), changes))
    plan = PLAIN if momentum == 0 else naive.FULL
    state = rounds(method, 4, plan, scheduled=None if decay == 1 else decayed)
    naive.close(state.server[0], w, rtol=1e-3)
    naive.close(Weights(state.server[1], {}), c, rtol=1e-3, atol=1e-4)
    for i in range(toys.C):
        control = tree.take(state.private, i)
        naive.close(Weights(control, {}), c_i[i], rtol=1e-3, atol=1e-4)
