"""Compares Ditto with FedAvg and Local in special cases, and with plain NumPy."""

import naive
import pytest
import toys
from naive import KEYS
from rounds import by_hand, one_client, rounds

from fedjax_lab import losses, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.types import State


@pytest.mark.exhaustive
def test_lam_0_gives_the_personal_models_of_local_training():
    """The local clients shuffle as those of Ditto do in the second training of a round."""
    risk = losses.risk(toys.NORM)

    def local(w_t, client, work):
        return work.train(w_t, risk, epochs=0), work.train(client.private, risk)

    def init(key, num_clients):
        w = toys.NORM.init(key)
        return State(w, tree.repeat(w, num_clients))

    alone = fedavg(toys.NORM, local)._replace(init=init)
    state, _ = toys.player(toys.make("ditto", lam=0.0))(KEYS, 0, 3)
    toys.same(state.private, toys.player(alone)(KEYS, 0, 3)[0].private)


def proximal_sgd(v, center, lam, i):
    return naive.sgd(v, *naive.data_of(i), lambda u: [lam * a for a in naive.sub(u, center)])


@pytest.mark.slow
def test_against_numpy():
    lam, method = 0.7, toys.make("ditto", toys.TASK, lam=0.7)
    v = [naive.first_weights()] * toys.C

    def train(i, w, x, y):
        v[i] = proximal_sgd(v[i], w, lam, i)
        return naive.sgd(w, x, y)

    w, state = by_hand(method, 3, train), rounds(method, 3)
    naive.close(state.server, w)
    for i in range(toys.C):
        naive.close(tree.take(state.private, i), v[i])


def test_a_new_client_trains_a_personal_model_from_the_global_one():
    method = toys.make("ditto", toys.TASK, lam=0.7)
    w = toys.TASK.init(KEYS.init)
    message, untrained = method.newcomer(State(w, ()))
    toys.same((message, untrained), (w, w))
    message, v = one_client(method.join, w, 1)
    toys.same(message, w)
    first = naive.first_weights()
    naive.close(v, proximal_sgd(first, first, 0.7, 1))
