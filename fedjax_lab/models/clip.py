"""CLIP's image and text towers (Radford et al. 2021, arXiv 2103.00020), with the hub's weights.

Transformers of pre-normalized blocks, each followed by a linear projection to the width that both
share. Modules are named as the tensors of the hub's model.safetensors, so that a parameter's path
is its tensor's name. Frozen here: there is no dropout, and the first weights are Flax's.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.types import Array

LEGACY_EOS = 2  # in the configs of OpenAI's models: the end of a text is its highest token
REMEDY = "it must be a CLIP model in the hub's format, such as openai/clip-vit-base-patch32"


class TextSettings(NamedTuple):
    """config.json's `text_config`, with the hub's defaults (ViT-B/32)."""

    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    eos_token_id: int = 49407


class ImageSettings(NamedTuple):
    """config.json's `vision_config`, with the hub's defaults (ViT-B/32)."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 32
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5


class Settings(NamedTuple):
    """Of both towers."""

    text: TextSettings = TextSettings()
    image: ImageSettings = ImageSettings()
    projection_dim: int = 512


def quick_gelu(x: Array) -> Array:
    """x sigmoid(1.702 x), OpenAI's approximation of `gelu`."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "quick_gelu": quick_gelu,
    "gelu": partial(jax.nn.gelu, approximate=False),
}


class Block(nn.Module):
    """Self-attention and two dense layers, each normalized before and added after."""

    settings: TextSettings | ImageSettings

    @nn.compact
    def __call__(self, x: Array, causal: bool) -> Array:
        """x [B, T, D] -> [B, T, D]. `causal`: a token sees itself and those before it only."""
        s = self.settings
        heads = (*x.shape[:2], s.num_attention_heads, -1)
        y = nn.LayerNorm(s.layer_norm_eps, name="layer_norm1")(x)
        query, key, value = (
            nn.Dense(s.hidden_size, name=f"self_attn.{name}_proj")(y).reshape(heads)
            for name in ("q", "k", "v")
        )
        y = jax.nn.dot_product_attention(query, key, value, is_causal=causal).reshape(x.shape)
        x = x + nn.Dense(s.hidden_size, name="self_attn.out_proj")(y)
        y = nn.LayerNorm(s.layer_norm_eps, name="layer_norm2")(x)
        y = nn.Dense(s.intermediate_size, name="mlp.fc1")(y)
        y = ACTIVATIONS[s.hidden_act](y)
        return x + nn.Dense(s.hidden_size, name="mlp.fc2")(y)


class ImageTower(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021) that starts with a normalization."""

    settings: ImageSettings
    projection_dim: int

    @nn.compact
    def __call__(self, pixels: Array) -> Array:
        """Normalized pixels [B, image_size, image_size, num_channels] -> [B, projection_dim]."""
        s, model = self.settings, "vision_model"
        patches = nn.Conv(
            s.hidden_size,
            (s.patch_size, s.patch_size),
            strides=s.patch_size,
            padding="VALID",
            use_bias=False,
            name=f"{model}.embeddings.patch_embedding",
        )(pixels)
        patches = patches.reshape(len(pixels), -1, s.hidden_size)
        first = self.param(
            f"{model}.embeddings.class_embedding", nn.initializers.normal(), (s.hidden_size,)
        )
        first = jnp.broadcast_to(first, (len(pixels), 1, s.hidden_size))
        x = jnp.concatenate([first, patches], 1)
        x = x + _positions(x.shape[1], s.hidden_size, model)
        x = nn.LayerNorm(s.layer_norm_eps, name=f"{model}.pre_layrnorm")(x)
        for i in range(s.num_hidden_layers):
            x = Block(s, name=f"{model}.encoder.layers.{i}")(x, causal=False)
        x = nn.LayerNorm(s.layer_norm_eps, name=f"{model}.post_layernorm")(x[:, 0])
        return nn.Dense(self.projection_dim, use_bias=False, name="visual_projection")(x)


