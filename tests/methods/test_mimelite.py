"""Tests MimeLite and Mime against FedAvg and NumPy."""

import jax
import naive
import numpy as np
import optax
import pytest
import toys
from naive import KEYS
from rounds import PLAIN, rounds

from fedjax_lab import tree
from fedjax_lab.simulation import simulate


@pytest.mark.exhaustive
def test_the_full_gradient_does_not_depend_on_running_statistics():
    """It is computed in training mode, like the gradients of the steps."""
    method = toys.make("mimelite")
    play, state = toys.player(method), simulate.init(method, KEYS, toys.C)
    w, s = state.server
    moved = w._replace(stats=jax.tree.map(lambda a: a + 3.0, w.stats))
    one, _ = play(KEYS, 0, 1, state)
    other, _ = play(KEYS, 0, 1, state._replace(server=(moved, s)))
    toys.same(one.server[1], other.server[1])
    assert float(tree.sq_norm(one.server[1].ema)) > 1e-6


class Averages:
    """The moving averages of gradients and of their squares, with Adam's bias correction."""

    def __init__(self, rule, w, t=0):
        self.rule, self.m, self.v, self.t = rule, [0 * a for a in w], [0 * a for a in w], t

    def after(self, g):
        """Returns (direction, state) after the gradient g."""
        new = Averages(self.rule, g, self.t + 1)
        new.m = [0.7 * m + 0.3 * a for m, a in zip(self.m, g, strict=True)]
        new.v = [0.99 * v + 0.01 * a * a for v, a in zip(self.v, g, strict=True)]
        if self.rule == "momentum":
            return new.m, new
        of_m, of_v = 1 - 0.7**new.t, 1 - 0.99**new.t
        pairs = zip(new.m, new.v, strict=True)
        return [m / of_m / (np.sqrt(v / of_v) + 0.1) for m, v in pairs], new


@pytest.mark.parametrize("rule", ["momentum", pytest.param("adam", marks=pytest.mark.slow)])
def test_mimelite_against_numpy(rule):
    method = toys.make("mimelite", toys.TASK, base_optimizer=rule, beta=0.7, eps=0.1)
    w = naive.first_weights()
    state = Averages(rule, w)
    for t in range(3):
        ids = naive.cohort(method, t)
        data = [naive.data_of(i) for i in ids]
        models = [
            naive.descend(
                w, lambda v, xy=xy, s=state: s.after(naive.gradient(v, *xy)[1])[0], momentum=0.0
            )
            for xy in data
        ]
        g = naive.mean_by_size(ids, [naive.gradient(w, *xy)[1] for xy in data])
        w, (_, state) = naive.mean_by_size(ids, models), state.after(g)
    naive.close(rounds(method, 3, PLAIN).server[0], w)


@pytest.mark.slow
def test_mime_against_numpy():
    method = toys.make("mime", toys.TASK, beta=0.7)
    w = naive.first_weights()
    state = Averages("momentum", w)
    for t in range(3):
        ids = naive.cohort(method, t)
        data = [naive.data_of(i) for i in ids]
        c = naive.mean_by_size(ids, [naive.gradient(w, *xy)[1] for xy in data])

        def direction(v, xy, w=w, c=c, s=state):
            change = naive.sub(naive.gradient(v, *xy)[1], naive.gradient(w, *xy)[1])
            return s.after(naive.add(change, c))[0]

        models = [naive.descend(w, lambda v, xy=xy: direction(v, xy), momentum=0.0) for xy in data]
        w, state = naive.mean_by_size(ids, models), state.after(c)[1]
    naive.close(rounds(method, 3, PLAIN).server[0], w)


@pytest.mark.exhaustive
def test_one_full_step_of_mime_and_mimelite_move_the_server_alike():
    """After one step the mean is that of c, if all of a client's examples are in one batch."""
    plan = PLAIN._replace(epochs=1)
    for beta in (0.0, 0.7):
        one, other = (
            toys.player(toys.make(name, toys.TASK, beta=beta), plan=plan)(KEYS, 0, 1)[0].server
            for name in ("mime", "mimelite")
        )
        toys.close(one[0].params, other[0].params, rtol=1e-5, atol=1e-6)
    start = simulate.init(toys.make("mime", toys.TASK), KEYS, toys.C).server[0]
    assert float(tree.sq_norm(optax.tree.sub(one[0].params, start.params))) > 1e-6
