"""Compares FedCAC with FedAvg in a special case, and with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS

from fedjax_lab import tree
from fedjax_lab.simulation import simulate


def critical(before, after, tau):
    """The masks of the critical parameters, computed by sorting."""
    masks = []
    for a, b in zip(before, after, strict=True):
        value = np.abs((b - a) * b).ravel()
        mask = np.zeros(value.size, bool)
        mask[np.argsort(-value)[: int(tau * value.size)]] = True
        masks.append((mask & (value > 0)).reshape(a.shape))
    return masks


def overlap(a, b):
    differ = sum((x != y).sum() for x, y in zip(a, b, strict=True))
    return 1 - differ / (2 * sum(x.sum() for x in a))


def sent(i, t, beta, w, models, masks):
    """The message to client i in round t; `models` and `masks` are those of past participants."""
    if i not in models:
        return w
    pairs = {(j, k): overlap(masks[j], masks[k]) for j in models for k in models if j != k}
    mean, largest = np.mean(list(pairs.values())), max(pairs.values())
    threshold = mean + t / beta * (largest - mean) - 1e-6
    chosen = [i] + [j for j in models if j != i and pairs[i, j] >= threshold]
    shared = naive.mean(np.full(len(chosen), 1 / len(chosen)), [models[j] for j in chosen])
    return [np.where(m, a, b) for m, a, b in zip(masks[i], shared, w, strict=True)]


@pytest.mark.slow
def test_against_numpy():
    tau, beta = 0.4, 4
    method = toys.make("fedcac", toys.TASK, tau=tau, beta=beta)
    w, models, masks = naive.first_weights(), {}, {}
    for t in range(3):
        ids = naive.cohort(method, t)
        starts = [sent(i, t, beta, w, models, masks) for i in ids]
        new = [naive.sgd(v, *naive.data_of(i)) for i, v in zip(ids, starts, strict=True)]
        models |= dict(zip(ids, new, strict=True))
        masks |= {i: critical(v, m, tau) for i, v, m in zip(ids, starts, new, strict=True)}
        w = naive.mean_by_size(ids, new)
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 3)
    naive.close(state.server.w, w)
    send = jax.jit(method.round[0].send)
    for i in range(toys.C):
        naive.close(send(state.server, i), sent(i, 3, beta, w, models, masks))
    assert len(models) > 4


def test_after_round_beta_critical_parameters_are_no_longer_shared():
    """Also with two clients, whose mean overlap is the largest: no threshold lies between them."""
    method = toys.make("fedcac", toys.TASK, beta=2)
    server = simulate.init(method, KEYS, 2).server
    noise = jax.tree.map(lambda a: toys.normal(1, *a.shape), server.models)
    first = jax.tree.map(lambda a: toys.normal(2, *a.shape[1:]) > 0, server.models)
    masks = jax.tree.map(lambda a: jnp.stack([a, jnp.flip(a)]), first)
    two = tree.take(toys.POPULATION, np.arange(2))
    aggregate, send = jax.jit(method.round[0].aggregate), jax.jit(method.round[0].send)
    server = aggregate(server, (server.w._replace(params=noise), masks), two)
    mask, model = tree.take((masks, noise), 0)
    alone = jax.tree.map(jnp.where, mask, model, server.w.params)
    toys.close(send(server._replace(t=3), 0).params, alone)
    with pytest.raises(AssertionError):
        toys.close(send(server._replace(t=1), 0).params, alone)
