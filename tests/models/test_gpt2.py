"""Tests GPT-2 against NumPy, with weights that the test writes in the hub's format."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optional
import pytest
from inputs import complaint

from fedjax_lab.models import gpt2
from fedjax_lab.models.task import make_task
from fedjax_lab.tasks import Labels
from fedjax_lab.tasks.tokens import tokens

KEY = jax.random.key(0)
WORDS, LENGTH = 11, 6
CONFIG = {
    "model_type": "gpt2",
    "vocab_size": WORDS,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 7,
    "activation_function": "gelu_new",
}


def weights_of():
    """Random tensors by their names on the hub; kernels are [inputs, outputs]."""
    rng = np.random.default_rng(1)
    shapes = {"wte.weight": (WORDS, 8), "wpe.weight": (7, 8)}
    for i in range(2):
        layers = {"attn.c_attn": (8, 24), "attn.c_proj": (8, 8)}
        layers |= {"mlp.c_fc": (8, 32), "mlp.c_proj": (32, 8), "ln_1": (8,), "ln_2": (8,)}
        for name, shape in layers.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[-1:]}
    shapes |= {"ln_f.weight": (8,), "ln_f.bias": (8,)}
    return {name: rng.normal(size=s).astype(np.float32) / 2 for name, s in shapes.items()}


def write(folder, prefix="", config=(), head=False):
    """Writes a model, whose tensors besides the head have a prefix."""
    save_file = optional.module("safetensors.numpy").save_file
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | dict(config)))
    given = weights_of() | {"h.0.attn.bias": np.ones((1, 1, 7, 7), np.float32)}
    tensors = {prefix + name: tensor for name, tensor in given.items()}
    if head:
        tensors["lm_head.weight"] = given["wte.weight"]
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def naive(ids):
    """The logits [T, V] for one row of token ids, in NumPy."""
    w = {name: tensor.astype(float) for name, tensor in weights_of().items()}

    def norm(x, layer):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return x * w[f"{layer}.weight"] + w[f"{layer}.bias"]

    def project(x, layer):
        return x @ w[f"{layer}.weight"] + w[f"{layer}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for i in range(2):
        q, k, v = np.split(project(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, -1)
        mixed = np.zeros_like(q)
        for h in (slice(0, 4), slice(4, 8)):
            p = np.tril(np.exp(q[:, h] @ k[:, h].T / 2))
            mixed[:, h] = p @ v[:, h] / p.sum(-1, keepdims=True)
        x = x + project(mixed, f"h.{i}.attn.c_proj")
        y = project(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + project(y, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def task_of(net, length=LENGTH):
    y = np.zeros((2, length), np.int32)
    words = tuple(map(str, range(net.num_classes)))
    return make_task(net, (length,), tokens(Labels(y, words, others=y[:0])))


def test_published_weights_give_the_logits_of_numpy(tmp_path):
    """With and without a prefix; a head in the file is read."""
    folders = write(tmp_path / "a"), write(tmp_path / "b", "transformer.", head=True)
    ids = np.random.default_rng(0).integers(0, WORDS, (2, LENGTH))
    tasks = [task_of(gpt2.gpt2(WORDS, pretrained=folder)) for folder in folders]
    weights = [task.init(KEY) for task in tasks]
    jax.tree.map(np.testing.assert_array_equal, *weights)
    apply = jax.jit(tasks[0].apply)
    logits = apply(weights[0], jnp.asarray(ids, jnp.float32)).logits
    for row, each in zip(logits, ids, strict=True):
        np.testing.assert_allclose(row, naive(each), rtol=2e-4, atol=2e-4)
    cut = ids.copy()
    cut[:, 4:] = 0
    np.testing.assert_array_equal(apply(weights[0], jnp.asarray(cut)).logits[:, :4], logits[:, :4])


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        ({"model_type": "llama"}, {}, "its model_type is 'llama'; supported: gpt2"),
        ({"n_head": 3}, {}, "n_head does not divide n_embd"),
        ({"n_inner": 9}, {}, "n_inner is 9, not four times n_embd"),
        ({"activation_function": "relu"}, {}, "activation_function is 'relu'"),
        ({"n_layer": 3}, {}, "no tensor 'h.2.attn.c_attn.bias', which the model needs"),
        ({"n_positions": 5}, {}, "rows of 6 tokens are longer than the 5 positions"),
        ({}, {"width": 16}, "config.model.width=16 contradicts"),
        ({}, {"num_classes": 12}, "has 11 token ids, but the data need 12"),
        (None, {"heads": 3}, "config.model.heads=3 does not divide config.model.width=64"),
        (None, {"positions": -1}, "config.model.positions must be at least 0"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, config, settings, words):
    settings = {"num_classes": WORDS, **settings}
    if config is not None:
        settings["pretrained"] = write(tmp_path / "m", config=config)
    assert words in complaint(lambda: task_of(gpt2.gpt2(**settings)))
