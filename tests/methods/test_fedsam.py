"""Tests FedSAM against FedAvg and NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import check_averages, rounds

KEYS = naive.KEYS


@pytest.mark.slow
def test_fedsam_with_rho_0_is_fedavg():
    check_averages(toys.make("fedsam", rho=0.0))


def test_fedsam_against_numpy():
    rho = 0.3
    method = toys.make("fedsam", toys.TASK, rho=rho)
    w = naive.first_weights()
    for t in range(3):
        ids, models = naive.cohort(method, t), []
        for i in ids:
            x, y = naive.data_of(i)

            def gradient_of(v, x=x, y=y):
                _, g = naive.gradient(v, x, y)
                norm = np.sqrt(sum((a * a).sum() for a in g))
                return naive.gradient(naive.add(v, g, rho / norm), x, y)[1]

            models.append(naive.descend(w, gradient_of))
        w = naive.mean_by_size(ids, models)
    naive.close(rounds(method, 3).server, w)
