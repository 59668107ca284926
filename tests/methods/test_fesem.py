"""Tests FeSEM against NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from rounds import averages, different_models

from fedjax_lab import tree
from fedjax_lab.methods.fesem import Server


def distance(v, w):
    return sum(((a - b) ** 2).sum() for a, b in zip(v, w, strict=True))


@pytest.mark.slow
def test_fesem_against_numpy():
    """A client is in a random group at first, then at the center nearest to its last model."""
    mu = 0.3
    method = toys.make("fesem", toys.TASK, num_clusters=2, mu=mu)
    state, _ = toys.player(method, plan=naive.FULL)(naive.KEYS, 0, 5)
    group = np.asarray(method.init(naive.KEYS.init, toys.C).server.group)
    assert sorted(np.bincount(group)) == [4, 4]
    centers, last, moved = [naive.first_weights()] * 2, {}, False
    for t in range(5):
        ids = naive.cohort(method, t)
        models, chosen = [], []
        for i in ids:
            k = group[i]
            if i in last:
                k = int(np.argmin([distance(last[i], c) for c in centers]))
                moved |= k != group[i]
            c = centers[k]
            pull = lambda w: naive.add([0 * a for a in c], naive.sub(w, c), mu)  # noqa: B023, E731
            models.append(naive.sgd(c, *naive.data_of(i), extra=pull))
            chosen.append(k)
        member = np.zeros((2, toys.C))
        member[chosen, ids] = 1
        centers = averages(member, ids, models, centers)
        last |= dict(zip(ids, models, strict=True))
    assert moved
    for i, w in last.items():
        naive.close(tree.take(state.server.models, i), w)
    for k in range(2):
        naive.close(tree.take(state.server.centers, k), centers[k])
    assert set(np.flatnonzero(state.server.trained)) == set(last)


def test_a_client_gets_the_center_nearest_to_its_last_model_or_that_of_its_group():
    method, (models, arrays) = toys.make("fesem", toys.TASK), different_models()
    group, trained = jnp.arange(toys.C) % 2, jnp.arange(toys.C) < 5
    server = Server(tree.take(models, jnp.array([6, 7])), models, trained, group)
    sent = jax.jit(jax.vmap(method.round[0].send, (None, 0)))(server, jnp.arange(toys.C))
    for i in range(toys.C):
        near = np.argmin([distance(arrays[i], arrays[k]) for k in (6, 7)])
        k = 6 + (near if i < 5 else i % 2)
        naive.close(tree.take(sent, i), arrays[k])
