"""Published language models: their sizes, and the names and layouts of their tensors.

A model is a folder in the hub's format or a GGUF file. Supported are Llama 2 and 3, SmolLM2 and
TinyLlama (`llama`), Mistral, Qwen 2 and Qwen 3; `models.gpt2` has the sizes of GPT-2.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.errors import quoted
from fedjax_lab.models import gguf_files, hub_files

TYPES = ("llama", "mistral", "qwen2", "qwen3")
REMEDY = f"it must be a language model of type {', '.join(TYPES)} in the hub's format"

HUB_SIZES = {  # the keys of config.json
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden": "intermediate_size",
}
GGUF_SIZES = {  # the keys of a GGUF file, without the architecture before them
    "width": "embedding_length",
    "depth": "block_count",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "hidden": "feed_forward_length",
}
LLAMA3 = "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"


class Sizes(NamedTuple):
    """The sizes of a decoder; see `models.decoder.decoder`."""

    width: int
    depth: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    window: int = 0  # 0: attention to all earlier tokens
    bias: bool = False  # of q, k and v
    qk_norm: bool = False
    rope_base: float = 0.0
    rope_factors: tuple[float, ...] = ()  # divide the rotary frequencies [head_dim / 2]
    epsilon: float = 0.0  # of the normalizations
    positions: int = 0  # most tokens of a row; 0: any number


class Published(NamedTuple):
    """What a published model's description says."""

    sizes: Any  # a NamedTuple
    vocabulary: int
    tied: bool  # whether the head is the embedding


def describe(path: str) -> Published | None:
    """The description of the published model at a path; None for a file or folder without one.

    Raises BadInput if the model is not supported, or if the description is damaged.
    """
    file = Path(path).expanduser()
    if file.suffix == gguf_files.SUFFIX:
        return _gguf_model(file)
    return _hub_model(file) if hub_files.is_model(file) else None


CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2's, [inputs, outputs]
BUFFERS = (".attn.bias", ".attn.masked_bias")  # GPT-2's, which are no weights


def tensors(file: Path) -> hub_files.Tensors:
    """The tensors of a published model, those of a dense layer [outputs, inputs].

    Raises BadInput if a file is missing or damaged, or if a package is.
    """
    if file.suffix == gguf_files.SUFFIX:
        return gguf_files.tensors(file)
    stored = hub_files.tensors(file, "name another folder with --config.model.pretrained")
    if not any(name.endswith(".attn.c_attn.weight") for name in stored):
        return stored
    return hub_files.Tensors(
        {
            name.removeprefix("transformer."): partial(_transposed, stored, name)
            for name in stored
            if not name.endswith(BUFFERS)
        }
    )


def _transposed(stored, name):
    return stored[name].T if name.endswith(CONV1D) else stored[name]


# From config.json.


def _hub_model(folder: Path) -> Published:
    with hub_files.config(folder, TYPES, REMEDY) as given:
        kind = given["model_type"]
        hub_files.check_word("hidden_act", given.get("hidden_act", "silu"), ("silu",))
        switches = ("mlp_bias", "use_sliding_window", "attention_bias")
        _check_off(given, switches[:2] if kind == "qwen2" else switches)
        rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
        base = rope.get("rope_theta") or given.get("rope_theta", 10_000.0)
        epsilon = given.get("rms_norm_eps", 1e-6)
        hub_files.check("rope_theta", base, float)
        hub_files.check("rms_norm_eps", epsilon, float)
        sizes = Sizes(
            **_numbers(given, HUB_SIZES),
            window=_window(given, kind),
            bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            rope_base=float(base),
            epsilon=float(epsilon),
            positions=_positions(given, "max_position_embeddings"),
        )
        sizes = sizes._replace(rope_factors=_factors(rope, sizes.head_dim, sizes.rope_base))
        check_heads(sizes)
        hub_files.check("vocab_size", given.get("vocab_size"), int)
        return Published(sizes, given["vocab_size"], given.get("tie_word_embeddings") is True)


