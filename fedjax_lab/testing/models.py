"""The check of a model."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_lab import defaults, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.registry import bind
from fedjax_lab.models import calls
from fedjax_lab.models.task import make_task
from fedjax_lab.testing.failure import CheckFailed, check, check_same, section
from fedjax_lab.types import Batch, Task


@defaults.restored()
def check_model(
    model: str | Callable,
    shape: tuple[int, ...] = (16, 16, 1),
    num_classes: int = 4,
    **settings,
) -> Task:
    """Raises CheckFailed unless methods can train the model. Returns the model's task.

    model: (num_classes, *, settings) -> module; or the name of a model, or a reference.
    shape: the shape of an example.
    num_classes: the number of classes.
    **settings: values that replace the defaults of the model's settings.
    """
    try:
        module = bind("model", section("model", model, settings))(num_classes)
        task = make_task(module, shape, num_classes)
    except BadInput as error:
        raise CheckFailed(str(error)) from error
    weights = jax.jit(task.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (6, *shape))
    _check_passes(task, weights, x)
    _check_training(task, weights, x, num_classes)
    return task


def _check_passes(task, weights, x):
    """Checks that logits depend only on weights and example, also for several clients at once."""
    out = jax.jit(task.apply)(weights, x)
    check(bool(jnp.isfinite(out.logits).all()), "the logits of the initial weights are not finite")
    alone = jax.jit(task.apply)(weights, x[:2])
    what = "in evaluation an example's logits depend on the other examples of its batch"
    check_same(alone.logits, out.logits[:2], what, rtol=1e-3, atol=1e-4)
    both = jax.jit(jax.vmap(task.apply))(tree.repeat(weights, 2), jnp.stack([x, x]))
    what = "the logits differ under jax.vmap over clients"
    check_same(both.logits[1], out.logits, what, rtol=1e-3, atol=1e-4)


def _check_training(task, weights, x, num_classes):
    """Checks that a training step has finite gradients and keeps the structure of the weights."""
    y = jnp.arange(len(x)) % num_classes
    key, batch = jax.random.key(2), Batch(x, y, jnp.ones(len(x)))
    step = jax.jit(partial(_gradient, task))
    gradient, stats = step(weights, batch, key)
    check(bool(tree.finite(gradient)), "the gradient at the initial weights is not finite")
    check(
        jax.tree.structure(stats) == jax.tree.structure(weights.stats),
        "a training pass changes the structure of the running statistics",
    )
    without_gradient = [
        jax.tree_util.keystr(path)
        for path, g in jax.tree_util.tree_leaves_with_path(gradient)
        if not jnp.any(g)
    ]
    check(
        len(without_gradient) < len(jax.tree.leaves(gradient)),
        "the gradients of all parameters are zero",
    )
    again = step(weights, batch, key)[0]
    check_same(again, gradient, "two training passes with the same key give different gradients")
    _check_padding(task, weights, batch, step)


PADDING = (
    "a training pass depends on the padding of a short batch; exclude the rows where the argument"
    " `mask` [B] of the model's call is 0 from what it computes over the batch"
)


def _check_padding(task, weights, batch, step):
    """Checks that neither the content nor the number of padded rows changes a training pass.

    With another number of rows, random numbers may differ, so dropout is off for that comparison; a
    model with random numbers of its own is compared with the same number alone.
    """
    key, count, rest = jax.random.key(2), len(batch.y), len(batch.y) - 2
    of_others = 3 * jax.random.normal(jax.random.key(3), batch.x[rest:].shape)
    short = batch._replace(mask=(jnp.arange(count) < rest).astype(jnp.float32))
    other = Batch(
        x=jnp.concatenate([batch.x[:rest], of_others.astype(batch.x.dtype)]),
        y=jnp.concatenate([batch.y[:rest], batch.y[rest:] * 0]),
        mask=short.mask,
    )
    expected = step(weights, short, key)
    check_same(step(weights, other, key), expected, PADDING, rtol=1e-3, atol=1e-5)
    calm = jax.jit(partial(_without_dropout, task))
    expected = calm(weights, other, key)
    again = calm(weights, other, jax.random.key(4))
    if all(map(jnp.array_equal, *map(jax.tree.leaves, (again, expected)))):
        alone = jax.tree.map(lambda a: a[:rest], other)
        check_same(expected, calm(weights, alone, key), PADDING, rtol=1e-3, atol=1e-5)


def _gradient(task, weights, batch, key):
    """The gradient of a training pass at these weights, and the running statistics after it."""

    def risk(params):
        out = task.apply(weights._replace(params=params), batch.x, key, batch.mask)
        return task.loss(out.logits, batch), out.stats

    (_, stats), gradient = jax.value_and_grad(risk, has_aux=True)(weights.params)
    return gradient, stats


def _without_dropout(task, weights, batch, key):
    """`_gradient` with the dropout layers of Flax off."""
    dropouts = calls.with_nnx((nn.Dropout,), "Dropout")

    def hook(layer, call, args, kwargs):
        if isinstance(layer.module, dropouts) and layer.method == "__call__":
            return args[0] if args else kwargs["inputs"]
        return call(*args, **kwargs)

    with calls.intercepted(hook):
        return _gradient(task, weights, batch, key)
