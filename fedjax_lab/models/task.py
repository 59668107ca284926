"""A Flax module as the two pure functions that methods use."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_lab.models.layers import BatchNorm
from fedjax_lab.types import Array, Output, Task, Weights

_NORMS = (BatchNorm, nn.BatchNorm, nn.LayerNorm, nn.GroupNorm)


def make_task(
    module: nn.Module, sample_shape: tuple[int, ...], num_classes: int, dtype=jnp.float32
) -> Task:
    """The task of a classifier whose examples have `sample_shape` (no batch axis).

    `module(x, train=, mask=)` gives (logits [B, K], features [B, D]). Bad shapes raise here.
    """

    def init(key: Array) -> Weights:
        variables = module.init(key, jnp.zeros((1, *sample_shape), dtype))
        return Weights(variables["params"], variables.get("batch_stats", {}))

    def apply(
        weights: Weights, x: Array, key: Array | None = None, mask: Array | None = None
    ) -> Output:
        variables = {"params": weights.params, "batch_stats": weights.stats}
        if key is None:
            logits, features = module.apply(variables, x)
            return Output(logits, features, weights.stats)
        (logits, features), new = module.apply(
            variables, x, train=True, mask=mask, rngs={"dropout": key}, mutable=["batch_stats"]
        )
        return Output(logits, features, new.get("batch_stats", weights.stats))

    return Task(init, apply, num_classes, _norm_layers(init))


def _norm_layers(init) -> tuple[str, ...]:
    """Paths of the normalisation layers, by type, in the order of the forward pass."""
    found = []

    def note(call, args, kwargs, context):
        if isinstance(context.module, _NORMS):
            found.append("/".join(context.module.path))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        jax.eval_shape(init, jax.random.key(0))
    return tuple(dict.fromkeys(found))
