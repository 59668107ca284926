"""FedFomo: Local as a special case, plain NumPy, the models that are sent, and a bound."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS

from fedjax_lab import tree
from fedjax_lab.methods import fedfomo
from fedjax_lab.simulation import simulate

FEDERATION = toys.with_validation(toys.FEDERATION)


def by_hand(method, count, last):
    """The clients' models and P after rounds in which clients receive all other models.

    last: whether the reference is a client's last model instead of the one that it started from.
    """
    first = naive.first_weights()
    models, trained, P = [first] * toys.C, set(), np.zeros((toys.C, toys.C))
    before = models
    rows = np.asarray(FEDERATION.validation)
    for t in range(count):
        new, begun = {}, {}
        for i in naive.cohort(method, t):
            x, y = (np.asarray(a)[rows[i][rows[i] >= 0]] for a in (FEDERATION.x, FEDERATION.y))
            reference = models[i] if last else before[i]
            L_i = naive.gradient(reference, x, y)[0]
            v = {}
            for n in trained if reference is not models[i] else trained - {i}:
                difference = naive.sub(models[n], reference)
                length = np.sqrt(sum((a**2).sum() for a in difference))
                v[n] = (L_i - naive.gradient(models[n], x, y)[0]) / length
                P[i, n] += v[n] * (n != i)
            total, start = sum(max(a, 0) for a in v.values()), reference
            for n in v:
                if v[n] > 0:
                    start = naive.add(start, naive.sub(models[n], reference), v[n] / total)
            begun[i] = start if total > 0 else models[i]
            new[i] = naive.sgd(begun[i], *naive.data_of(i, FEDERATION))
        trained |= new.keys()
        before = [begun.get(i, model) for i, model in enumerate(before)]
        models = [new.get(i, model) for i, model in enumerate(models)]
    return models, P


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["previous", "last"])
def test_fedfomo_against_numpy(reference):
    method = toys.make("fedfomo", toys.TASK, models=toys.C - 1, reference=reference)
    models, P = by_hand(method, 4, reference == "last")
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 4)
    assert (P > 0).any() and (P < 0).any() and (P == 0).any()
    np.testing.assert_allclose(state.server.P, P, rtol=2e-4, atol=1e-5)
    for i in range(toys.C):
        naive.close(tree.take(state.private[0], i), models[i])
    kept = jnp.flatnonzero(state.server.trained)
    toys.same(tree.take(state.server.models, kept), tree.take(state.private[0], kept))


def server(P, trained):
    method = toys.make("fedfomo", toys.TASK)
    first = simulate.init(method, KEYS, len(P)).server
    return first._replace(P=jnp.asarray(P, jnp.float32), trained=jnp.asarray(trained))


def test_a_client_receives_the_most_useful_models_of_other_clients():
    P = np.tile([5.0, 4, 3, 2, 1, 0], (6, 1))
    chosen = jax.jit(fedfomo.chosen, static_argnums=2)
    sent = chosen(server(P, [True] * 6), 1, 3, 0.0)
    assert sent.ids.tolist() == [0, 2, 3]
    few = chosen(server(P, [False, True, False, True, False, False]), 1, 3, 0.0)
    assert few.ids.tolist() == [3, -1, -1]
    assert len(chosen(server(P, [True] * 6), 1, 9, 0.0).ids) == 5


def test_ties_and_exploration_choose_models_at_random():
    """In 300 draws, the models of the five other clients are sent about equally often."""
    useful = np.tile([5.0, 4, 3, 2, 1, 0], (6, 1))
    for P, epsilon in ((np.zeros((6, 6)), 0.0), (useful, 1.0)):
        first = server(P, [True] * 6)
        each = first._replace(key=jax.random.split(KEYS.init, 300))
        axes = (jax.tree.map(lambda _: None, first)._replace(key=0),)
        draw = jax.vmap(lambda server, epsilon=epsilon: fedfomo.chosen(server, 2, 2, epsilon), axes)
        sent = jax.jit(draw)(each).ids
        counts = np.bincount(np.asarray(sent).ravel(), minlength=6)
        assert counts[2] == 0 and counts.sum() == 600
        assert (np.abs(np.delete(counts, 2) - 120) < 40).all()
