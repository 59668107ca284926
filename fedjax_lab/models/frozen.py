"""A model of which a part is frozen: the base, which is the same for all clients and all seeds.

The weights that methods train, send and average are then only those of the other part. The base is
an argument of every compiled function, is placed on the devices once, and has no axis of clients.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models import calls, layers
from fedjax_lab.types import Array, Output, PyTree, Task, Weights


class Model(NamedTuple):
    """A model, and its base if a part of it is frozen."""

    bind: Callable[[PyTree], Task]  # base -> the task of the weights that are trained
    base: PyTree = ()  # shapes of the frozen weights
    load: Callable[[], PyTree] = tuple  # () -> the frozen weights

    def changed(self, change: Callable[[Task], Task]) -> "Model":
        """The model with a change of its tasks."""
        return self._replace(bind=lambda base: change(self.bind(base)))

    @property
    def unbound(self) -> Task:
        """The task with a base of NaN, for shapes: nothing can be computed with it by mistake."""
        return self.bind(self.base)


def model_of(task: Task) -> Model:
    """A model that is trained as a whole."""
    return Model(lambda base: task)


def freeze(task: Task, load: Callable[[], PyTree], trained: Callable[[str], bool]) -> Model:
    """The model in which only the weights with the names that `trained` selects are trained.

    load: () -> all weights of the task; those of the frozen part are used.

    A BatchNorm without trained weights normalizes with its running statistics, which do not change.
    """
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    of_trained, _ = tree.split(trained, shapes)
    with_weights = _layers_of(of_trained, task.layers)
    norms = tuple(name for name in task.batch_norms if name not in with_weights)

    def frozen_part():
        return tree.split(trained, load())[1]

    def bind(base):
        def whole(weights):
            return tree.join(weights, jax.tree.map(as_array, base))

        def with_trained_stats(out: Output) -> Output:
            full: Any = shapes._replace(stats=out.stats)
            return out._replace(stats=tree.split(trained, full)[0].stats)

        def apply(weights, x, key=None, mask=None):
            with _in_evaluation(norms):
                return with_trained_stats(task.apply(whole(weights), x, key, mask))

        def apply_at(layer, weights, x, features=None, key=None, mask=None):
            with _in_evaluation(norms):
                out = task.apply_at(layer, whole(weights), x, features, key, mask)
                return with_trained_stats(out)

        return task._replace(
            init=lambda key: tree.split(trained, task.init(key))[0],
            apply=apply,
            apply_at=apply_at,
            layers=with_weights,
            batch_norms=_layers_of(of_trained, task.batch_norms),
            dense=_layers_of(of_trained, task.dense),
        )

    return Model(
        bind, jax.eval_shape(frozen_part), functools.cache(functools.partial(_on_host, frozen_part))
    )


def _on_host(make: Callable[[], PyTree]) -> PyTree:
    """The arrays, which are computed on the host if JAX may use it."""
    try:
        (host, *_) = jax.local_devices(backend="cpu")
    except RuntimeError:  # JAX_PLATFORMS names only an accelerator
        return jax.device_get(make())
    with jax.default_device(host):
        return jax.device_get(make())


def as_array(leaf: Any) -> Array:
    """The leaf; for a shape NaN, or 0 for integers."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.asarray(leaf)
    return jnp.full(
        leaf.shape, jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else 0, leaf.dtype
    )


def _layers_of(weights: Weights, names: tuple[str, ...]) -> tuple[str, ...]:
    """The layers, of these names, that have any of the weights."""
    paths = [name.split("/", 1)[1] for name in tree.names(weights)]
    return tuple(name for name in names if any(path.startswith(name + "/") for path in paths))


def _in_evaluation(norms: tuple[str, ...]) -> Any:
    """Inside the context, these BatchNorms normalize with their running statistics."""

    def hook(layer, call, args, kwargs):
        if layer.path not in norms or layer.method != "__call__":
            return call(*args, **kwargs)
        if not isinstance(layer.module, layers.BatchNorm):
            raise BadInput(
                f"the layer {layer.path} of the model is frozen, but it is a BatchNorm of Flax,"
                " whose mode cannot be changed here; use fedjax_lab.models.layers.BatchNorm"
            )
        return call(args[0], False)

    return calls.intercepted(hook)
