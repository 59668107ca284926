"""Compares FedExP with FedAvg in a special case, and with plain NumPy."""

import jax
import naive
import numpy as np
import toys
from rounds import PLAIN, rounds


def test_fedexp_against_numpy():
    """Each client has one class, so that updates disagree and eta_g exceeds 1."""
    rows = [np.flatnonzero(toys.FEDERATION.y[:400] == i % toys.K)[: 10 + i] for i in range(toys.C)]
    table = np.stack([np.pad(row, (0, toys.N - len(row)), constant_values=-1) for row in rows])
    federation = toys.FEDERATION._replace(train=toys.as_rows(table))
    method = toys.make("fedexp", toys.TASK)
    w, extrapolated = naive.first_weights(), 0
    for t in range(3):
        ids = naive.cohort(method, t, 5)
        p = naive.shares(ids, federation)
        models = [naive.sgd(w, *naive.data_of(i, federation), momentum=0.0) for i in ids]
        updates = [naive.sub(w, v) for v in models]
        delta = naive.mean(p, updates)
        norms = [sum((a * a).sum() for a in d) for d in (*updates, delta)]
        eta = max(1, np.dot(p, norms[:-1]) / (2 * (norms[-1] + 1e-3)))
        extrapolated += eta > 1
        last, w = w, naive.add(w, delta, -eta)
    assert extrapolated
    state = rounds(method, 3, PLAIN._replace(cohort=5), federation)
    naive.close(state.server[0], w)
    middle = [(a + b) / 2 for a, b in zip(w, last, strict=True)]
    naive.close(jax.jit(method.scored)(state.server, 0), middle)
    naive.close(method.newcomer(state)[0], middle)
