"""Low-rank adapters in the format of the package PEFT, which other tools can read.

A folder has adapter_model.safetensors, with the factors A [r, inputs] and B [outputs, r] of each
layer under its name on the hub, and adapter_config.json, with the rank and the scale. The format is
that of peft 0.21 (https://huggingface.co/docs/peft/developer_guides/checkpoint).
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab import tree
from fedjax_lab.data import safe, writing
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.models import hub_files
from fedjax_lab.models.pretrained import numbers, safetensors
from fedjax_lab.types import Adapters, Weights

FACTORS = {"_lora_a": "lora_A", "_lora_b": "lora_B"}  # how names end in qwix, and those in PEFT
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."  # of all names in a file
TRANSPOSED = "c_attn", "c_proj", "c_fc"  # the dense layers of GPT-2, whose matrices are [in, out]
REMEDY = "name a folder of PEFT with LoRA adapters"


def write(folder: Path, weights: Weights, adapters: Adapters, base: str) -> None:
    """Writes the adapters to a new folder. base: the file or folder of the frozen weights.

    Raises BadInput if other weights are trained too, or if the model has no names on the hub.
    """
    tensors: dict[str, np.ndarray] = {}
    rank = 0
    for name, leaf in tree.by_name(weights).items():
        names = _tensor_names(name, leaf.shape, adapters.published)
        matrices = np.asarray(leaf, np.float32).reshape(len(names), *leaf.shape[-2:])
        rank = leaf.shape[-1] if name.endswith("_lora_a") else rank
        each = zip(names, matrices, strict=True)
        tensors |= {name: np.ascontiguousarray(matrix.T) for name, matrix in each}
    layers = {name.removeprefix(PREFIX).rsplit(".", 2)[0] for name in tensors}
    modules = {_module(layer, adapters.published.values()) for layer in layers}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": adapters.scale * rank,
        "lora_dropout": 0.0,
        "target_modules": sorted(modules),
        "bias": "none",
        "fan_in_fan_out": any(module.endswith(TRANSPOSED) for module in modules),
        "use_rslora": False,
        "inference_mode": True,
    }
    folder.mkdir()
    writing.replace(folder / WEIGHTS, safetensors().save(tensors))
    writing.replace(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def _module(layer: str, all_layers: Iterable[str]) -> str:
    """The end of a layer's name by which PEFT selects it and no layer of another kind."""
    last = layer.rsplit(".", 1)[-1]
    of_kinds = [name for name in all_layers if name.endswith(f".{last}")]
    return ".".join(layer.rsplit(".", 2)[-2:]) if len(of_kinds) > 1 else last


def read(path: str, shapes: Weights, own_scale: float, published: dict[str, str]) -> dict[str, Any]:
    """The factors in a folder by their names here.

    shapes: those of the trained weights. own_scale, published: as in `Adapters`.

    Raises BadInput if the folder does not fit them.
    """
    folder = Path(path).expanduser()
    with safe.reading(folder / CONFIG, REMEDY, extra="llm"):
        config = json.loads(safe.content(folder / CONFIG))
        if config.get("peft_type") != "LORA":
            raise ValueError(f"its peft_type is {quoted(config.get('peft_type'))}")
        for key in ("rank_pattern", "alpha_pattern"):
            if config.get(key):
                raise ValueError(f"it has a {key}, but all its adapters must have one rank")
        hub_files.check("r", config["r"], int)
        hub_files.check("lora_alpha", config["lora_alpha"], float)
        scale = config["lora_alpha"] / config["r"] ** (0.5 if config.get("use_rslora") else 1)
    if not np.isclose(scale, own_scale):
        raise BadInput(
            f"{path}: the scale of its adapters is {scale:g}, but that of config.adapter is"
            f" {own_scale:g}; set alpha to {config['lora_alpha']:g} and rank to {config['r']}"
        )
    with safe.reading(folder / WEIGHTS, REMEDY, extra="llm"):
        tensors = safetensors().load_file(folder / WEIGHTS)
    factors = {name: a for name, a in tree.by_name(shapes).items() if name.endswith(tuple(FACTORS))}
    needed = {name: _tensor_names(name, a.shape, published) for name, a in factors.items()}
    _check(path, tensors, {each for names in needed.values() for each in names})
    return {
        name: _stacked(path, tensors, names, factors[name].shape) for name, names in needed.items()
    }


def _stacked(path, tensors, names, shape):
    """The factor of this shape from the tensors of these names. BadInput if they do not fit."""
    for name in names:
        if tensors[name].shape != shape[-2:][::-1]:
            raise BadInput(
                f"{path}: its tensor {name} is {list(tensors[name].shape)}, but the model needs"
                f" {list(shape[-2:][::-1])}; config.adapter.rank is the rank"
            )
    matrices = [numbers(f"{path}: its tensor {name}", tensors[name]).T for name in names]
    return np.stack(matrices).reshape(shape).astype(np.float32)


def _check(path: str, tensors: Mapping[str, Any], needed: set[str]) -> None:
    """Raises BadInput if tensors are missing or superfluous."""
    for name in sorted(needed - tensors.keys()):
        raise BadInput(
            f"{path}: it has no tensor {name}; adapt its layers with config.adapter.targets"
        )
    for name in sorted(tensors.keys() - needed):
        raise BadInput(f"{path}: its tensor {name} is not in config.adapter.targets")


def _tensor_names(name: str, shape: tuple[int, ...], published: dict[str, str]) -> list[str]:
    """The names in the file of the matrices of a leaf, one for each block that it stacks."""
    layer, _, last = name.split("/", 1)[1].rpartition("/")
    ending = next((ending for ending in FACTORS if last.endswith(ending)), None)
    if ending is None:
        raise BadInput(
            f"the run trains {name} besides the adapters, which a folder of PEFT does not hold; use"
            " another format, or --config.adapter.layers="
        )
    if layer not in published:
        raise BadInput(
            f"the layer {layer} has no name on the hub, which a folder of PEFT needs; use another"
            " format, or the model decoder or gpt2"
        )
    pattern = f"{PREFIX}{published[layer]}.{FACTORS[ending]}.weight"
    return [pattern.format(i) for i in range(shape[0])] if "{}" in pattern else [pattern]
