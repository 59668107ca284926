"""Tests FedRep: rounds against NumPy, and heads of new clients."""

import jax
import naive
import optax
import pytest
import toys
from naive import KEYS
from rounds import by_hand, one_client

from fedjax_lab import tree
from fedjax_lab.simulation import simulate


def test_head_in_eval_mode_freezes_the_running_statistics():
    method = toys.make("fedrep", head_epochs=2, body_epochs=0, head_in_eval_mode=True)
    state = simulate.init(method, KEYS, toys.C)
    head = tree.take(state.private, 0)
    upload, private = one_client(method.round[0].local, state.server, 0, head, toys.PLAN)
    toys.same(upload, state.server)
    assert float(tree.sq_norm(optax.tree.sub(private, head))) > 1e-8


@pytest.mark.slow
def test_fedrep_against_numpy():
    """[:2] is the body, [2:] is the head."""
    method = toys.make("fedrep", toys.TASK, head_epochs=3, body_epochs=2)
    heads = [naive.first_weights()[2:]] * toys.C

    def train(i, w, x, y):
        body = w[:2]
        heads[i] = naive.descend(heads[i], lambda h: naive.gradient(body + h, x, y)[1][2:], steps=3)
        body_gradient = lambda b: naive.gradient(b + heads[i], x, y)[1][:2]  # noqa: E731
        return naive.descend(body, body_gradient, steps=2) + heads[i]

    w = by_hand(method, 2, train)
    state, sums = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    assert float(sums.steps) == 2 * 3 * (3 + 2)
    for i in range(toys.C):
        naive.close(tree.join(state.server, tree.take(state.private, i)), w[:2] + heads[i])


def test_a_new_client_trains_a_new_head_on_the_shared_body():
    """The head is trained by hand for the epochs of a round; the shared body does not change."""
    method = toys.make("fedrep", toys.TASK, head_epochs=naive.STEPS)
    body = simulate.init(method, KEYS, toys.C).server
    same_body, trained = one_client(method.join, body, 1)
    toys.same(same_body, body)
    fresh = toys.TASK.init(jax.random.key(0))
    first = naive.weights_of(fresh._replace(params={**body.params, "head": fresh.params["head"]}))

    def gradient_of_head(w):
        _, (*_, B, b) = naive.gradient(w, *naive.data_of(1))
        return [-naive.DECAY * w[0], -naive.DECAY * w[1], B, b]  # the body has no weight decay

    expected = naive.descend(first, gradient_of_head)
    naive.close(tree.join(body, trained), expected)
