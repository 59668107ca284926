"""FedDF: no steps and one equal teacher as special cases, and a comparison with plain NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from inputs import complaint
from naive import KEYS
from scipy.special import softmax

from fedjax_lab import tree
from fedjax_lab.methods import feddf
from fedjax_lab.simulation.client_work import Public

PUBLIC = Public(toys.FEDERATION, toys.PLAN)
COHORT = tree.take(toys.POPULATION, jnp.arange(2))._replace(
    key=jnp.stack([KEYS.local] * 2), weight=jnp.array([0.25, 0.75]), public=PUBLIC
)
TWO = (
    toys.random_weights(toys.TASK.init(KEYS.init), 5),
    toys.random_weights(toys.TASK.init(KEYS.init), 6),
)


def aggregated(models, cohort=COHORT, **settings):
    """The server's model after an exchange."""
    method = toys.make("feddf", toys.TASK, **settings)
    return method.round[0].aggregate(
        models[0], jax.tree.map(lambda *a: jnp.stack(a), *models), cohort
    )


def test_without_steps_feddf_is_fedavg():
    expected = tree.add(optax.tree.scale(0.25, TWO[0]), TWO[1], 0.75)
    naive.close(aggregated(TWO, server_steps=0), naive.weights_of(expected))


def test_a_teacher_equal_to_the_student_teaches_nothing():
    z = toys.TASK.apply(TWO[0], toys.FEDERATION.public[0]).logits
    slope = jax.grad(lambda logits: feddf.divergence(z, logits))(z)
    np.testing.assert_allclose(slope, 0, atol=1e-8)


@pytest.mark.slow
def test_a_step_of_feddf_against_numpy():
    """Adam's first step is the learning rate times the sign of the gradient."""
    mean = naive.weights_of(tree.add(optax.tree.scale(0.25, TWO[0]), TWO[1], 0.75))
    places = jax.random.randint(
        jax.random.fold_in(KEYS.local, 0), (128,), 0, len(toys.FEDERATION.public[1])
    )
    x = np.asarray(toys.FEDERATION.public[0])[np.asarray(places)]
    z = sum(naive.logits(naive.weights_of(w), x) for w in TWO) / 2
    g = naive.backward(mean, x, (naive.probabilities(mean, x) - softmax(z, 1)) / len(x))
    after = naive.weights_of(aggregated(TWO, server_steps=1, server_lr=0.01))
    for new, old, slope in zip(after, mean, g, strict=True):
        np.testing.assert_allclose(new, old - 0.01 * slope / (np.abs(slope) + 1e-8), atol=2e-5)


def test_lost_models_do_not_teach():
    x, task = toys.FEDERATION.public[0], toys.TASK
    models = jax.tree.map(lambda *a: jnp.stack(a), *TWO)
    z = feddf.teach(task, models, jnp.array([True, False]), x)
    np.testing.assert_allclose(z, task.apply(TWO[0], x).logits, rtol=1e-5, atol=1e-5)


def test_without_public_examples_the_error_names_the_setting():
    none = COHORT._replace(public=Public(toys.FEDERATION._replace(public=None), toys.PLAN))
    assert "--config.partition.public=0.1" in complaint(aggregated, TWO, none)


@pytest.mark.parametrize("x", [toys.FEDERATION.public[0]])
def test_public_examples_are_inputs_like_others(x):
    federation = toys.FEDERATION._replace(center=jnp.float32(1), scale=jnp.float32(2))
    public = Public(federation, toys.PLAN)
    places = jnp.array([5, 0, 190])
    np.testing.assert_allclose(public.batch(places).x, (x[places] - 1) * 2, rtol=1e-6)
    np.testing.assert_array_equal(public.outputs(lambda batch: batch.x), (x - 1) * 2)
    np.testing.assert_array_equal(
        public.outputs(lambda b: b.y, places), federation.public[1][places]
    )
