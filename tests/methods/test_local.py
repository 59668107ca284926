"""Tests local training, in which clients share nothing."""

import naive
import toys
from naive import KEYS

from fedjax_lab import tree


def test_local_trains_every_client_alone():
    method = toys.make("local", toys.TASK)
    first = naive.first_weights()
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 1)
    for i in (0, 5):  # all clients train, whatever the cohort
        expected = naive.sgd(first, *naive.data_of(i))
        naive.close(tree.take(state.private, i), expected)
