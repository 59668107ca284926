"""CLIP's image and text towers (Radford et al. 2021, arXiv 2103.00020), with weights of the hub.

Both are transformers of pre-normalized blocks, followed by a linear projection to a common width.
Modules are named like the tensors in the hub's model.safetensors, so that a parameter's path is its
tensor's name. The towers are frozen, so there is no dropout and no special initialization.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput
from fedjax_lab.models import hub_files
from fedjax_lab.models.pretrained import numbers
from fedjax_lab.types import Array

LEGACY_EOS = 2  # in configs of OpenAI's models; the end of a text is then its highest token
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
    """The settings of both towers."""

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
    """Self-attention and a two-layer MLP, each normalized before and with a residual connection."""

    settings: TextSettings | ImageSettings

    @nn.compact
    def __call__(self, x: Array, causal: bool) -> Array:
        """x [B, T, D] -> [B, T, D]. `causal`: tokens attend only to themselves and earlier ones."""
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
    """A vision transformer (Dosovitskiy et al. 2021) with layer normalization before its blocks."""

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
    """A causal transformer; the output at the end-of-text token represents the text."""

    settings: TextSettings
    projection_dim: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Tokens [B, max_position_embeddings], any padding after the end -> [B, projection_dim]."""
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
    """Learned position embeddings [count, width]; call it in a compact module."""
    table = nn.Embed(count, width, name=f"{model}.embeddings.position_embedding")
    return table(jnp.arange(count))


def image_tower(settings: Settings) -> tuple[ImageTower, jax.ShapeDtypeStruct]:
    """The image tower, and the shape and type of an input batch of one."""
    s = settings.image
    shape = (1, s.image_size, s.image_size, s.num_channels)
    tower = ImageTower(s, settings.projection_dim)
    return tower, jax.ShapeDtypeStruct(shape, jnp.float32)


def text_tower(settings: Settings) -> tuple[TextTower, jax.ShapeDtypeStruct]:
    """The text tower, and the shape and type of an input batch of one."""
    shape = (1, settings.text.max_position_embeddings)
    tower = TextTower(settings.text, settings.projection_dim)
    return tower, jax.ShapeDtypeStruct(shape, jnp.int32)


def read_settings(folder: Path) -> Settings:
    """The settings in `folder`/config.json. Raises BadInput unless it is a supported CLIP model.

    Old configs have a second version of a section, `text_config_dict` or `vision_config_dict`,
    which takes precedence.
    """
    with hub_files.config(folder, ("clip",), REMEDY) as config:
        settings = Settings(
            _section(TextSettings(), config, "text_config"),
            _section(ImageSettings(), config, "vision_config"),
            config.get("projection_dim", Settings().projection_dim),
        )
        for values in (settings.text, settings.image):
            for key, value in values._asdict().items():
                if key == "hidden_act":
                    hub_files.check_word(key, value, ACTIVATIONS)
                else:
                    hub_files.check(key, value, type(values._field_defaults[key]))
        hub_files.check("projection_dim", settings.projection_dim, int)
    return settings


def _section(defaults, config: dict, name: str):
    given = config.get(f"{name}_dict") or config.get(name) or {}
    return defaults._replace(**{key: given[key] for key in defaults._fields if key in given})


def read_weights(file: Path, tower: nn.Module, example: jax.ShapeDtypeStruct) -> Mapping:
    """The tower's parameters, float32, from the hub's model.safetensors of both towers.

    example: the shape and type of an input. Raises BadInput if a tensor of the tower is missing,
    unexpected, or not of the shape in config.json.
    """
    from safetensors import safe_open

    reading = safe.reading(file, REMEDY)
    with reading, safe_open(file, "numpy") as stored:  # bfloat16 needs ml_dtypes, as JAX does
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
                f"{file}: {name} has shape {list(tensors[name].shape)}, which does not match"
                f" config.json: {REMEDY}"
            )
        return numbers(f"{file}: {name}", tensor).astype(np.float32)

    return traverse_util.path_aware_map(fill, shapes)


def _check_layers(tower: nn.Module, tensors: int) -> None:
    """Raises ValueError for more layers than tensors: such a tower could take forever to build."""
    layers = tower.settings.num_hidden_layers
    if layers > tensors:
        raise ValueError(f"config.json has {layers} layers, but there are only {tensors} tensors")


def _check_names(file: Path, used: set[str], names: set[str]) -> None:
    missing = sorted(used - names)
    if missing:
        raise BadInput(f"{file} has no tensor {missing[0]} ({len(missing)} missing): {REMEDY}")
    models = {name.split(".")[0] for name in used}
    of_models = {name for name in names if name.split(".")[0] in models}
    surplus = sorted(name for name in of_models - used if not name.endswith("position_ids"))
    if surplus:
        raise BadInput(f"{file}: the tensor {surplus[0]} is not in config.json's model: {REMEDY}")


def _tensor_name(path: tuple[str, ...]) -> str:
    *modules, leaf = path
    is_weight = leaf in ("kernel", "scale", "embedding")
    return ".".join((*modules, "weight" if is_weight else leaf))


def _as_in_flax(leaf: str, tensor: np.ndarray) -> np.ndarray:
    """The tensor in Flax's layout: spatial axes, then inputs, then outputs."""
    if leaf != "kernel":
        return tensor
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
