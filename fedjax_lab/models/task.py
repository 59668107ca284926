"""Converts a Flax module to the two pure functions that methods use."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from fedjax_lab import defaults, losses, tree
from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.models import calls, head, layers, mixed_precision, modules, pretrained
from fedjax_lab.models.head import HEAD, Head
from fedjax_lab.types import Array, Objective, Output, Task, Weights

FITTING = {"segmentation": "unet", "tokens": "causal_transformer"}  # models by task


@defaults.restored()
def make_task(
    module: nn.Module,
    sample_shape: tuple[int, ...],
    objective: Objective | int,
    dtype=jnp.float32,
    lowest: Array | float = 0.0,
    highest: Array | float = 1.0,
    compute_dtype=jnp.float32,
    pretrained_file: str = "",
) -> Task:
    """The task of a model for examples of shape `sample_shape` (without a batch axis).

    objective: what the model learns; a number K means the classification of K classes.

    `module(x)` must return logits [B, *outputs], or (logits, features), with features [B, D] for
    logits [B, K]. The features are the input of its last layer, a Dense; the task calls that layer
    `head`, whatever its name in the module. See `models.modules` for further arguments that the
    module may have.

    Inputs are between `lowest` and `highest`, [] or [channels], the bounds of the task. If
    `compute_dtype` is not float32, it is the type of the products: see `models.mixed_precision`.
    The initial weights are read from the file that the module's field `pretrained` names, or else
    from `pretrained_file` (see `models.pretrained`); if both are "", they are random.

    Raises BadInput if the module, its shapes or the file are invalid.
    """
    survey = _survey(module, sample_shape, dtype)
    objective = losses.as_objective(objective)
    last = _check(module, survey, objective)
    init: Callable[[Array], Weights] = partial(first_weights, module, last, sample_shape, dtype)
    kinds = {HEAD if path == last.path else path: kind for path, kind in survey.kinds.items()}
    if file := getattr(module, "pretrained", "") or pretrained_file:
        published = module.published_names() if hasattr(module, "published_names") else ()
        init = pretrained.starting_from(file, published, init, last.path)
    apply: Callable[..., Output] = partial(forward, module, last, survey.gives_features)
    train = partial(_trained_shapes, apply, survey.weights(last), sample_shape, dtype)
    if not survey.gives_features:
        _check_features(module, train(2))
    norms = _typed_paths(kinds, modules.batch_norms())
    if norms:
        train(UNLIKELY)  # raises BadInput unless each BatchNorm can tell the padded rows of a batch
    if compute_dtype != jnp.float32:
        exact = _typed_paths(kinds, mixed_precision.normalizations())
        apply = mixed_precision.computing_in(compute_dtype, apply, exact)
    return Task(
        init=init,
        apply=apply,
        objective=objective,
        layers=tuple(kinds),
        batch_norms=norms,
        dense=_typed_paths(kinds, _dense_types()),
        input_shape=tuple(sample_shape),
        apply_at=partial(forward_at, apply, tuple(kinds)),
        bounds=(lowest, highest),
    )


# Properties of a module.

UNLIKELY = 10_007  # a number of examples that no other axis has; nothing of this size is computed


class Survey(NamedTuple):
    """Properties of a module, found by a pass over two examples."""

    kinds: dict[str, type]  # type of each layer with weights by path, in the order of the pass
    outputs: Any  # shapes of the outputs
    variables: Any  # shapes of the variables, by collection

    @property
    def gives_features(self) -> bool:
        """Whether the module returns features besides logits."""
        return isinstance(self.outputs, (tuple, list))

    def weights(self, last: Head) -> Weights:
        """The shapes of the initial weights. last: the module's head."""
        stats = self.variables.get("batch_stats", {})
        return Weights(head.named(last, self.variables["params"]), stats)


def _survey(module, sample_shape, dtype):
    modules.check_module(module)
    kinds: dict[str, type] = {}

    def note(layer, call, args, kwargs):
        kinds.setdefault(layer.path, type(layer.module))
        return call(*args, **kwargs)

    def init():
        return modules.init(module, jax.random.key(0), jnp.zeros((2, *sample_shape), dtype))

    with calls.intercepted(note):
        outputs, variables = jax.eval_shape(init)
    holders = {name.split("/", 1)[1].rsplit("/", 1)[0] for name in tree.names(variables)}
    kinds = {path: kind for path, kind in kinds.items() if path in holders}
    return Survey(kinds, outputs, {"params": {}, **variables})


