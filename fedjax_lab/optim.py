"""Optimisers with PyTorch's arithmetic: weight decay is added to the gradient, before all else."""

import optax


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


def _decay(weight_decay):
    return [optax.add_decayed_weights(weight_decay)] if _used(weight_decay) else []


def _used(value) -> bool:
    return not isinstance(value, (int, float)) or value != 0
