"""Compares FedCAC with FedAvg in a special case, and with plain NumPy."""

import jax
import naive
import numpy as np
import pytest
import toys
from rounds import averaged

from fedjax_lab import simulate, tree
from fedjax_lab.errors import BadInput

KEYS = naive.KEYS


@pytest.mark.slow
def test_without_critical_parameters_it_is_fedavg():
    state, sums = toys.player(toys.make("fedcac", tau=0.0))(KEYS, 0, 3)
    toys.same((state.server.w, sums), (averaged()[0].server, averaged()[1]))


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
    for i in range(toys.C):
        naive.close(method.round[0].send(state.server, i), sent(i, 3, beta, w, models, masks))
    assert len(models) > 4


def test_after_round_beta_critical_parameters_are_no_longer_shared():
    method = toys.make("fedcac", toys.TASK, beta=2)
    server = simulate.init(method, KEYS, toys.C).server
    noise = jax.tree.map(lambda a: toys.normal(1, *a.shape), server.models)
    masks = jax.tree.map(lambda a: toys.normal(2, *a.shape) > 0, server.models)
    uploads = server.w._replace(params=noise), masks
    server = method.round[0].aggregate(server, uploads, toys.POPULATION)._replace(t=3)
    got = method.round[0].send(server, 5).params
    mask, model = tree.take((masks, noise), 5)
    toys.close(got, jax.tree.map(jax.numpy.where, mask, model, server.w.params))


def test_with_equal_overlaps_sharing_also_ends_after_round_beta():
    """With two clients the mean overlap is the largest: no threshold lies between them."""
    method = toys.make("fedcac", toys.TASK, beta=2)
    server = simulate.init(method, KEYS, 2).server
    noise = jax.tree.map(lambda a: toys.normal(1, *a.shape), server.models)
    first = jax.tree.map(lambda a: toys.normal(2, *a.shape[1:]) > 0, server.models)
    masks = jax.tree.map(lambda a: jax.numpy.stack([a, jax.numpy.flip(a)]), first)
    two = tree.take(toys.POPULATION, np.arange(2))
    uploads = server.w._replace(params=noise), masks
    server = method.round[0].aggregate(server, uploads, two)

    def got(t):
        return method.round[0].send(server._replace(t=t), 0).params

    mask, model = tree.take((masks, noise), 0)
    alone = jax.tree.map(jax.numpy.where, mask, model, server.w.params)
    toys.close(got(3), alone)
    with pytest.raises(AssertionError):
        toys.close(got(1), alone)


def test_too_many_clients_are_rejected_before_anything_is_compiled():
    with pytest.raises(BadInput, match="method fedcac keeps a number for each pair of clients"):
        jax.eval_shape(lambda: simulate.init(toys.make("fedcac"), KEYS, 20_000))
