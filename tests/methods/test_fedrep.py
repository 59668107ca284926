"""Tests FedRep: training one part at a time, and rounds against NumPy."""

import jax
import naive
import pytest
import toys

from fedjax_lab import simulate, tree
from fedjax_lab.local import make_work

KEYS = naive.KEYS


def moved(a, b):
    return float(tree.sq_norm(tree.sub(a, b))) > 1e-8


def phases(**hyper):
    """Returns a client's model before and after a round with momentum and weight decay."""
    method = toys.make("fedrep", **hyper)
    state = simulate.init(method, KEYS, toys.C)
    client = tree.take(toys.POPULATION._replace(private=state.private), 0)

    @jax.jit
    def local():
        work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[0], toys.PLAN, KEYS.local)
        return method.round[0].local(state.server, client, work)

    upload, private = local()
    return tree.join(state.server, client.private), tree.join(upload, private)


@pytest.mark.slow
def test_fedrep_trains_one_part_at_a_time():
    before, after = phases(head_epochs=2, body_epochs=0)
    toys.same(before.params["Dense_0"], after.params["Dense_0"])
    toys.same(before.params["BatchNorm_0"], after.params["BatchNorm_0"])
    assert moved(before.params["head"], after.params["head"])
    assert moved(before.stats, after.stats)
    before, after = phases(head_epochs=0, body_epochs=2)
    toys.same(before.params["head"], after.params["head"])
    assert moved(before.params["Dense_0"], after.params["Dense_0"])
    assert moved(before.stats, after.stats)


def test_head_in_eval_mode_freezes_the_running_statistics():
    before, after = phases(head_epochs=2, body_epochs=0, head_in_eval_mode=True)
    toys.same(before.stats, after.stats)
    assert moved(before.params["head"], after.params["head"])


@pytest.mark.slow
def test_fedrep_against_numpy():
    """Plays two rounds with three of eight clients. [:2] is the body, [2:] is the head."""
    method = toys.make("fedrep", toys.TASK, head_epochs=3, body_epochs=2)
    first = naive.first_weights()
    body, heads = first[:2], [first[2:]] * toys.C
    for t in range(2):
        bodies = []
        for i in (ids := naive.cohort(method, t)):
            x, y = naive.data_of(i)
            head_part = lambda h, x=x, y=y: naive.gradient(body + h, x, y)[1][2:]  # noqa: E731, B023
            heads[i] = naive.descend(heads[i], head_part, steps=3)
            body_part = lambda b, i=i, x=x, y=y: naive.gradient(b + heads[i], x, y)[1][:2]  # noqa: E731
            bodies.append(naive.descend(body, body_part, steps=2))
        body = naive.mean_by_size(ids, bodies)
    state, sums = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    assert float(sums.steps) == 2 * 3 * (3 + 2)
    for i in range(toys.C):
        naive.close(tree.join(state.server, tree.take(state.private, i)), body + heads[i])


def test_a_new_client_trains_a_new_head_on_the_shared_body():
    """The head is trained by hand for the epochs of a round; the shared body does not change."""
    method = toys.make("fedrep", toys.TASK, head_epochs=naive.STEPS)
    body = simulate.init(method, KEYS, toys.C).server
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[1], naive.FULL, KEYS.score)
    same_body, trained = method.join(body, tree.take(toys.POPULATION, 1), work)
    toys.same(same_body, body)
    fresh = toys.TASK.init(jax.random.key(0))
    first = naive.weights_of(fresh._replace(params={**body.params, "head": fresh.params["head"]}))

    def gradient_of_head(w):
        _, (*_, B, b) = naive.gradient(w, *naive.data_of(1))
        return [-naive.DECAY * w[0], -naive.DECAY * w[1], B, b]  # the body has no weight decay

    expected = naive.descend(first, gradient_of_head)
    naive.close(tree.join(body, trained), expected)
