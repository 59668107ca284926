"""A Flax module as the two pure functions that methods use."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from fedjax_lab import tree
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.models import layers, mixed_precision, pretrained
from fedjax_lab.types import Array, Output, Task, Weights


def make_task(
    module: nn.Module,
    sample_shape: tuple[int, ...],
    num_classes: int,
    dtype=jnp.float32,
    lowest: Array | float = 0.0,
    highest: Array | float = 1.0,
    compute_dtype=jnp.float32,
) -> Task:
    """The task of a classifier whose examples have `sample_shape` (no batch axis).

    `module(x, train=, mask=)` gives (logits [B, K], features [B, D]). Bad shapes raise here, and a
    bad file of first weights (`module.pretrained`).
    Inputs are from `lowest` to `highest`, [] or [channels], the range of `Task.noise`.
    A `compute_dtype` other than float32 is that of the products: see `models.mixed_precision`.
    """

    init = partial(first_weights, module, sample_shape, dtype)
    kinds = _layers(init)
    if getattr(module, "pretrained", ""):
        names = module.published_names()
        init = pretrained.starting_from(module.pretrained, names, init)  # type: ignore[assignment]
    dense = _of_type(kinds, nn.Dense)
    if not tuple(kinds)[-1:] == dense[-1:] == ("head",):
        raise BadInput("the last layer of a model must be a Dense named 'head'")
    apply: Callable[..., Output] = partial(forward, module)
    if compute_dtype != jnp.float32:
        normalizations = _of_type(kinds, *mixed_precision.NORMALIZATIONS)
        apply = mixed_precision.computing_in(compute_dtype, apply, normalizations)
    return Task(
        init=init,
        apply=apply,
        num_classes=num_classes,
        layers=tuple(kinds),
        batch_norms=_of_type(kinds, layers.BatchNorm, nn.BatchNorm),
        dense=dense,
        input_shape=tuple(sample_shape),
        noise=partial(uniform_noise, sample_shape, dtype, lowest, highest),
        apply_at=partial(forward_at, apply, tuple(kinds)),
        lowest=lowest,
        highest=highest,
    )


# The functions of a task.


def first_weights(module: nn.Module, sample_shape: tuple[int, ...], dtype, key: Array) -> Weights:
    """The module's first weights."""
    variables = module.init(key, jnp.zeros((1, *sample_shape), dtype))
    return Weights(variables["params"], variables.get("batch_stats", {}))


def forward(
    module: nn.Module,
    weights: Weights,
    x: Array,
    key: Array | None = None,
    mask: Array | None = None,
) -> Output:
    """One pass of a batch x [B, ...]; a key means training mode."""
    variables = {"params": weights.params, "batch_stats": weights.stats}
    if key is None:
        outputs: Any = module.apply(variables, x)
        logits, features = outputs
        return Output(logits, features, weights.stats)
    (logits, features), new = module.apply(
        variables, x, train=True, mask=mask, rngs={"dropout": key}, mutable=["batch_stats"]
    )
    return Output(logits, features, new.get("batch_stats", weights.stats))


def forward_at(
    apply: Callable[..., Output],
    names: tuple[str, ...],
    layer: str,
    weights: Weights,
    x: Array,
    features: Array | None = None,
    key: Array | None = None,
    mask: Array | None = None,
) -> Output:
    """`Task.apply_at` of a model with layers of these names."""
    if layer not in names:
        raise BadInput(f"the model has no layer {layer!r}; {nearest(layer, names)}")
    with inputs_of(layer, features) as seen:
        out = apply(weights, x, key, mask)
    if features is not None:
        return out
    return out._replace(features=mixed_precision.floats_as(jnp.float32, seen[0]))


def uniform_noise(
    sample_shape: tuple[int, ...],
    dtype,
    lowest: Array | float,
    highest: Array | float,
    key: Array,
    count: int,
) -> Array:
    """Inputs [count, *sample_shape], uniform from `lowest` to `highest`."""
    unit = jax.random.uniform(key, (count, *sample_shape), dtype)
    return lowest + unit * (highest - lowest)


@contextlib.contextmanager
def inputs_of(layer: str, instead: Array | None = None):
    """A list that fills with what the layer at this path is given by all that is applied inside.

    With `instead` the layer gets that. BadInput where the layer is inside a loop of the model,
    which gives it many inputs.
    """
    seen = []
    level = get_opaque_trace_state()

    def tap(call, args, kwargs, context):
        if "/".join(context.module.path) == layer and context.method_name == "__call__":
            if get_opaque_trace_state() != level:
                raise BadInput(
                    f"layer {layer!r} is inside a loop of the model, so that its input cannot be"
                    " read or replaced; choose another model or another layer"
                )
            seen.append(args[0])
            args = args if instead is None else (instead.astype(args[0].dtype), *args[1:])
        return call(*args, **kwargs)

    with nn.intercept_methods(tap):
        yield seen


