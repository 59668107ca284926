"""FedBABU: the constant head, the body compared with plain NumPy, and tuning."""

import jax
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import simulate, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.local import make_work

KEYS = naive.KEYS


@pytest.mark.slow
def test_the_body_matches_numpy_and_the_head_never_changes():
    """In the list of arrays, [:2] is the body and [2:] the head."""
    method = toys.make("fedbabu", toys.TASK)
    first = naive.first_weights()
    body, head = first[:2], first[2:]
    for t in range(3):
        ids = naive.cohort(method, t)
        bodies = []
        for i in ids:
            of_body = lambda b, i=i: naive.gradient(b + head, *naive.data_of(i))[1][:2]  # noqa: E731
            bodies.append(naive.descend(body, of_body))
        body = naive.mean_by_size(ids, bodies)
    before = simulate.init(method, KEYS, toys.C)
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 3)
    toys.same(state.private, before.private)
    message, private = method.newcomer(state)
    naive.close(tree.join(message, private), body + head)


@pytest.mark.parametrize("tuned", ["all", "body", "head"])
def test_a_client_tunes_the_chosen_part_before_it_is_scored(tuned):
    method = toys.make("fedbabu", toys.TASK, tuned=tuned, tune_epochs=2)
    body, private = method.newcomer(simulate.init(method, KEYS, toys.C))
    client = tree.take(toys.POPULATION, 1)._replace(private=private)

    @jax.jit
    def tune():
        work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[1], naive.FULL, KEYS.score)
        return method.tune(body, client, work)

    part = {"all": slice(0, 4), "body": slice(0, 2), "head": slice(2, 4)}[tuned]
    w = naive.first_weights()

    def gradient_of_part(v):
        whole = [*w[: part.start], *v, *w[part.stop :]]
        return naive.gradient(whole, *naive.data_of(1))[1][part]

    w[part] = naive.descend(w[part], gradient_of_part, steps=2)
    naive.close(tree.join(*tune()), w)
    assert np.abs(w[part][0] - naive.first_weights()[part][0]).max() > 1e-3


def test_an_unknown_part_to_tune_is_an_error():
    with pytest.raises(BadInput, match="tuned cannot be 'heads'; did you mean 'head'"):
        toys.make("fedbabu", tuned="heads")
