"""Tests Per-FedAvg against FedAvg, and each of its variants against NumPy."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import one_client, rounds
from slow_cases import exhaustive_but, in_ci

from fedjax_lab import losses, simulator, streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation.client_work import fetch, make_work

VARIANTS = ("first_order", "hessian_free", "exact")


def drawn(method, t, i, size):
    """Returns the examples D that the simulator draws for client i in round t."""
    key = streams.clients(KEYS.local, t, jnp.array([i]))[0]
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[i], naive.FULL, key)
    batch = work.draw(size)
    rows = np.asarray(batch.mask) > 0
    return np.asarray(batch.x)[rows], np.asarray(batch.y)[rows]


def hessian_times(w, g, x, y, delta):
    ahead, behind = (naive.gradient(naive.add(w, g, s), x, y)[1] for s in (delta, -delta))
    return [a / (2 * delta) for a in naive.sub(ahead, behind)]


@pytest.mark.parametrize("hessian", exhaustive_but(["exact", "hessian_free"], VARIANTS))
def test_per_fedavg_against_numpy(hessian):
    alpha, size, delta = 0.2, 12, 1e-3
    method = toys.make("per_fedavg", toys.TASK, inner_lr=alpha, hessian=hessian, inner_batch=size)
    w = [a.astype(np.float64) for a in naive.first_weights()]
    for t in range(3):
        models = []
        for i in (ids := naive.cohort(method, t)):
            x, y = naive.data_of(i)
            inner = drawn(method, t, i, size)
            assert len(inner[0]) == min(size, len(x))

            def meta(v, x=x, y=y, inner=inner):
                adapted = naive.add(v, naive.gradient(v, *inner)[1], -alpha)
                g = naive.gradient(adapted, x, y)[1]
                if hessian == "first_order":
                    return g
                return naive.add(g, hessian_times(v, g, *inner, delta), -alpha)

            models.append(naive.descend(w, meta))
        w = naive.mean_by_size(ids, models)
    naive.close(rounds(method, 3).server, w, rtol=1e-3, atol=1e-4)


def test_a_client_is_scored_after_one_inner_step_on_all_its_data():
    method = toys.make("per_fedavg", toys.TASK, inner_lr=0.3)
    w = toys.TASK.init(KEYS.init)
    adapted, _ = one_client(method.tune, w, 1)
    first = naive.first_weights()
    naive.close(adapted, naive.add(first, naive.gradient(first, *naive.data_of(1))[1], -0.3))


@pytest.mark.slow
def test_the_step_before_scoring_normalizes_by_the_batches_of_the_client():
    """The step is in training mode; the running statistics do not change."""
    plan = toys.PLAN._replace(batch_size=toys.N)  # one batch
    w, rows = toys.NORM.init(KEYS.init), toys.FEDERATION.train[1]
    w = w._replace(stats=jax.tree.map(lambda a: a + 3, w.stats))  # unlike those of the batch
    work, _ = make_work(toys.FEDERATION, rows, plan, KEYS.score)
    tuned, _ = toys.make("per_fedavg", inner_lr=0.3).tune(w, tree.take(toys.POPULATION, 1), work)
    batch = fetch(toys.FEDERATION, rows, plan)
    risk = losses.risk(toys.NORM)
    step = jax.grad(lambda p: risk(w._replace(params=p), batch, KEYS.score)[0])(w.params)
    toys.close(tuned.params, tree.add(w.params, step, -0.3))
    toys.same(tuned.stats, w.stats)


CONVOLUTIONAL = make_task(nets.digit_cnn(toys.K), (28, 28, 3), toys.K)


@pytest.mark.slow
@pytest.mark.parametrize("hessian", in_ci(["hessian_free"], ["first_order", "hessian_free"]))
def test_models_without_second_derivatives_can_be_trained(hessian):
    """The convolutions and batch normalization of this model have first derivatives only."""
    method = toys.make("per_fedavg", CONVOLUTIONAL, hessian=hessian)
    federation = toys.FEDERATION._replace(x=jnp.zeros((600, 28 * 28 * 3)))
    simulator(method, CONVOLUTIONAL, federation)  # traces a round


def test_exact_is_rejected_for_models_without_second_derivatives():
    with pytest.raises(BadInput, match="exact needs second derivatives, which this model does not"):
        toys.make("per_fedavg", CONVOLUTIONAL, hessian="exact")