class TextTower(nn.Module):
    """A causal transformer; what it makes of the token that ends a text stands for the text."""

    settings: TextSettings
    projection_dim: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Tokens [B, max_position_embeddings], whatever after the end -> [B, projection_dim]."""
        s, model = self.settings, "text_model"
        words = nn.Embed(s.vocab_size, s.hidden_size, name=f"{model}.embeddings.token_embedding")
        x = words(tokens) + _positions(s.max_position_embeddings, s.hidden_size, model)
        for i in range(s.num_hidden_layers):
            x = Block(s, name=f"{model}.encoder.layers.{i}")(x, causal=True)
        x = nn.LayerNorm(s.layer_norm_eps, name=f"{model}.final_layer_norm")(x)
        legacy = s.eos_token_id == LEGACY_EOS
        end = (tokens if legacy else tokens == s.eos_token_id).argmax(1)
        x = x[jnp.arange(len(tokens)), end]
        return nn.Dense(self.projection_dim, use_bias=False, name="text_projection")(x)


def _positions(count: int, width: int, model: str) -> Array:
    """A learned vector for each position, made inside a compact module: [count, width]."""
    table = nn.Embed(count, width, name=f"{model}.embeddings.position_embedding")
    return table(jnp.arange(count))


def image_tower(settings: Settings) -> tuple[ImageTower, jax.ShapeDtypeStruct]:
    """The tower and the shape of an input to it."""
    s = settings.image
    shape = (1, s.image_size, s.image_size, s.num_channels)
    tower = ImageTower(s, settings.projection_dim)
    return tower, jax.ShapeDtypeStruct(shape, jnp.float32)


def text_tower(settings: Settings) -> tuple[TextTower, jax.ShapeDtypeStruct]:
    """The tower and the shape of an input to it."""
    shape = (1, settings.text.max_position_embeddings)
    tower = TextTower(settings.text, settings.projection_dim)
    return tower, jax.ShapeDtypeStruct(shape, jnp.int32)


def read_settings(folder: Path) -> Settings:
    """Those in `folder`/config.json; BadInput for what is no CLIP model or not known here.

    Old configs have a second version of a section, `text_config_dict` or `vision_config_dict`,
    which goes before the first.
    """
    file = folder / "config.json"
    with safe.reading(file, REMEDY, "is of no use"):
        config = json.loads(safe.content(file))
        if config.get("model_type") != "clip":
            raise ValueError(f"its model_type is {quoted(config.get('model_type'))}")
        settings = Settings(
            _section(TextSettings(), config, "text_config"),
            _section(ImageSettings(), config, "vision_config"),
            config.get("projection_dim", Settings().projection_dim),
        )
        for values in (settings.text, settings.image):
            for key, value in values._asdict().items():
                _check(key, value, type(values._field_defaults[key]))
        _check("projection_dim", settings.projection_dim, int)
    return settings


def _section(defaults, config: dict, name: str):
    given = config.get(f"{name}_dict") or config.get(name) or {}
    return defaults._replace(**{key: given[key] for key in defaults._fields if key in given})


def _check(key: str, value: Any, kind: type[Any]) -> None:
    if key == "hidden_act":
        if str(value) not in ACTIVATIONS:
            raise ValueError(f"hidden_act is {quoted(value)}; {nearest(str(value), ACTIVATIONS)}")
    elif type(value) is not kind or value <= 0:
        raise ValueError(f"{key} is {quoted(value)}")


def read_weights(file: Path, tower: nn.Module, example: jax.ShapeDtypeStruct) -> Mapping:
    """The tower's params, float32, by name from the hub's model.safetensors of both towers.

    `example` is the shape of an input. BadInput for a tensor of the tower that is missing, is not
    of the shape that config.json asks for, or is one too many.
    """
    from safetensors import safe_open

    reading = safe.reading(file, REMEDY)
    with reading, safe_open(file, "numpy") as stored:  # bfloat16 needs ml_dtypes, as jax has
        names = set(stored.keys())
        _check_layers(tower, len(names))
        shapes = jax.eval_shape(tower.init, jax.random.key(0), example)["params"]
        used = [_tensor_name(path) for path in traverse_util.flatten_dict(shapes)]
        _check_names(file, set(used), names)
        tensors = {name: stored.get_tensor(name) for name in used}

    def fill(path, expected):
        name = _tensor_name(path)
        tensor = _as_in_flax(path[-1], tensors[name])
        if tensor.shape != expected.shape:
            raise BadInput(
                f"{file}: {name} has shape {list(tensors[name].shape)}, which is not what"
                f" config.json asks for: {REMEDY}"
            )
        return tensor.astype(np.float32)

    return traverse_util.path_aware_map(fill, shapes)


def _check_layers(tower: nn.Module, tensors: int) -> None:
    """ValueError for more layers than tensors; a tower of so many would take for ever to make."""
    layers = tower.settings.num_hidden_layers
    if layers > tensors:
        raise ValueError(f"config.json asks for {layers} layers, but there are {tensors} tensors")


def _check_names(file: Path, used: set[str], names: set[str]) -> None:
    missing = sorted(used - names)
    if missing:
        raise BadInput(f"{file} has no tensor {missing[0]} ({len(missing)} missing): {REMEDY}")
    models = {name.split(".")[0] for name in used}
    of_models = {name for name in names if name.split(".")[0] in models}
    surplus = sorted(name for name in of_models - used if not name.endswith("position_ids"))
    if surplus:
        raise BadInput(f"{file}: config.json knows no tensor {surplus[0]}: {REMEDY}")


def _tensor_name(path: tuple[str, ...]) -> str:
    *modules, leaf = path
    is_weight = leaf in ("kernel", "scale", "embedding")
    return ".".join((*modules, "weight" if is_weight else leaf))


def _as_in_flax(leaf: str, tensor: np.ndarray) -> np.ndarray:
    """Kernels have their inputs before their outputs, in images after the two sides."""
    if leaf != "kernel":
        return tensor
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