def _numbers(given: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """The numbers that a description must have, and two that follow from the others."""
    values: dict[str, Any] = {size: given.get(key) for size, key in keys.items()}
    for size in ("width", "heads"):
        hub_files.check(keys[size], values[size], int)
    values["kv_heads"] = values["kv_heads"] or values["heads"]
    values["head_dim"] = values["head_dim"] or values["width"] // values["heads"]
    for size, value in values.items():
        hub_files.check(keys[size], value, int)
    return values


def _positions(given, key):
    """The most tokens of a row; 0 if the description does not say it."""
    if given.get(key) is not None:
        hub_files.check(key, given[key], int)
    return given.get(key) or 0


def _check_off(given, keys):
    """Raises ValueError if config.json switches one of these parts on."""
    for key in keys:
        if given.get(key):
            raise ValueError(f"{key} is {quoted(given[key])}, which is not supported")


def _window(given, kind):
    """Mistral's sliding window, 0 if null; others have none unless `use_sliding_window` is true."""
    window = given.get("sliding_window", 4096) if kind == "mistral" else None
    if window is not None:
        hub_files.check("sliding_window", window, int)
    return window or 0


def _factors(rope: Mapping[str, Any], head_dim: int, base: float) -> tuple[float, ...]:
    """The divisors of the rotary frequencies in Llama 3.1's scaling; empty if there is none.

    Wavelengths above original / low are divided by `factor`, those below original / high are kept,
    and between them the factor of the frequency is interpolated in original / wavelength.
    """
    kind = rope.get("rope_type") or rope.get("type") or "default"
    hub_files.check_word("rope_scaling's type", kind, ("default", "llama3"))
    if kind == "default":
        return ()
    for key in LLAMA3:
        hub_files.check(key, rope.get(key), float)
    factor, low, high, original = (rope[key] for key in LLAMA3)
    if high <= low:
        raise ValueError(f"high_freq_factor is {quoted(high)}")
    waves = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    kept = np.clip((original / waves - low) / (high - low), 0, 1)
    return tuple((1 / (kept + (1 - kept) / factor)).tolist())


def check_heads(sizes: Sizes) -> None:
    """Raises ValueError unless the heads can be grouped, and their halves rotated."""
    if sizes.heads % sizes.kv_heads:
        raise ValueError(f"kv_heads={sizes.kv_heads} does not divide heads={sizes.heads}")
    if sizes.head_dim % 2:
        raise ValueError(f"head_dim={sizes.head_dim} is odd")


# From the metadata of a GGUF file.


def _gguf_model(file: Path) -> Published:
    fields, shapes = gguf_files.metadata(file), gguf_files.shapes(file)
    with safe.reading(file, gguf_files.REMEDY, "is not usable"):
        kind = str(fields.get("general.architecture"))
        if kind not in TYPES:
            raise ValueError(f"its architecture is {quoted(kind)}; supported: {', '.join(TYPES)}")
        given = {key.removeprefix(f"{kind}."): value for key, value in fields.items()}
        hub_files.check_word("rope.scaling.type", given.get("rope.scaling.type", "none"), ("none",))
        sizes = Sizes(
            **_numbers(given, GGUF_SIZES),
            window=given.get("attention.sliding_window") or 0,
            bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            rope_base=given.get("rope.freq_base", 10_000.0),
            rope_factors=gguf_files.factors(file),
            epsilon=given.get("attention.layer_norm_rms_epsilon", 1e-5),
            positions=_positions(given, "context_length"),
        )
        hub_files.check("rope.freq_base", sizes.rope_base, float)
        check_heads(sizes)
        if "token_embd.weight" not in shapes:
            raise ValueError("it has no tensor 'token_embd.weight'")
        return Published(sizes, shapes["token_embd.weight"][0], "output.weight" not in shapes)


# The names of the layers; {} is the number of a block.

HUB = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "blocks/attention_norm": "model.layers.{}.input_layernorm",
    "blocks/q": "model.layers.{}.self_attn.q_proj",
    "blocks/k": "model.layers.{}.self_attn.k_proj",
    "blocks/v": "model.layers.{}.self_attn.v_proj",
    "blocks/q_norm": "model.layers.{}.self_attn.q_norm",
    "blocks/k_norm": "model.layers.{}.self_attn.k_norm",
    "blocks/o": "model.layers.{}.self_attn.o_proj",
    "blocks/mlp_norm": "model.layers.{}.post_attention_layernorm",
    "blocks/gate": "model.layers.{}.mlp.gate_proj",
    "blocks/up": "model.layers.{}.mlp.up_proj",
    "blocks/down": "model.layers.{}.mlp.down_proj",
}
GGUF = {
    "embed": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "blocks/attention_norm": "blk.{}.attn_norm",
    "blocks/q": "blk.{}.attn_q",
    "blocks/k": "blk.{}.attn_k",
    "blocks/v": "blk.{}.attn_v",
    "blocks/q_norm": "blk.{}.attn_q_norm",
    "blocks/k_norm": "blk.{}.attn_k_norm",
    "blocks/o": "blk.{}.attn_output",
    "blocks/mlp_norm": "blk.{}.ffn_norm",
    "blocks/gate": "blk.{}.ffn_gate",
    "blocks/up": "blk.{}.ffn_up",
    "blocks/down": "blk.{}.ffn_down",
}


def with_tied(*sets: dict[str, str]) -> tuple[dict[str, str], ...]:
    """The sets of names, after copies whose head is the embedding, for files without a head."""
    return tuple({**each, "head": each["embed"]} for each in sets) + sets
