"""Tests fine-tuning before a client is scored."""

import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import one_client, scores

from fedjax_lab.simulation import simulate


def test_a_client_is_tuned_on_its_own_data_before_it_is_scored():
    before = toys.TASK.init(KEYS.init)
    untuned, tuned = (
        one_client(toys.make("finetune", toys.TASK, epochs=epochs).tune, before, 1)[0]
        for epochs in (0, naive.STEPS)
    )
    toys.same(untuned, before)
    naive.close(tuned, naive.sgd(naive.first_weights(), *naive.data_of(1)))


@pytest.mark.slow
def test_scores_are_those_of_the_tuned_model():
    """The expected models are tuned by hand; the model before tuning has other scores."""
    method = toys.make("finetune", toys.TASK, epochs=naive.STEPS)
    state = simulate.init(method, KEYS, toys.C)
    scored = scores(method, state, plan=naive.FULL)
    first = naive.weights_of(state.server)

    def num_correct(w, i):
        x, y = (np.asarray(a)[np.asarray(toys.FEDERATION.test[i])] for a in toys.FEDERATION[:2])
        return int((naive.predict(w, x) == y).sum())

    expected = [num_correct(naive.sgd(first, *naive.data_of(i)), i) for i in range(toys.C)]
    assert scored.test.correct[:, 0].astype(int).tolist() == expected
    assert expected != [num_correct(first, i) for i in range(toys.C)]