def _check(module, survey, objective):
    """The module's head. Raises BadInput unless the module is a classifier that can be trained."""
    name, kinds, params = modules.name_of(module), survey.kinds, survey.variables["params"]
    for other in sorted(survey.variables.keys() - {"params", "batch_stats"}):
        raise BadInput(
            f"model {name} has variables of the collection {other!r}; only params and batch_stats"
            " can be trained and averaged"
        )
    last = next(reversed(kinds), "")
    dense = f"nn.Dense(num_classes, name={HEAD!r})"
    if not last:
        raise BadInput(
            f"model {name} has no submodule with weights; its last layer must be the Dense that"
            f" computes the logits, for example nn.Sequential([{dense}])"
        )
    if not issubclass(kinds[last], _dense_types()):
        raise BadInput(
            f"the last layer with weights of model {name} is {last!r}, a {kinds[last].__name__}; it"
            f" must be the Dense that computes the logits: {dense}"
        )
    if last != HEAD and HEAD in params:
        raise BadInput(
            f"the last layer of model {name} is {last!r}, but another part of it is named {HEAD!r};"
            f" give the last layer that name: {dense}"
        )
    located = head.find(params, last)
    _check_outputs(name, survey.outputs, last, head.layer_of(located, params), objective)
    return located


def _check_outputs(name, outputs, last, layer, objective):
    """Raises BadInput unless the outputs for two examples are logits, optionally with features."""
    shapes = tuple(getattr(a, "shape", None) for a in _pair(outputs))
    logits, features = shapes if len(shapes) == 2 else (None, None)
    floats = logits and jnp.issubdtype(_pair(outputs)[0].dtype, jnp.floating)
    expected, K = [2, *objective.outputs], objective.outputs[-1]
    if logits != tuple(expected) or not floats:
        shown = jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", outputs)
        what = f"{K} classes" if objective.has_classes else f"task {objective.name}"
        fitting = FITTING.get(objective.name)
        hint = f": choose --config.model.name={fitting}" if fitting else ""
        raise BadInput(
            f"model {name} must return logits, float32{expected} for 2 examples of {what}, alone or"
            f" with features; it returns {quoted(shown, 200)}{hint}"
        )
    width, gives = layer["kernel"].shape[-2:]
    if layer["kernel"].ndim != 2 or gives != K:
        raise BadInput(
            f"the last layer {last!r} of model {name} must compute the logits of {K} classes, but"
            f" its kernel has the shape {list(layer['kernel'].shape)}"
        )
    wanted = [*expected[:-1], width]
    if features not in (None, tuple(wanted)):
        raise BadInput(
            f"the features of model {name} must be the input of its last layer {last!r}, {wanted}"
            f" for 2 examples; it returns {list(features)}"
        )


def _pair(outputs):
    """(logits, features), or (logits, None) if a module returns only logits."""
    return outputs if isinstance(outputs, (tuple, list)) else (outputs, None)


def _trained_shapes(apply, weights, sample_shape, dtype, size):
    """The shapes of the `Output` of a training pass over `size` examples. weights: as shapes."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    x = jax.ShapeDtypeStruct((size, *sample_shape), dtype)
    return jax.eval_shape(apply, weights, x, key, jax.ShapeDtypeStruct((size,), dtype))


def _check_features(module, out):
    """Raises BadInput if the input of the head in a training pass cannot be the features."""
    if out.features.ndim != out.logits.ndim:
        raise BadInput(
            f"the input of the last layer of model {modules.name_of(module)} has the shape"
            f" {list(out.features.shape)} for 2 examples, not [2, D]; pool before that layer"
        )


def _dense_types():
    return calls.with_nnx((nn.Dense,), "Linear")


def _typed_paths(kinds: dict[str, type], types: tuple[type, ...]) -> tuple[str, ...]:
    return tuple(path for path, kind in kinds.items() if issubclass(kind, types))


# The functions of a task.


def first_weights(
    module: nn.Module, last: Head, sample_shape: tuple[int, ...], dtype, key: Array
) -> Weights:
    """The module's initial weights."""
    _, variables = modules.init(module, key, jnp.zeros((1, *sample_shape), dtype))
    return Weights(head.named(last, variables["params"]), variables.get("batch_stats", {}))


