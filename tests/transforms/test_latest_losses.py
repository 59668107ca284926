"""Samplings that see the clients' losses: what the server keeps, and power of choice."""

from functools import partial

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from inputs import complaint
from rounds import rounds

from fedjax_lab import sampling
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.population import make_population
from fedjax_lab.transforms import latest_losses
from fedjax_lab.transforms.latest_losses import NEVER


def sampled(task, sample, name="fedavg"):
    return latest_losses.sampled(toys.make(name, task), task, sample)


def test_candidates_with_the_highest_losses_are_drawn():
    losses = jnp.arange(toys.C, dtype=jnp.float32).at[2].set(NEVER)
    choose = partial(sampling.power_of_choice, naive.KEYS.cohort, (), toys.POPULATION)
    ids, share = choose(3, losses, candidates=toys.C)
    assert ids.tolist() == [2, 7, 6]
    np.testing.assert_allclose(share, 1 / 3)
    few = choose(3, losses, candidates=3)[0].tolist()
    assert few == choose(3, -losses, candidates=3)[0].tolist()[::-1]  # the same three
    assert "must be at least 3, the cohort, got 2" in complaint(choose, 3, losses, candidates=2)
    small = toys.POPULATION._replace(n=jnp.ones(toys.C).at[jnp.array([1, 4])].set(1e6))
    ids, _ = sampling.power_of_choice(naive.KEYS.cohort, (), small, 2, losses, candidates=2)
    assert sorted(ids.tolist()) == [1, 4]  # drawn in proportion to their sizes


@pytest.mark.slow
def test_the_server_keeps_the_loss_of_each_client_before_it_last_trained():
    """Against NumPy: the model that was sent, on all training examples of the client."""
    method = sampled(toys.TASK, sampling.power_of_choice)
    assert not sampling.is_own(method.sample)
    w, losses = naive.first_weights(), np.full(toys.C, NEVER, np.float32)
    for t in range(3):
        population = make_population(toys.FEDERATION, toys.K)
        server = simulate.init(method, naive.KEYS, toys.C).server._replace(extra=losses)
        key = jax.random.fold_in(naive.KEYS.cohort, t)
        ids = [int(i) for i in method.sample(key, server, population, 3)[0]]
        data = [naive.data_of(i) for i in ids]
        losses[ids] = [naive.gradient(w, *xy)[0] for xy in data]
        w = naive.mean(np.full(3, 1 / 3), [naive.sgd(w, *xy) for xy in data])
    state = rounds(method, 3)
    naive.close(state.server.base, w)
    np.testing.assert_allclose(state.server.extra, losses, rtol=1e-4)
    assert 3 <= np.sum(losses < NEVER) <= 8


@pytest.mark.slow
def test_a_run_draws_clients_by_their_losses(tmp_path):
    """Two exchanges, private state, and a setting of the sampling."""
    run = {"sampling": "power_of_choice", "candidates": 5, "cohort": 2, "rounds": 2}
    built = toys.build(tmp_path, method={"name": "fediir"}, run=run)
    (stage,) = built.simulation.stages
    assert stage.method.round[0].updates is not stage.method.round[1].updates
    assert built.config.run.candidates == 5
    server = simulate.init(stage.method, naive.KEYS, 6).server
    assert server.extra.tolist() == [NEVER] * 6


@pytest.mark.parametrize(
    "privacy, words",
    [("local", "clients also upload counts"), ("example_level", "their examples outside of")],
)
def test_the_loss_is_not_sent_where_examples_are_protected(tmp_path, privacy, words):
    run = {"sampling": "power_of_choice", "cohort": 3}
    private = {"name": privacy, "noise": 1.0}
    assert words in complaint(toys.build, tmp_path, run=run, privacy=private)


def test_methods_without_a_model_to_score_are_refused():
    plain = toys.make("fedavg")._replace(predict=None)
    message = complaint(latest_losses.sampled, plain, toys.NORM, sampling.power_of_choice)
    assert "no models to score" in message
