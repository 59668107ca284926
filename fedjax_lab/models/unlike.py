"""Models of unlike architectures whose features have one width, so that their heads are alike."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.models import layers
from fedjax_lab.models.head import HEAD
from fedjax_lab.types import Array, Output, Task, Weights


def mixed_task(tasks: list[Task]) -> Task:
    """The first task, with the tasks of all kinds of clients in `Task.kinds`.

    The features of all of them are pooled to the smallest width.
    """
    shapes = [jax.eval_shape(task.init, jax.random.key(0)) for task in tasks]
    width = min(shape.params[HEAD]["kernel"].shape[0] for shape in shapes)
    kinds = tuple(with_features(task, width) for task in tasks)
    return kinds[0]._replace(kinds=kinds)


def with_features(task: Task, width: int) -> Task:
    """The task with features that are pooled to this width, and a head for them.

    With P the pooling, features are h P, and the head W' [width, K] replaces the head W = P W' of
    the model, whose logits are h P W'. A model with features of this width is not changed.
    """
    inputs, outputs = jax.eval_shape(task.init, jax.random.key(0)).params[HEAD]["kernel"].shape
    if inputs == width:
        return task
    P = pooling(inputs, width)
    inverse = np.linalg.pinv(P).astype(np.float32)  # h = h' inverse has the pooled features h'

    def init(key: Array) -> Weights:
        w = task.init(key)
        k_kernel, k_bias = jax.random.split(jax.random.fold_in(key, 3))
        first = layers.first_affine(k_kernel, k_bias, width, outputs)
        return _with_head(w, {name: first[name] for name in w.params[HEAD]})

    def whole(w: Weights) -> Weights:
        head = w.params[HEAD]
        return _with_head(w, {**head, "kernel": jnp.matmul(P, head["kernel"], precision="highest")})

    def pooled(features: Array) -> Array:
        return jnp.matmul(features, P, precision="highest")

    def apply(w, x, key=None, mask=None) -> Output:
        out = task.apply(whole(w), x, key, mask)
        return out._replace(features=pooled(out.features))

    def apply_at(layer, w, x, features=None, key=None, mask=None) -> Output:
        given = features
        if layer == HEAD and features is not None:
            given = jnp.matmul(features, inverse, precision="highest")
        out = task.apply_at(layer, whole(w), x, given, key, mask)
        of_head = layer == HEAD or features is not None
        return out._replace(features=pooled(out.features)) if of_head else out

    return task._replace(init=init, apply=apply, apply_at=apply_at)


def pooling(inputs: int, width: int) -> np.ndarray:
    """The matrix [inputs, width] of PyTorch's adaptive average pooling of a vector."""
    places = np.arange(inputs)[:, None]
    begin = np.arange(width) * inputs // width
    end = -(-np.arange(1, width + 1) * inputs // width)
    inside = (begin <= places) & (places < end)
    return (inside / (end - begin)).astype(np.float32)


def _with_head(w: Weights, head: dict) -> Weights:
    return w._replace(params={**w.params, HEAD: head})
