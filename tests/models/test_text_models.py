"""Checks text models against naive NumPy, that they ignore padding, and their vocabularies."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint
from naive_layers import attention, dense, gelu, layer_norm
from toys import random_weights

from fedjax_lab.config import resolve
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.experiment import make_model
from fedjax_lab.models import char_lstm, fasttext, text_cnn, tokens, transformer
from fedjax_lab.models.task import make_task

KEY = jax.random.key(0)
X = np.array([[0, 0, 3, 1, 2], [4, 1, 5, 5, 2], [0, 0, 0, 0, 0]], np.float32)
NETS = {
    "fasttext": fasttext.FastText(3, width=4, buckets=7, vocabulary=6),
    "text_cnn": text_cnn.TextCNN(3, 4, 2, (2, 3), 0.0, 6),
    "transformer": transformer.Transformer(3, width=4, depth=2, heads=2, vocabulary=6),
    "word_lstm": char_lstm.CharLSTM(3, 2, 4, 1, 3, 6, skips_padding=True),
}
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


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
    count = tokens.count_padding(ids)
    assert count.tolist() == [2, 0, 5]
    assert tokens.moved_to_front(ids, count).tolist() == [[3, 1, 2, 0, 0], *ids[1:].tolist()]


@pytest.mark.slow
def test_a_word_lstm_skips_padding():
    """The reference is the model that reads every token, on each text without its padding."""
    p, output = forward("word_lstm")
    whole = NETS["word_lstm"].clone(skips_padding=False)
    for row, z in zip(X[:2], output.features, strict=False):
        close(z, whole.apply({"params": p}, jnp.asarray(row[None, row > 0]))[1][0])
    close(output.features[2], p["projection"]["bias"])  # an empty text


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_token_ids_are_not_rounded_in_bfloat16(name):
    """With 8 bits, the ids 40,001 and 40,003 would both be 39,936 and share one embedding."""
    x = jnp.array([[40_001] * 5, [40_003] * 5], jnp.float32)
    net = NETS[name].clone(vocabulary=40_010)
    task = make_task(net, (5,), 3, compute_dtype=jnp.bfloat16)
    logits = jax.jit(lambda w: task.apply(w, x).logits)(task.init(KEY))
    assert logits.dtype == jnp.float32 and bool((logits[0] != logits[1]).any())


@pytest.mark.parametrize(
    ("net", "classes", "size"),
    [
        (fasttext.fasttext(4, vocabulary=10_000), 4, 64 * 20_000 + 65 * 4),
        (text_cnn.text_cnn(2, vocabulary=20), 2, 300 * (20 + 1200) + 300 + 301 * 2),
        (char_lstm.word_lstm(10_004), 10_004, 4_050_748),  # as reported by Reddi et al.
    ],
)
def test_parameter_counts_of_the_default_models(net, classes, size):
    shapes = jax.eval_shape(make_task(net, (20,), classes).init, KEY).params
    assert sum(a.size for a in jax.tree.leaves(shapes)) == size


def vocabulary_size(x, **settings):
    """The number of word embeddings in the model that a config makes for examples x."""
    config = resolve({"model": {"name": "fasttext", "width": 2, "buckets": 0, **settings}})
    zeros = np.zeros(len(x), np.int32)
    data = Dataset(x, zeros, zeros, zeros > 0, ("a", "b"), ("one",))
    shapes = jax.eval_shape(make_model(config, data).init, KEY)
    return jax.tree.leaves(shapes.params["words"])[0].shape[0]


def test_the_vocabulary_size_follows_from_the_data():
    ids = np.array([[0, 7], [300, 2]], np.int16)
    assert vocabulary_size(ids) == 301 and vocabulary_size(ids, vocabulary=400) == 400
    assert vocabulary_size(ids.astype(np.float32)) == 301 and vocabulary_size(0 * ids) == 2
    assert complaint(vocabulary_size, ids, vocabulary=300) == (
        "config.model.vocabulary=300 of model fasttext is too small: the data have token ids up to"
        " 300; leave it at 0, or set it to 301"
    )
    for x in (ids.astype(np.uint8), ids - 1, ids + np.float32(0.5)):
        assert "needs texts, rows of token ids; the data hold" in complaint(vocabulary_size, x)
    images = np.zeros((2, 8, 8, 3), np.uint8)
    assert "fasttext needs texts (rows of token ids), not 8x8x3" in complaint(
        vocabulary_size, images
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(transformer.transformer, heads=3), "heads=3 does not divide config.model.width"),
        (partial(text_cnn.text_cnn, windows=(3, 3)), "windows must be distinct positive integers"),
        (partial(text_cnn.text_cnn, dropout=1.0), "config.model.dropout must be at least 0 and"),
        (partial(text_cnn.text_cnn, windows=(9,)), "windows=(9,) needs texts of 9 tokens or more"),
        (partial(fasttext.fasttext, buckets=-1), "config.model.buckets must not be negative"),
        (partial(char_lstm.word_lstm, depth=0), "config.model.depth must be above 0, got 0"),
        (partial(char_lstm.word_lstm, projection=-1), "config.model.projection must not be negat"),
    ],
)
def test_a_bad_setting_is_named_in_the_error(make, message):
    assert message in complaint(lambda: make_task(make(3), (5,), 3))
