"""Compares FedLC with plain NumPy."""

import naive
import numpy as np
import pytest
import toys
from rounds import rounds, skewed_rounds


@pytest.mark.slow
def test_fedlc_against_numpy():
    def gradient_of(i, w, x, y):
        return naive.gradient(w, x, y, shift=0.6 * np.maximum(naive.counts(i), 1e-8) ** -0.25)

    method = toys.make("fedlc", toys.TASK, tau=0.6)
    expected = skewed_rounds(method, 2, gradient_of)
    assert min(naive.counts(i).min() for i in naive.cohort(method, 0)) == 0
    naive.close(rounds(method, 2, federation=toys.SKEWED).server, expected)


def test_exclude_true_leaves_the_true_class_out_of_the_denominator():
    """The loss is -o_y + log sum_{c != y} exp o_c of calibrated logits; its gradient by hand."""

    def gradient_of(i, w, x, y):
        p = np.exp(naive.logits(w, x) - 0.6 * np.maximum(naive.counts(i), 1e-8) ** -0.25)
        p[np.arange(len(y)), y] = 0
        d = (p / p.sum(1, keepdims=True) - np.eye(toys.K)[y]) / len(y)
        return None, naive.backward(w, x, d)

    method = toys.make("fedlc", toys.TASK, tau=0.6, exclude_true=True)
    expected = skewed_rounds(method, 2, gradient_of)
    naive.close(rounds(method, 2, federation=toys.SKEWED).server, expected)