def forward(
    module: nn.Module,
    last: Head,
    gives_features: bool,
    weights: Weights,
    x: Array,
    key: Array | None = None,
    mask: Array | None = None,
) -> Output:
    """A pass over a batch x [B, ...]; a key means training mode."""
    params = head.as_in_module(last, weights.params)
    variables = {"params": params, "batch_stats": weights.stats}
    with contextlib.ExitStack() as during:
        during.enter_context(calls.renamed({last.path: HEAD}))
        seen = [] if gives_features else during.enter_context(inputs_of(HEAD))
        outputs, new = modules.apply(module, variables, x, key, mask)
    logits, features = outputs if gives_features else (outputs, seen[-1])
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
    return out._replace(features=mixed_precision.floats_as(out.logits.dtype, seen[0]))


@contextlib.contextmanager
def inputs_of(layer: str, instead: Array | None = None):
    """Inside the context, collects the inputs of the layer at this path in a list, and yields it.

    instead: if given, the layer gets this input. Raises BadInput if the layer is inside a loop of
    the model, where it has many inputs, or if it only holds weights of such a loop.
    """
    seen = []
    level = get_opaque_trace_state()

    def tap(called, call, args, kwargs):
        if called.path == layer and called.method == "__call__":
            if get_opaque_trace_state() != level or isinstance(args[0], int):
                raise BadInput(
                    f"layer {layer!r} is inside a loop of the model or a remat, so that its input"
                    " cannot be read or replaced; choose another model or another layer"
                )
            seen.append(args[0])
            args = args if instead is None else (instead.astype(args[0].dtype), *args[1:])
        return call(*args, **kwargs)

    with calls.intercepted(tap):
        yield seen


def split_head(task: Task, weights: Weights) -> tuple[Weights, Weights]:
    """(encoder, head): the model without its last dense layer, and that layer; gaps are None."""
    of_head, encoder = tree.split(tree.within((task.head,)), weights)
    return encoder, of_head


def check_bias(task: Task, method: str) -> None:
    """Raises BadInput if the model's head has no bias, which this method needs."""
    if "bias" not in _no_head(task).params[HEAD]:
        raise BadInput(
            f"method {method} needs a model whose head has a bias; choose another config.model.name"
        )


def encode(task: Task, encoder: Weights, x: Array) -> Array:
    """The features [B, D] of an encoder (see `split_head`) for x [B, ...] in evaluation mode."""
    return task.apply(tree.join(encoder, _no_head(task)), x).features


def with_projection(task: Task, width: int) -> Task:
    """The task with two layers, dense D -> D, ReLU, dense D -> width, between features and head.

    The features are then the output of the second layer, [B, width].
    """
    old_head = _no_head(task).params[HEAD]
    top = Projection(task.objective.outputs[-1], old_head["kernel"].shape[0], width)

    def init(key: Array) -> Weights:
        body = task.init(key)
        z = jnp.zeros((1, top.hidden))
        return Weights(
            {**body.params, **top.init(jax.random.fold_in(key, 1), z)["params"]}, body.stats
        )

    def apply(weights, x, key=None, mask=None) -> Output:
        body = weights._replace(params={**weights.params, HEAD: old_head})
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
    """MOON's projection: two dense layers and a head on features [B, D]."""

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
    """The `Output.extra` of a training pass of a task with a side head."""

    features: Array  # z P [B, size]
    logits: Array  # o_P [B, K]


def with_side_head(task: Task, size: int) -> Task:
    """The task with a projection P of its features z to `size`, and a second head on that.

    Both are in the parameter `side`, which does not affect predictions. A training pass by `apply`
    returns a `Side` as `extra`.
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
    """A tree with zeros at the model's head and None elsewhere."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return tree.zeros(split_head(task, shapes)[1])


def has_convolutions(task: Task) -> bool:
    """Whether the model has convolution kernels: parameters with four axes."""
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    return any(len(a.shape) == 4 for a in jax.tree.leaves(shapes))


def is_recurrent(task: Task) -> bool:
    """Whether the model has recurrent cells, by the names that Flax gives them."""
    return any("Cell_" in layer for layer in task.layers)
