"""FedBABU: the constant head, the body compared with plain NumPy, and tuning."""

import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import by_hand, one_client, rounds

from fedjax_lab import tree
from fedjax_lab.simulation import simulate


@pytest.mark.slow
def test_the_body_matches_numpy_and_the_head_never_changes():
    """In the list of arrays, [:2] is the body and [2:] the head."""
    method, head = toys.make("fedbabu", toys.TASK), naive.first_weights()[2:]

    def train(i, w, x, y):
        return naive.descend(w[:2], lambda b: naive.gradient(b + head, x, y)[1][:2]) + head

    w, state = by_hand(method, 3, train), rounds(method, 3)
    toys.same(state.private, simulate.init(method, KEYS, toys.C).private)
    naive.close(tree.join(*method.newcomer(state)), w)


@pytest.mark.parametrize(
    "tuned, part", [("all", slice(0, 4)), ("body", slice(0, 2)), ("head", slice(2, 4))]
)
def test_a_client_tunes_the_chosen_part_before_it_is_scored(tuned, part):
    method = toys.make("fedbabu", toys.TASK, tuned=tuned, tune_epochs=2)
    body, private = method.newcomer(simulate.init(method, KEYS, toys.C))
    w = naive.first_weights()

    def gradient_of_part(v):
        whole = [*w[: part.start], *v, *w[part.stop :]]
        return naive.gradient(whole, *naive.data_of(1))[1][part]

    w[part] = naive.descend(w[part], gradient_of_part, steps=2)
    naive.close(tree.join(*one_client(method.tune, body, 1, private)), w)
    assert np.abs(w[part][0] - naive.first_weights()[part][0]).max() > 1e-3
