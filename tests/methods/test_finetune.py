"""Tests fine-tuning before a client is scored."""

import functools

import jax
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, simulate, tree
from fedjax_lab.local import make_work

KEYS = naive.KEYS


@functools.cache
def averaged():
    """Returns the state and sums of FedAvg after three rounds."""
    return toys.player(toys.make("fedavg"))(KEYS, 0, 3)


def tuned(method):
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[1], naive.FULL, KEYS.score)
    w = simulate.init(method, KEYS, toys.C).server
    return w, method.tune(w, tree.take(toys.POPULATION, 1), work)[0]


def test_a_client_is_tuned_on_its_own_data_before_it_is_scored():
    before, after = tuned(toys.make("finetune", toys.TASK, epochs=naive.STEPS))
    naive.close(after, naive.sgd(naive.weights_of(before), *naive.data_of(1)))


@pytest.mark.slow
def test_tuning_does_not_change_the_trained_state():
    state, sums = toys.player(toys.make("finetune"))(KEYS, 0, 3)
    toys.same((state, sums), averaged())
    before, after = tuned(toys.make("finetune", toys.TASK, epochs=0))
    toys.same(before, after)


def test_scores_are_those_of_the_tuned_model():
    """The expected models are tuned by hand; the model before tuning has other scores."""
    method = toys.make("finetune", toys.TASK, epochs=naive.STEPS)
    state = simulate.init(method, KEYS, toys.C)
    score = functools.partial(evaluate.score, simulate.Program(method, naive.FULL, toys.VECTORIZED))
    scores = jax.jit(score)(simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS), state, 0)
    first = naive.weights_of(state.server)

    def num_correct(w, i):
        x, y = (np.asarray(a)[np.asarray(toys.FEDERATION.test[i])] for a in toys.FEDERATION[:2])
        return int((naive.predict(w, x) == y).sum())

    expected = [num_correct(naive.sgd(first, *naive.data_of(i)), i) for i in range(toys.C)]
    assert scores.test.correct[:, 0].astype(int).tolist() == expected
    assert expected != [num_correct(first, i) for i in range(toys.C)]
