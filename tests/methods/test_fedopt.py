"""Compares FedOpt with Algorithm 2 of its paper in plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import averaged_by_hand, rounds
from slow_cases import slow_but

RULES = {  # Algorithm 2 of the paper: (v_{t-1}, Delta_t^2, beta2) -> v_t
    "adam": lambda v, square, b2: b2 * v + (1 - b2) * square,
    "yogi": lambda v, square, b2: v - (1 - b2) * square * np.sign(v - square),
    "adagrad": lambda v, square, b2: v + square,
}


@pytest.mark.parametrize("rule", slow_but(["adam"], ["adam", "yogi", "adagrad"]))
def test_fedopt_against_numpy(rule):
    lr, b1, b2, tau = 0.05, 0.8, 0.95, 0.01
    method = toys.make(
        "fedopt", toys.TASK, server_optimizer=rule, server_lr=lr, beta1=b1, beta2=b2, tau=tau
    )
    w = naive.first_weights()
    m, v = [np.zeros_like(a) for a in w], [np.full_like(a, tau**2) for a in w]
    b1 = 0.0 if rule == "adagrad" else b1
    for t in range(3):
        step = naive.sub(averaged_by_hand(method, t, w), w)
        m = [b1 * a + (1 - b1) * d for a, d in zip(m, step, strict=True)]
        v = [RULES[rule](a, d * d, b2) for a, d in zip(v, step, strict=True)]
        w = [a + lr * c / (np.sqrt(s) + tau) for a, c, s in zip(w, m, v, strict=True)]
    naive.close(rounds(method, 3).server[0], w, rtol=1e-3, atol=1e-4)
