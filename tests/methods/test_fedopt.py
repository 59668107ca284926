"""Compares FedOpt with plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import averaged_by_hand, rounds
from slow_cases import slow_but


@pytest.mark.parametrize("rule", slow_but(["adam"], ["adam", "yogi", "adagrad"]))
def test_fedopt_against_numpy(rule):
    lr, b1, b2, tau = 0.05, 0.8, 0.95, 0.01
    method = toys.make(
        "fedopt", toys.TASK, server_optimizer=rule, server_lr=lr, beta1=b1, beta2=b2, tau=tau
    )
    start = {"adam": 0.0, "yogi": 1e-6, "adagrad": tau**2}[rule]  # optax's initial value for Yogi
    w = naive.first_weights()
    m = [np.full_like(a, -start) for a in w]  # optax initializes m for the gradient, -step
    v = [np.full_like(a, start) for a in w]
    for t in range(3):
        step = naive.sub(averaged_by_hand(method, t, w), w)
        if rule == "adagrad":
            v = [a + d * d for a, d in zip(v, step, strict=True)]
            w = [a + lr * d / np.sqrt(s) for a, d, s in zip(w, step, v, strict=True)]
            continue
        if rule == "adam":
            v = [b2 * a + (1 - b2) * d * d for a, d in zip(v, step, strict=True)]
        else:
            v = [a - (1 - b2) * np.sign(a - d * d) * d * d for a, d in zip(v, step, strict=True)]
        m = [b1 * a + (1 - b1) * d for a, d in zip(m, step, strict=True)]
        k1, k2 = 1 - b1 ** (t + 1), 1 - b2 ** (t + 1)
        w = [a + lr * (c / k1) / (np.sqrt(s / k2) + tau) for a, c, s in zip(w, m, v, strict=True)]
    naive.close(rounds(method, 3).server[0], w, rtol=1e-3, atol=1e-4)
