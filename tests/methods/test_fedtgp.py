"""Compares the server of FedTGP with plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from naive import KEYS
from scipy.special import log_softmax

from fedjax_lab import tree
from fedjax_lab.methods import fedtgp
from fedjax_lab.types import Weights

M, D = 3, 16
COHORT = tree.take(toys.POPULATION, jnp.arange(M))


def uploads():
    """Prototypes of three clients, of which no one has class 1 and the last has only class 0."""
    has = np.ones((M, toys.K))
    has[:, 1] = has[2, 1:] = 0
    return np.asarray(toys.normal(1, M, toys.K, D)) * has[..., None], has


def prototypes_of(F):
    F = jax.tree.map(np.asarray, F)
    hidden = np.maximum(F["e"] @ F["hidden"]["kernel"] + F["hidden"]["bias"], 0)
    return hidden @ F["out"]["kernel"] + F["out"]["bias"]


def contrast(F, C, has, delta):
    """The loss by its formula, for one prototype of a client after another."""
    every, losses = prototypes_of(F), []
    for i, c in zip(*np.nonzero(has), strict=True):
        z = -np.linalg.norm(C[i, c] - every, axis=1)
        z[c] -= delta
        losses.append(-log_softmax(z)[c])
    return np.mean(losses)


def margin_of(C, has):
    Q = [C[has[:, c] > 0, c].mean(0) for c in np.flatnonzero(has.any(0))]
    return max(np.linalg.norm(a - b) for a in Q for b in Q)


def test_the_loss_of_the_server_against_numpy():
    C, has = uploads()
    shapes = jax.eval_shape(lambda: fedtgp.first_net(KEYS.init, toys.K, D))
    F = toys.random_weights(Weights(shapes, {})).params
    got = jax.jit(fedtgp.contrast)(C, has, 2.5, F)
    assert got == pytest.approx(contrast(F, C, has, 2.5), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.5, 100.0])
def test_a_step_of_the_server_against_numpy(tau):
    """The margin is that of the centers of existing classes; the gradient by differences."""
    C, has = uploads()
    method = toys.make("fedtgp", toys.TASK, tau=tau, server_lr=0.5, server_epochs=1)
    server = method.init(KEYS.init, toys.C).server
    assert not server.exists.any()
    after = method.round[0].aggregate(server, (jnp.asarray(C), jnp.asarray(has)), COHORT)
    delta = min(tau, margin_of(C, has))
    assert (delta == tau) == (tau < 1)
    moved = after.F["e"] - server.F["e"]
    for place in ((1, 3), (2, 7)):

        def at(shift, place=place):
            F = jax.tree.map(np.array, server.F)
            F["e"][place] += shift
            return contrast(F, C, has, delta)

        slope = (at(0.01) - at(-0.01)) / 0.02
        assert moved[place] == pytest.approx(-0.5 * slope, rel=1e-2, abs=1e-5)
    every, exists = method.round[0].send(after, 0)
    np.testing.assert_allclose(every, prototypes_of(after.F), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(exists, np.ones(toys.K))


def test_one_class_alone_has_no_margin():
    assert jax.jit(fedtgp.margin)(jnp.ones((3, 2)), jnp.array([0.0, 1.0, 0.0])) < 1e-5
