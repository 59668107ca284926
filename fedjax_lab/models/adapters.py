"""What is trained of a model: all weights, those of some layers, or low-rank adapters (LoRA).

LoRA (Hu et al., ICLR 2022, arXiv:2106.09685), for a matrix W [d, f] that is applied as x W:

  y = x W + s (x A) B,  A [d, r],  B [r, f],  s = alpha / r                     (L1)

A starts at random, B at 0. Numbers of formulas such as L1 are this package's own. The products are
computed by qwix, which also quantizes the frozen matrices.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from fedjax_lab import tree
from fedjax_lab.errors import BadInput, missing, nearest
from fedjax_lab.models import frozen as freezing
from fedjax_lab.models import peft_files
from fedjax_lab.models.frozen import Model
from fedjax_lab.models.head import HEAD
from fedjax_lab.ranges import BelowOne, OneOf, Positive, checked
from fedjax_lab.types import Adapters, Array, Objective, Task, Weights

A, B = peft_files.FACTORS  # how the names of the factors end
BASE_SEED = 0  # of the frozen weights of a model without pretrained ones
TYPES = {32: "float32", 16: "bfloat16", 8: "int8", 4: "nf4"}
NF4_BLOCK = 64  # numbers that share a scale, as in QLoRA

MakeTask = Callable[[nn.Module, str], Task]  # (module, file of its initial weights) -> its task


class Adapter(NamedTuple):
    """A part of a model that is trained.

    layers: names of the layers that are trained besides; a name may be a part of a path.
    """

    layers: tuple[str, ...]
    lora: "Lora | None" = None


class Lora(NamedTuple):
    """The settings of `lora`."""

    rank: int
    scale: float
    targets: tuple[str, ...]
    dropout: float
    bits: int
    start: str


def none(objective: Objective) -> None:
    """All weights are trained."""


def frozen(objective: Objective, *, layers: str = HEAD) -> Adapter:
    """Some layers are trained; the others keep their (pretrained) weights.

    layers: the names of the layers that are trained, separated by commas. A name selects every
      layer whose path contains it, such as blocks or blocks/mlp_1; `head` is the last layer.
    """
    return Adapter(_names("layers", layers))


@checked("adapter")
def lora(
    objective: Objective,
    *,
    rank: Positive[int] = 8,
    alpha: Positive[float] = 16.0,
    targets: str = "q,v",
    layers: str = "auto",
    dropout: BelowOne = 0.0,
    rslora: bool = False,
    bits: Annotated[int, OneOf(TYPES)] = 32,
    start: str = "",
) -> Adapter:
    """Low-rank adapters of some layers are trained; everything else is frozen.

    rank: r, the rank of an adapter.
    alpha: the scale s of the adapters' product is alpha / r.
    targets: the names of the dense layers that get adapters, separated by commas, as in `layers`.
    layers: the names of the layers that are trained as a whole; auto: the head, unless
      config.task.name=tokens, whose head is that of the language model.
    dropout: the rate of dropout on the adapters' input.
    rslora: whether s is alpha / sqrt(r) instead.
    bits: of the numbers of frozen kernels of dense layers: 32 (as in the model), 16 (bfloat16), 8
      (int8) or 4 (nf4); with 8 and 4 the head is bfloat16. Embeddings and norms keep their type.
    start: a folder of PEFT with the initial adapters, as a run exports them; empty: A is random.
    """
    auto = () if objective.name == "tokens" else (HEAD,)
    scale = alpha / (math.sqrt(rank) if rslora else rank)
    factors = Lora(rank, scale, _names("targets", targets), dropout, bits, start)
    return Adapter(auto if layers == "auto" else _names("layers", layers, empty=True), factors)


def _names(key, text, empty=False):
    names = tuple(name.strip("/ ") for name in text.split(",") if name.strip("/ "))
    if not names and not empty:
        raise BadInput(f"config.adapter.{key} is empty; name layers of the model, such as {HEAD}")
    return names


def apply(adapter: Adapter | None, net: nn.Module, pretrained: str, make: MakeTask) -> Model:
    """The model with the part of it that is trained.

    pretrained: the file of the initial weights; "": they are random. make: see `MakeTask`.

    Raises BadInput if a name matches no layer, or if qwix is needed and not installed.
    """
    whole = make(net, pretrained)
    if adapter is None:
        return freezing.model_of(whole)
    full = whole if adapter.lora is None else _with_factors(adapter.lora, net, make, whole.dense)
    _check_names("layers", adapter.layers, whole.layers)
    shapes = jax.eval_shape(full.init, jax.random.key(BASE_SEED))
    published = net.module_names() if hasattr(net, "module_names") else {}
    first = _first_factors(adapter.lora, shapes, published)

    def init(key: Array) -> Weights:
        return _taken(shapes, {**tree.by_name(whole.init(key)), **first}, full.init(key))

    def load() -> Weights:
        key = jax.random.key(BASE_SEED)
        weights = whole.init(key) if pretrained else jax.jit(whole.init)(key)
        return _taken(shapes, tree.by_name(_in_bits(adapter.lora, weights, shapes)))

    trained = functools.partial(_is_trained, adapter.layers)
    model = freezing.freeze(full._replace(init=init), load, trained)
    return model if adapter.lora is None else _changeable(model, adapter.lora, published)


def _is_trained(layers: tuple[str, ...], name: str) -> bool:
    return name.endswith((A, B)) or any(_is_in(layer, name) for layer in layers)


def _is_in(layer: str, path: str) -> bool:
    """Whether the name of a layer is a part of a path."""
    return f"/{layer}/" in f"/{path}/"


def _check_names(key: str, chosen: tuple[str, ...], layers: tuple[str, ...]) -> None:
    """Raises BadInput, with the nearest part of a path, if a name matches no layer."""
    for name in chosen:
        if not any(_is_in(name, layer) for layer in layers):
            parts = {part for layer in layers for part in (layer, *layer.split("/"))}
            raise BadInput(
                f"config.adapter.{key}: the model has no layer {name!r}; {nearest(name, parts)}"
            )


# Low-rank factors.


def _first_factors(lora: Lora | None, shapes: Weights, published: dict) -> dict[str, Any]:
    """The initial factors that are in a folder, by name."""
    if lora is None or not lora.start:
        return {}
    return peft_files.read(lora.start, shapes, lora.scale, published)


def _changeable(model: Model, lora: Lora, published: dict[str, str]) -> Model:
    """The model, whose tasks can be bound to a changed base: `Task.adapters`."""

    def bind(base):
        def changed(changes):
            return bind(_changed(base, changes, lora.bits))

        made = Adapters(lora.scale, changed, published, given=bool(lora.start))
        return model.bind(base)._replace(adapters=made)

    return model._replace(bind=bind)


def _changed(base: Weights, changes: dict[str, Array], bits: int) -> Weights:
    """The base with numbers added to its kernels, in float32. BadInput if these are quantized."""
    if bits <= 8:
        raise BadInput(
            f"config.adapter.bits={bits}: this method changes the frozen weights, which are"
            " quantized; use 16 or 32"
        )

    def one(name, leaf):
        change = changes.get(name.split("/", 1)[1])
        if change is None:
            return leaf
        return freezing.as_array(leaf).astype(jnp.float32) + change.reshape(leaf.shape)

    return tree.map_named(one, base)


def _with_factors(lora: Lora, net: nn.Module, make: MakeTask, dense: tuple[str, ...]) -> Task:
    """The task of the module with factors A and B beside the kernels of the targets.

    dense: the paths of the dense layers.
    """
    evaluation = make(_wrapped(lora._replace(dropout=0.0), net, dense), "")
    _check_names("targets", lora.targets, evaluation.layers)
    shapes = tree.by_name(jax.eval_shape(evaluation.init, jax.random.key(BASE_SEED)))
    _check_factors(lora.targets, shapes, dense)
    training = make(_wrapped(lora, net, dense), "") if lora.dropout else evaluation

    def init(key):
        return _factors_as(evaluation.init(key), lambda name: jnp.float32)

    def typed(weights):  # as the module's own kernels, which may be bfloat16
        return _factors_as(weights, lambda name: shapes[name].dtype)

    def apply(weights, x, key=None, mask=None):
        return (evaluation if key is None else training).apply(typed(weights), x, key, mask)

    def apply_at(layer, weights, x, features=None, key=None, mask=None):
        task = evaluation if key is None else training
        return task.apply_at(layer, typed(weights), x, features, key, mask)

    return evaluation._replace(init=init, apply=apply, apply_at=apply_at)


def _factors_as(weights: Weights, type_of: Callable[[str], Any]) -> Weights:
    """The weights with the factors in the type that their name has."""

    def one(name, leaf):
        return leaf.astype(type_of(name)) if name.endswith((A, B)) else leaf

    return tree.map_named(one, weights)


def _wrapped(lora: Lora, net: nn.Module, dense: tuple[str, ...]) -> nn.Module:
    """The module with adapters, computed by qwix; the same weights with and without dropout."""
    try:
        import qwix
    except ImportError as error:
        raise missing(error, "llm") from None
    quantized: dict[str, Any] = {}
    if lora.bits <= 8:
        quantized = {"weight_qtype": TYPES[lora.bits]}
    if lora.bits == 4:
        quantized["tile_size"] = NF4_BLOCK
    if hasattr(net, "pretrained"):
        net = net.clone(pretrained="")  # those of the base are read once
    names = "|".join(map(re.escape, lora.targets))
    factors = qwix.LoraRule(
        module_path=f"(.*/)?({names})(/.*)?",
        rank=lora.rank,
        alpha=lora.scale * lora.rank,
        dropout=lora.dropout,
        lora_a_initializer=nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
        **quantized,
    )
    rules = [factors]
    if quantized:
        paths = "|".join(re.escape(path) for path in dense if path != HEAD)
        others = qwix.QuantizationRule(module_path=paths, **quantized)
        rules.append(others)
    return qwix.apply_lora_to_model(net, qwix.LoraProvider(rules))


def _check_factors(targets: tuple[str, ...], names: Iterable[str], dense: tuple[str, ...]) -> None:
    """Raises BadInput unless a layer of each target has factors.

    names: of all weights. dense: the paths of the dense layers.
    """
    having = [name for name in names if name.endswith(A)]
    for target in targets:
        if not any(_is_in(target, name) for name in having):
            raise BadInput(
                f"config.adapter.targets: the layer {target!r} has no matrix; name dense layers,"
                f" such as {', '.join(dense[:3])}"
            )


# The frozen weights.


def _taken(shapes: Weights, first: dict[str, Array], rest: Weights | None = None) -> Weights:
    """Weights of this structure: those of `first` by their names, or else those of `rest`."""
    given = {**({} if rest is None else tree.by_name(rest)), **first}
    return tree.map_named(lambda name, _: given.get(name), shapes)


def _quantized(params: dict, like: dict) -> dict:
    """The parameters with those kernels quantized that are quantized in `like`, which has shapes.

    Leading axes of a kernel, as those of a loop over layers, are quantized one by one.
    """
    import qwix

    made = {}
    for path, kernel in traverse_util.flatten_dict(params).items():
        target: Any = functools.reduce(lambda inside, key: inside[key], path, like)
        if isinstance(target, jax.ShapeDtypeStruct):
            made[path] = kernel
            continue
        axes = kernel.ndim - 2
        one = jax.tree.map(lambda s, n=axes: jax.ShapeDtypeStruct(s.shape[n:], s.dtype), target)

        def quantize(matrix, one=one):
            return qwix.quantize_params({"kernel": matrix}, {"kernel": one})["kernel"]

        for _ in range(axes):
            quantize = jax.vmap(quantize)
        made[path] = quantize(kernel)
    return traverse_util.unflatten_dict(made)


def _in_bits(lora: Lora | None, weights: Weights, shapes: Weights) -> Weights:
    """The weights with the kernels of dense layers in the type of the base."""
    if lora is None or lora.bits == 32:
        return weights
    if lora.bits <= 8:
        weights = weights._replace(params=_quantized(weights.params, shapes.params))

    def smaller(name, x):
        is_dense = name.endswith("/kernel") and x.ndim < 4  # a convolution's kernel has four axes
        return x.astype(jnp.bfloat16) if is_dense else x

    return tree.map_named(smaller, weights)
