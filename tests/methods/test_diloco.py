"""Tests DiLoCo against AdamW, data-parallel training and NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from inputs import complaint
from naive import KEYS
from rounds import PLAIN, one_client, rounds

from fedjax_lab import optim
from fedjax_lab.methods.diloco import inner_rate

SAME = toys.FEDERATION._replace(  # all examples of the first client are alike: no order matters
    x=jnp.ones_like(toys.FEDERATION.x), y=jnp.zeros_like(toys.FEDERATION.y)
)


def alone(name, rounds, steps, optimizer, **hyper):
    """The model of one worker after these rounds, of so many steps each."""
    method = toys.make(name, toys.TASK, **hyper)
    plan = toys.PLAN._replace(cohort=1, steps=steps, optimizer=optimizer)
    state = method.init(KEYS.init, 1)
    server, private = state.server, jax.tree.map(lambda a: a[0], state.private)
    exchange = method.round[0]
    cohort = toys.turn(KEYS.init[None]).clients._replace(weight=jnp.ones(1))
    for _ in range(rounds):
        upload, private = one_client(
            exchange.local, exchange.send(server, 0), 0, private, plan, SAME
        )
        server = exchange.aggregate(server, jax.tree.map(lambda a: a[None], upload), cohort)
    return exchange.send(server, 0)


def test_one_worker_with_the_mean_as_outer_step_is_adamw_in_every_digit():
    diloco = alone("diloco", 4, 3, optim.adamw(0.1, 0.1), outer_lr=1.0, outer_momentum=0.0)
    toys.same(diloco, alone("fedavg", 1, 12, optim.adamw(0.1, 0.1)))


def test_one_step_of_sgd_is_data_parallel_training_with_nesterovs_momentum():
    method = toys.make("diloco", toys.TASK, outer_lr=0.5, outer_momentum=0.8)
    w, outer = naive.first_weights(), optax.sgd(0.5 * naive.LR, 0.8, nesterov=True)
    moments = outer.init(w)
    for t in range(3):
        ids = naive.cohort(method, t)
        gradients = [naive.gradient(w, *naive.data_of(i))[1] for i in ids]
        g = naive.mean_by_size(ids, gradients)
        updates, moments = outer.update(naive.add(g, w, naive.DECAY), moments)
        w = naive.add(w, updates)
    naive.close(rounds(method, 3, PLAIN._replace(epochs=1)).server[0], w)


@pytest.mark.slow
def test_diloco_against_numpy():
    """Clients take part in some rounds, and go on with their moments of the last one."""
    method = toys.make("diloco", toys.TASK, warmup=2, cosine=7)
    adam = optax.scale_by_adam(0.9, 0.999, 0.1)
    plan = PLAIN._replace(optimizer=optim.adamw(naive.LR, naive.DECAY, eps=0.1))
    w, m, private = naive.first_weights(), [0.0] * 4, {}
    for t in range(3):
        ids, models = naive.cohort(method, t), []
        for i in ids:
            v, s, moments = w, *private.get(i, (0, adam.init(w)))
            for _ in range(naive.STEPS):
                direction, moments = adam.update(naive.gradient(v, *naive.data_of(i))[1], moments)
                rate = min((s + 1) / 3, 1) * (1 + np.cos(np.pi * np.clip((s - 2) / 5, 0, 1))) / 2
                v = naive.add(v, naive.add(direction, v, naive.DECAY), -rate * naive.LR)
                s += 1
            private[i] = s, moments
            models.append(v)
        delta = naive.sub(w, naive.mean_by_size(ids, models))
        m = naive.add(delta, m, 0.9)
        w = naive.add(w, naive.add(delta, m, 0.9), -0.7)
    naive.close(rounds(method, 3, plan).server[0], w)


def test_the_inner_rate_rises_and_falls_to_zero():
    s = jnp.arange(12)
    expected = optax.join_schedules(
        [optax.linear_schedule(1 / 4, 1.0, 3), optax.cosine_decay_schedule(1.0, 7)], [3]
    )
    np.testing.assert_allclose(inner_rate(s, 3, 10), jax.vmap(expected)(s), atol=1e-6)
    np.testing.assert_array_equal(inner_rate(s, 0, 0), 1)


def test_an_optimizer_with_another_state_is_refused():
    method, plan = toys.make("diloco", toys.TASK), PLAIN._replace(optimizer=optim.nadam(0.1))
    assert "choose adamw, adam, or sgd" in complaint(rounds, method, 1, plan)
