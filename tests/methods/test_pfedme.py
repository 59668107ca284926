"""Tests pFedMe against FedAvg and NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import different_models

from fedjax_lab import tree


def personal_model(w, x, y, lam, steps, lr):
    theta = w
    for _ in range(steps):
        gradient = naive.gradient(theta, x, y)[1]
        theta = naive.add(theta, naive.add(gradient, naive.sub(theta, w), lam), -lr)
    return theta


@pytest.mark.slow
def test_pfedme_against_numpy():
    lam, steps, lr, beta = 2.0, 3, 0.1, 0.7
    method = toys.make("pfedme", toys.TASK, lam=lam, inner_steps=steps, inner_lr=lr, beta=beta)
    w = naive.first_weights()
    last = [w] * toys.C
    for t in range(3):
        models = []
        for i in (ids := naive.cohort(method, t)):
            x, y = naive.data_of(i)

            def envelope(v, i=i, x=x, y=y):
                last[i] = personal_model(v, x, y, lam, steps, lr)
                return [lam * a for a in naive.sub(v, last[i])]

            models.append(naive.descend(w, envelope))
        mean = naive.mean_by_size(ids, models)
        w = naive.add([(1 - beta) * a for a in w], mean, beta)
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 3)
    naive.close(state.server, w)
    for i in range(toys.C):
        naive.close(tree.take(state.private, i), last[i])


def test_the_server_steps_along_the_mean_update():
    beta, ids = 0.7, jnp.array([6, 1, 3])
    method, (models, arrays) = toys.make("pfedme", toys.TASK, beta=beta), different_models()
    cohort, w_t = tree.take(toys.POPULATION, ids), tree.take(models, 0)
    after = jax.jit(method.round[0].aggregate)(w_t, tree.take(models, ids), cohort)
    mean = naive.mean(np.asarray(cohort.weight), [arrays[i] for i in (6, 1, 3)])
    naive.close(after, naive.add([(1 - beta) * a for a in arrays[0]], mean, beta))
