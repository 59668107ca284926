"""Checks text models against naive NumPy, that they ignore padding, and their token ids."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_layers import KEY, attention, close, dense, gelu, layer_norm, one_client, small
from scipy.special import expit
from slow_cases import exhaustive_but
from toys import random_weights

from fedjax_lab.models import char_lstm, fasttext, text_cnn, token_ids, transformer
from fedjax_lab.models.task import make_task

X = np.array([[0, 0, 3, 1, 2], [4, 1, 5, 5, 2], [0, 0, 0, 0, 0]], np.float32)
NETS = {
    "fasttext": fasttext.FastText(3, width=4, buckets=7, vocabulary=6),
    "text_cnn": text_cnn.TextCNN(3, 4, 2, (2, 3), 0.0, 6),
    "transformer": transformer.Transformer(3, width=4, depth=2, heads=2, vocabulary=6),
    "word_lstm": char_lstm.CharLSTM(3, 2, 4, 1, 3, 6, skips_padding=True),
}


@cache
def forward(name):
    """The parameters of a net with random weights, and its output for X."""
    task = make_task(NETS[name], (5,), 3)
    weights = random_weights(jax.eval_shape(task.init, KEY))
    return weights.params, jax.jit(task.apply)(weights, jnp.asarray(X))


def test_fasttext_matches_numpy():
    p, output = forward("fasttext")
    for row, z in zip(X.astype(int), output.features, strict=True):
        words = [int(word) for word in row if word]
        pairs = zip(words, words[1:], strict=False)
        vectors = [p["words"]["embedding"][word] for word in words]
        hashed = [(a * fasttext.PRIME + b) % 2**32 % 7 for a, b in pairs]
        vectors += [p["bigrams"]["embedding"][bucket] for bucket in hashed]
        close(z, np.mean(vectors, 0) if vectors else np.zeros(4))
    close(output.logits, dense(output.features, p["head"]))


@pytest.mark.slow
def test_a_text_cnn_matches_numpy():
    p, output = forward("text_cnn")
    for row, z in zip(X.astype(int), output.features, strict=True):
        vectors = p["words"]["embedding"][row] * (row > 0)[:, None]
        largest = []
        for w in (2, 3):
            places = [i for i in range(5 - w + 1) if row[i : i + w].any()]
            kernel = p[f"window_{w}"]["kernel"].reshape(w, 4, 2)
            each = [
                np.einsum("we,wef->f", vectors[i : i + w], kernel) + p[f"window_{w}"]["bias"]
                for i in places
            ]
            largest += list(np.maximum(each, 0).max(0)) if each else [0, 0]
        close(z, largest)
    close(output.logits, dense(output.features, p["head"]))


@pytest.mark.slow
def test_a_transformer_matches_numpy_and_ignores_padding():
    p, output = forward("transformer")
    for row, z in zip(X[:2].astype(int), output.features, strict=False):
        real = row > 0
        tokens = p["words"]["embedding"][row[real]] + p["Positions_0"]["embedding"][real]
        tokens = tokens[None]
        for i in (0, 1):
            b = jax.tree.map(lambda a, i=i: a[i], p["blocks"])
            s = tokens + attention(layer_norm(tokens, b["LayerNorm_0"]), b["Attention_0"], heads=2)
            inner = gelu(dense(layer_norm(s, b["LayerNorm_1"]), b["mlp_0"]))
            tokens = s + dense(inner, b["mlp_1"])
        close(z, layer_norm(tokens, p["LayerNorm_0"])[0].mean(0), atol=1e-3)
    close(output.features[2], 0)  # an empty text


def test_padding_is_moved_to_the_end_of_the_text():
    ids = X.astype(int)
    count = token_ids.count_padding(ids)
    assert count.tolist() == [2, 0, 5]
    assert token_ids.moved_to_front(ids, count).tolist() == [[3, 1, 2, 0, 0], *ids[1:].tolist()]


@pytest.mark.slow
def test_a_word_lstm_skips_padding():
    """The reference is the model that reads every token, on each text without its padding."""
    p, output = forward("word_lstm")
    whole = NETS["word_lstm"].clone(skips_padding=False)
    for row, z in zip(X[:2], output.features, strict=False):
        close(z, jax.jit(whole.apply)({"params": p}, jnp.asarray(row[None, row > 0]))[1][0])
    close(output.features[2], p["projection"]["bias"])  # an empty text


@pytest.mark.slow
def test_a_causal_lstm_predicts_at_each_position_as_the_char_lstm_does_at_the_last():
    task, weights, x = small("lstm")
    w, x = one_client(weights, x)
    last = jax.jit(task.apply)(w, x)
    net = char_lstm.CharLSTM(5, embedding=2, width=3, causal=True)
    logits, features = net.apply({"params": w.params}, x)
    assert logits.shape == (5, 4, 5)
    close(logits[:, -1], last.logits)
    close(features[:, -1], last.features)
    published = jax.eval_shape(char_lstm.causal_lstm(90).init, KEY, jnp.zeros((1, 80)))
    assert sum(leaf.size for leaf in jax.tree.leaves(published)) == 820_522  # by Reddi et al.


@pytest.mark.slow
def test_char_lstm_matches_numpy():
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
    output = jax.jit(task.apply)(w, x)
    close(output.features, h)
    close(output.logits, dense(h, p["head"]))


@pytest.mark.slow
def test_first_weights_of_char_lstm_have_the_intended_scale():
    params = jax.jit(make_task(char_lstm.char_lstm(80), (3,), 80).init)(KEY).params
    assert abs(params["Embed_0"]["embedding"].std() - 1) < 0.1
    for layer in (params["OptimizedLSTMCell_0"], params["OptimizedLSTMCell_1"]):
        for leaf in jax.tree.leaves(layer):
            assert 0.9 / 16 < np.abs(leaf).max() <= 1 / 16


@pytest.mark.parametrize("name", exhaustive_but(["fasttext"], NETS))
def test_token_ids_are_not_rounded_in_bfloat16(name):
    """With 8 bits, the ids 40,001 and 40,003 would both be 39,936 and share one embedding."""
    x = jnp.array([[40_001] * 5, [40_003] * 5], jnp.float32)
    net = NETS[name].clone(vocabulary=40_010)
    task = make_task(net, (5,), 3, compute_dtype=jnp.bfloat16)
    logits = jax.jit(lambda w: task.apply(w, x).logits)(task.init(KEY))
    assert logits.dtype == jnp.float32 and bool((logits[0] != logits[1]).any())
