"""Tests decoders against NumPy, and published models that the tests write themselves."""

import json
from functools import cache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optional
import pytest

from fedjax_lab.models import decoder
from fedjax_lab.models.language_models import Sizes
from fedjax_lab.models.task import make_task
from fedjax_lab.tasks import Labels
from fedjax_lab.tasks.tokens import tokens

KEY = jax.random.key(0)
WORDS, LENGTH = 11, 7
IDS = np.random.default_rng(0).integers(0, WORDS, (2, LENGTH))
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SMALL = Sizes(8, 2, 4, 2, 2, 10, rope_base=100.0, epsilon=1e-5)
KINDS = {  # config.json's additions, and what follows from them
    "llama": ({}, SMALL),
    "llama3": (
        {"model_type": "llama", "head_dim": 8, "rope_scaling": LLAMA3},
        SMALL._replace(head_dim=8),
    ),
    "mistral": ({"sliding_window": 3}, SMALL._replace(window=3)),
    "qwen2": ({"tie_word_embeddings": True, "sliding_window": 3}, SMALL._replace(bias=True)),
    "qwen3": ({"head_dim": 6}, SMALL._replace(head_dim=6, qk_norm=True)),
}


def objective(classes=WORDS):
    y = np.zeros((2, LENGTH), np.int32)
    return tokens(Labels(y, tuple(map(str, range(classes))), others=y[:0]))


def task_of(net):
    return make_task(net, (LENGTH,), objective(net.num_classes))


def config_of(name):
    """config.json of a small model."""
    return {
        "model_type": name,
        "vocab_size": WORDS,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 10,
        "rope_theta": 100,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        **KINDS[name][0],
    }


@cache
def weights_of(name, scale=0.5):
    """Random tensors of a small model by their names on the hub, [outputs, inputs]."""
    rng, sizes = np.random.default_rng(1), KINDS[name][1]
    q, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes = {"model.embed_tokens.weight": (WORDS, 8), "model.norm.weight": (8,)}
    if name != "qwen2":
        shapes["lm_head.weight"] = (WORDS, 8)
    for i in range(2):
        attention, block = f"model.layers.{i}.self_attn", f"model.layers.{i}"
        shapes |= {
            f"{block}.input_layernorm.weight": (8,),
            f"{attention}.q_proj.weight": (q, 8),
            f"{attention}.k_proj.weight": (kv, 8),
            f"{attention}.v_proj.weight": (kv, 8),
            f"{attention}.o_proj.weight": (8, q),
            f"{block}.post_attention_layernorm.weight": (8,),
            f"{block}.mlp.gate_proj.weight": (10, 8),
            f"{block}.mlp.up_proj.weight": (10, 8),
            f"{block}.mlp.down_proj.weight": (8, 10),
        }
        if name == "qwen2":
            shapes |= {
                f"{attention}.{x}_proj.bias": (n,) for x, n in zip("qkv", (q, kv, kv), strict=True)
            }
        if name == "qwen3":
            shapes |= {f"{attention}.{x}_norm.weight": (sizes.head_dim,) for x in "qk"}
    return {k: rng.normal(size=s).astype(ml_dtypes.bfloat16) for k, s in shapes.items()}


def naive(name, ids):
    """The logits [T, V] for one row of token ids, in NumPy."""
    w, sizes = {k: v.astype(float) for k, v in weights_of(name).items()}, KINDS[name][1]
    count, size = len(ids), sizes.head_dim

    def norm(x, layer):
        return w[f"{layer}.weight"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    def project(x, layer):
        return x @ w[f"{layer}.weight"].T + w.get(f"{layer}.bias", 0.0)

    def turned(x):
        out = np.zeros_like(x)
        for t in range(count):
            for j in range(size // 2):
                wave = 2 * np.pi * 100.0 ** (2 * j / size)
                if name == "llama3":  # 32 / wave between 1 and 4 is interpolated
                    kept = min(max((32 / wave - 1) / 3, 0), 1)
                    wave = 1 / (kept / wave + (1 - kept) / (8 * wave))
                turn = np.exp(2j * np.pi * t / wave) * (x[t, j] + 1j * x[t, j + size // 2])
                out[t, j], out[t, j + size // 2] = turn.real, turn.imag
        return out

    x = w["model.embed_tokens.weight"][ids]
    for i in range(2):
        block, mixed = f"model.layers.{i}", []
        y = norm(x, f"{block}.input_layernorm")
        q, k, v = (
            project(y, f"{block}.self_attn.{name}_proj").reshape(count, -1, size) for name in "qkv"
        )
        for h in range(4):
            a, b = q[:, h], k[:, h // 2]
            if name == "qwen3":
                a = norm(a, f"{block}.self_attn.q_norm")
                b = norm(b, f"{block}.self_attn.k_norm")
            scores = turned(a) @ turned(b).T / np.sqrt(size)
            for t in range(count):
                first = max(0, t - 2) if name == "mistral" else 0
                p = np.exp(scores[t, first : t + 1])
                mixed.append(p @ v[first : t + 1, h // 2] / p.sum())
        mixed = np.stack(mixed).reshape(4, count, size).swapaxes(0, 1).reshape(count, -1)
        x = x + project(mixed, f"{block}.self_attn.o_proj")
        y = norm(x, f"{block}.post_attention_layernorm")
        gate = project(y, f"{block}.mlp.gate_proj")
        y = gate / (1 + np.exp(-gate)) * project(y, f"{block}.mlp.up_proj")
        x = x + project(y, f"{block}.mlp.down_proj")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ head.T


def write(folder, name, parts=1, config=(), change=()):
    """Writes a small model in the hub's format, its tensors divided over several files."""
    save_file = optional.module("safetensors.numpy").save_file
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(name) | dict(config)))
    given = {k: v for k, v in (weights_of(name) | dict(change)).items() if v is not None}
    files = [f"model-{i + 1}-of-{parts}.safetensors" for i in range(parts)]
    if parts == 1:
        files = ["model.safetensors"]
    else:
        places = {key: files[i % parts] for i, key in enumerate(given)}
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for i, file in enumerate(files):
        save_file(dict(list(given.items())[i::parts]), folder / file)
    return str(folder)


@pytest.mark.parametrize("name", KINDS)
def test_a_published_model_gives_the_logits_of_numpy(tmp_path, name):
    path = write(tmp_path / name, name, parts=2 if name == "mistral" else 1)
    net = decoder.decoder(WORDS, pretrained=path, remat=name == "mistral")
    factors = net.sizes.rope_factors
    assert net.sizes._replace(rope_factors=()) == KINDS[name][1] and net.vocabulary == WORDS
    assert len(factors) == 4 * (name == "llama3") and all(1 <= each <= 8 for each in factors)
    task = task_of(net)
    weights, apply = task.init(KEY), jax.jit(task.apply)
    out = apply(weights, jnp.asarray(IDS, jnp.float32))
    for logits, ids in zip(out.logits, IDS, strict=True):
        np.testing.assert_allclose(logits, naive(name, ids), rtol=2e-4, atol=2e-4)
    cut = IDS.copy()
    cut[:, 4:] = 0  # padding, which is a token like any other
    again = apply(weights, jnp.asarray(cut)).logits
    np.testing.assert_array_equal(again[:, :4], out.logits[:, :4])
    assert np.abs(again[:, 4:] - out.logits[:, 4:]).max() > 1e-2
    assert task.dense[-1] == "head" and task.batch_norms == ()