def split_head(task: Task, weights: Weights) -> tuple[Weights, Weights]:
    """(encoder, head): the model without its last dense layer, and that layer; None fills gaps."""
    head, encoder = tree.split(tree.within(task.dense[-1:]), weights)
    return encoder, head


def encode(task: Task, encoder: Weights, x: Array) -> Array:
    """What an encoder (of `split_head`) makes of inputs x [B, ...] in evaluation mode: [B, D]."""
    return task.apply(tree.join(encoder, _no_head(task)), x).features


def with_projection(task: Task, width: int) -> Task:
    """The task with two layers, dense D -> D, ReLU, dense D -> width, between features and head.

    The features are then the output of the second, [B, width].
    """
    head = _no_head(task).params["head"]
    top = Projection(task.num_classes, head["kernel"].shape[0], width)

    def init(key: Array) -> Weights:
        body = task.init(key)
        z = jnp.zeros((1, top.hidden))
        return Weights(
            {**body.params, **top.init(jax.random.fold_in(key, 1), z)["params"]}, body.stats
        )

    def apply(weights, x, key=None, mask=None) -> Output:
        body = weights._replace(params={**weights.params, "head": head})
        out = task.apply(body, x, key, mask)
        top_output: Any = top.apply({"params": weights.params}, out.features)
        logits, z = top_output
        return out._replace(logits=logits, features=z)

    added = ("projection_0", "projection_1")
    return task._replace(
        init=init,
        apply=apply,
        layers=(*task.layers[:-1], *added, "head"),
        dense=(*task.dense[:-1], *added, "head"),
    )


class Projection(nn.Module):
    """MOON's: two dense layers and a head on features [B, D]."""

    num_classes: int
    hidden: int  # D
    width: int

    @nn.compact
    def __call__(self, h: Array):
        """Features [B, D] -> logits [B, K], projections [B, width]."""
        z = nn.relu(layers.dense(h, self.hidden, name="projection_0"))
        z = layers.dense(z, self.width, name="projection_1")
        return layers.dense(z, self.num_classes, name="head"), z


class Side(NamedTuple):
    """What a training pass of a task with a side head gives as `Output.extra`."""

    features: Array  # z P [B, size]
    logits: Array  # o_P [B, K]


def with_side_head(task: Task, size: int) -> Task:
    """The task with a projection P of its features z to `size`, and a second head on that.

    Both are parameters, `side`, that predictions do not depend on; a training pass by `apply` gives
    a `Side` as `extra`.
    """
    d = _no_head(task).params["head"]["kernel"].shape[0]

    def init(key: Array) -> Weights:
        body = task.init(key)
        k_P, k_head, k_bias = jax.random.split(jax.random.fold_in(key, 2), 3)
        P = layers.torch_uniform(d)(k_P, (d, size))
        side = {"P": P, "head": layers.first_affine(k_head, k_bias, size, task.num_classes)}
        return Weights({**body.params, "side": side}, body.stats)

    def apply(weights, x, key=None, mask=None) -> Output:
        out = task.apply(_without_side(weights), x, key, mask)
        if key is None:
            return out
        side = weights.params["side"]
        z_P = out.features @ side["P"]
        return out._replace(extra=Side(z_P, layers.affine(side["head"], z_P)))

    def apply_at(layer, weights, x, features=None, key=None, mask=None) -> Output:
        return task.apply_at(layer, _without_side(weights), x, features, key, mask)

    return task._replace(init=init, apply=apply, apply_at=apply_at)


def _without_side(weights):
    params = {name: part for name, part in weights.params.items() if name != "side"}
    return weights._replace(params=params)


def _no_head(task):
    """Zeros where a model's head is, None elsewhere."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return tree.zeros(split_head(task, shapes)[1])


def _layers(init) -> dict[str, type]:
    """Path and type of each module with weights of its own, in the order of the forward pass."""
    kinds: dict[str, type] = {}

    def note(call, args, kwargs, context):
        kinds.setdefault("/".join(context.module.path), type(context.module))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        shapes = jax.eval_shape(init, jax.random.key(0))
    holders = {name.split("/", 1)[1].rsplit("/", 1)[0] for name in tree.names(shapes)}
    return {path: kind for path, kind in kinds.items() if path in holders}


def _of_type(kinds: dict[str, type], *types: type) -> tuple[str, ...]:
    return tuple(path for path, kind in kinds.items() if issubclass(kind, types))


def has_convolutions(task: Task) -> bool:
    """Whether the model has convolution kernels, the leaves with four axes."""
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    return any(len(a.shape) == 4 for a in jax.tree.leaves(shapes))
