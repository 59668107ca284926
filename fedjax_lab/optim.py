"""Optimizers with PyTorch's arithmetic: weight decay is added to the gradient, before all else."""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab.types import Array, PyTree


def sgd(
    lr: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """d = g + weight_decay w;  m <- momentum m + d (first step m = d);  w <- w - lr m."""
    return optax.chain(
        *_decay(weight_decay),
        *([optax.trace(momentum)] if _used(momentum) else []),
        optax.scale_by_learning_rate(lr),
    )


def adam(lr: float, weight_decay: float = 0.0) -> optax.GradientTransformation:
    """Adam (0.9, 0.999, eps 1e-8) on g + weight_decay w: coupled decay, not AdamW."""
    return optax.chain(
        *_decay(weight_decay), optax.scale_by_adam(), optax.scale_by_learning_rate(lr)
    )


def clip(gradient: PyTree, norm: float | Array) -> PyTree:
    """g min(1, norm / (||g|| + 1e-6)), as PyTorch clips a gradient; with a norm of 0: g."""
    if not _used(norm):
        return gradient
    largest = jnp.where(norm > 0, norm, jnp.inf)  # of a joint run, whose numbers are traced
    factor = jnp.minimum(1, largest / (optax.tree.norm(gradient) + 1e-6))
    return jax.tree.map(lambda g: (factor * g).astype(g.dtype), gradient)


def reach(optimizer: optax.GradientTransformation, steps: int | Array) -> Array:
    """How far `steps` steps go along a constant gradient of 1, weight decay aside.

    eta a(K, rho) of SGD with momentum rho: eta K for rho = 0, else
    eta [K - rho (1 - rho^K) / (1 - rho)] / (1 - rho)   (Wang et al., NeurIPS 2020).
    """
    origin = jnp.float32(0)

    def step(_, carry):
        state, far = carry
        update, state = optimizer.update(jnp.float32(1), state, origin)
        return state, far - update

    return jax.lax.fori_loop(0, steps, step, (optimizer.init(origin), origin))[1]


def _decay(weight_decay):
    return [optax.add_decayed_weights(weight_decay)] if _used(weight_decay) else []


def _used(value) -> bool:
    return not isinstance(value, (int, float)) or value != 0
