"""Tests the character LSTM against NumPy."""

from functools import partial

import jax
import numpy as np
import pytest
from naive_layers import dense, one_client, small
from scipy.special import expit

from fedjax_lab.models import char_lstm
from fedjax_lab.models.task import make_task

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
def test_char_lstm_against_numpy():
    task, weights, x = small("lstm")
    w, x = one_client(weights, x)
    p = jax.tree.map(np.asarray, w.params)
    inputs = p["Embed_0"]["embedding"][np.asarray(x, int)]  # [B, T, 2]
    for layer in ("OptimizedLSTMCell_0", "OptimizedLSTMCell_1"):
        cell, outputs = p[layer], []
        h = c = np.zeros((5, 3))
        for t in range(4):
            gates = [
                inputs[:, t] @ cell[f"i{g}"]["kernel"] + dense(h, cell[f"h{g}"]) for g in "ifgo"
            ]
            i, f, o = (expit(gates[k]) for k in (0, 1, 3))
            c = f * c + i * np.tanh(gates[2])
            h = o * np.tanh(c)
            outputs.append(h)
        inputs = np.stack(outputs, axis=1)
    output = task.apply(w, x)
    close(output.features, h)
    close(output.logits, dense(h, p["head"]))


@pytest.mark.slow
def test_first_weights_of_char_lstm_have_the_intended_scale():
    params = jax.jit(make_task(char_lstm.char_lstm(80), (3,), 80).init)(KEY).params
    assert abs(params["Embed_0"]["embedding"].std() - 1) < 0.1
    for layer in (params["OptimizedLSTMCell_0"], params["OptimizedLSTMCell_1"]):
        for leaf in jax.tree.leaves(layer):
            assert 0.9 / 16 < np.abs(leaf).max() <= 1 / 16
