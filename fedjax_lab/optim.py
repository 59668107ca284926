"""The optimizers of clients. They compute as in PyTorch unless a docstring says otherwise.

Weight decay is added to the gradient first. In `adamw` and `lion` it is decoupled: in each step the
weights are multiplied by 1 - lr * weight_decay.
"""

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import BelowOne, NotNegative, Positive, Within, checked
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


def nesterov(
    lr: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """SGD with Nesterov's momentum: m <- momentum m + d;  w <- w - lr (d + momentum m)."""
    return optax.chain(
        *_decay(weight_decay),
        optax.trace(momentum, nesterov=True),
        optax.scale_by_learning_rate(lr),
    )


@checked("local")
def adamw(
    lr: float,
    weight_decay: float = 0.0,
    *,
    beta1: BelowOne = 0.9,
    beta2: BelowOne = 0.999,
    eps: NotNegative[float] = 1e-8,
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay, whose default is 0 here and 0.01 in PyTorch.

    beta1, beta2: decay of the first and of the second moment, below 1.
    eps: a constant added to the square root of the second moment.
    """
    moments = optax.scale_by_adam(beta1, beta2, eps)
    return optax.chain(moments, *_decay(weight_decay), optax.scale_by_learning_rate(lr))


@checked("local")
def radam(
    lr: float,
    weight_decay: float = 0.0,
    *,
    beta1: BelowOne = 0.9,
    beta2: Annotated[float, Within(0, 1, above=True, below=True)] = 0.999,
    eps: NotNegative[float] = 1e-8,
) -> optax.GradientTransformation:
    """RAdam (Liu et al., ICLR 2020).

    beta1, beta2: decay of the first and of the second moment, below 1.
    eps: a constant added to the square root of the second moment.
    """
    moments = _scale_by_radam(beta1, beta2, eps)
    return optax.chain(*_decay(weight_decay), moments, optax.scale_by_learning_rate(lr))


@checked("local")
def nadam(
    lr: float,
    weight_decay: float = 0.0,
    *,
    beta1: BelowOne = 0.9,
    beta2: BelowOne = 0.999,
    eps: NotNegative[float] = 1e-8,
    momentum_decay: NotNegative[float] = 4e-3,
) -> optax.GradientTransformation:
    """NAdam (Dozat, 2016) with the paper's momentum schedule, which optax's version lacks.

    beta1, beta2: decay of the first and of the second moment, below 1.
    eps: a constant added to the square root of the second moment.
    momentum_decay: psi; in step t the momentum is beta1 (1 - 0.5 * 0.96^(t psi)).
    """
    moments = _scale_by_nadam(beta1, beta2, eps, momentum_decay)
    return optax.chain(*_decay(weight_decay), moments, optax.scale_by_learning_rate(lr))


@checked("local")
def rmsprop(
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    *,
    alpha: BelowOne = 0.99,
    eps: NotNegative[float] = 1e-8,
) -> optax.GradientTransformation:
    """RMSprop with d = g + weight_decay w, as in PyTorch.

    v <- alpha v + (1 - alpha) d^2;  m <- momentum m + d / (sqrt(v) + eps);  w <- w - lr m.

    momentum: decay of m; 0: no momentum.
    alpha: decay of the second moment, below 1.
    eps: a constant added to the square root of the second moment.
    """
    return optax.chain(
        *_decay(weight_decay),
        optax.scale_by_rms(alpha, eps, eps_in_sqrt=False),
        *([optax.trace(momentum)] if _used(momentum) else []),
        optax.scale_by_learning_rate(lr),
    )


@checked("local")
def adagrad(
    lr: float, weight_decay: float = 0.0, *, eps: Positive[float] = 1e-10
) -> optax.GradientTransformation:
    """Adagrad: v <- v + d^2 from v = 0;  w <- w - lr d / (sqrt(v) + eps).

    eps: a constant added to the square root of the sum of squares, above 0.
    """
    sums = _scale_by_sum_of_squares(eps)
    return optax.chain(*_decay(weight_decay), sums, optax.scale_by_learning_rate(lr))


@checked("local")
def lion(
    lr: float, weight_decay: float = 0.0, *, beta1: BelowOne = 0.9, beta2: BelowOne = 0.99
) -> optax.GradientTransformation:
    """Lion (Chen et al., NeurIPS 2023) as in optax, with decoupled weight decay.

    beta1, beta2: weight of the momentum in a step, and decay of its running mean, below 1.
    """
    signs = optax.scale_by_lion(beta1, beta2)
    return optax.chain(signs, *_decay(weight_decay), optax.scale_by_learning_rate(lr))


def scaled(
    optimizer: optax.GradientTransformation, layer: str, factor: float | Array
) -> optax.GradientTransformation:
    """The optimizer with a learning rate of its own, `factor` times the other one, for a layer."""

    def one(name, update):
        return factor * update if f"/{layer}/" in f"/{name}" else update

    def update(gradient, state, params=None):
        updates, state = optimizer.update(gradient, state, params)
        return tree.map_named(one, updates), state

    return optax.GradientTransformation(optimizer.init, update)


def resumed(
    optimizer: optax.GradientTransformation,
    first: Array,
    moments: tuple[PyTree, PyTree],
    steps: Array,
    rate: Callable[[Array], Array],
) -> optax.GradientTransformation:
    """The optimizer of (weights, zeros) that starts with moments and ends with them.

    `Work.train` returns what it trains, and no moments: the last step adds them to the zeros.

    optimizer: of the weights.
    first: number [] of the first step, counted over all trainings.
    moments: two trees like the weights, those before this step; the optimizer may have fewer.
    steps: the number [] of steps.
    rate: number of a step -> the factor of its learning rate.

    Raises BadInput if the optimizer has another state than counts of steps and two moments.
    """
    slots, form = jax.tree.flatten(moments)

    def init(both):
        leaves, whole = jax.tree.flatten(optimizer.init(both[0]))
        fresh = [a for a in leaves if not _is_count(a)]
        if [a.shape for a in fresh] != [a.shape for a in slots[: len(fresh)]]:
            raise BadInput(
                "config.local.optimizer: a client of this method keeps at most two moments of each"
                " weight, and this optimizer has another state; choose adamw, adam, or sgd"
            )
        old = iter([jnp.where(first > 0, a, b) for a, b in zip(slots, fresh, strict=False)])
        return first, whole.unflatten([first if _is_count(a) else next(old) for a in leaves])

    def update(gradient, state, both):
        (s, state), (weights, zeros) = state, both
        updates, state = optimizer.update(gradient[0], state, weights)
        last = [a for a in jax.tree.leaves(state) if not _is_count(a)]
        last = [jnp.where(s == first + steps - 1, a, 0) for a in last]
        left = form.unflatten([*last, *jax.tree.leaves(zeros)[len(last) :]])
        return (optax.tree.scale(rate(s), updates), left), (s + 1, state)

    return optax.GradientTransformation(init, update)


def _is_count(a):
    """Whether a number of an optimizer's state counts its steps."""
    return jnp.issubdtype(a.dtype, jnp.integer)


def clip(gradient: PyTree, norm: float | Array) -> PyTree:
    """The clipped gradient g min(1, norm / (||g|| + 1e-6)), as in PyTorch; g if norm is 0."""
    if not _used(norm):
        return gradient
    largest = jnp.where(norm > 0, norm, jnp.inf)  # in joint runs the norm is traced
    factor = jnp.minimum(1, largest / (optax.tree.norm(gradient) + 1e-6))
    return jax.tree.map(lambda g: (factor * g).astype(g.dtype), gradient)


def minimize(
    optimizer: optax.GradientTransformation,
    loss: Callable[[PyTree, Array], Array],
    start: tuple[PyTree, PyTree],
    steps: int | Array,
) -> tuple[PyTree, PyTree]:
    """Takes steps of an optimizer on a loss; clients train with `Work.train` instead.

    Args:
      optimizer: an optax.GradientTransformation.
      loss: (parameters, number of the step) -> the loss [].
      start: the parameters, and the state of the optimizer.
      steps: how many steps it takes.

    Returns:
      The parameters and the state of the optimizer after these steps.
    """

    def step(s, carry):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, s), state, params)
        return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, steps, step, start)


def reach(optimizer: optax.GradientTransformation, steps: int | Array) -> Array:
    """The distance that `steps` steps cover with a constant gradient of 1, without weight decay.

    For SGD with momentum rho it is eta K if rho = 0, else
    eta [K - rho (1 - rho^K) / (1 - rho)] / (1 - rho)   (Wang et al., NeurIPS 2020).
    """
    origin = jnp.float32(0)

    def step(_, carry):
        state, distance = carry
        update, state = optimizer.update(jnp.float32(1), state, origin)
        return state, distance - update

    return jax.lax.fori_loop(0, steps, step, (optimizer.init(origin), origin))[1]


class _Nadam(NamedTuple):
    """The state of `nadam`."""

    step: Array
    product: Array  # product of the momenta of all steps so far
    first: PyTree
    second: PyTree


def _scale_by_nadam(beta1, beta2, eps, psi):
    def init(params):
        zeros = optax.tree.zeros_like(params)
        return _Nadam(jnp.float32(0), jnp.float32(1), zeros, zeros)

    def update(gradient, state, params=None):
        t = state.step + 1
        now, after = (beta1 * (1 - 0.5 * 0.96 ** (s * psi)) for s in (t, t + 1))
        product = state.product * now
        first = optax.tree.update_moment(gradient, state.first, beta1, 1)
        second = optax.tree.update_moment(gradient, state.second, beta2, 2)

        def one(g, m, v):
            ahead = (1 - now) / (1 - product) * g + after / (1 - product * after) * m
            return ahead / (jnp.sqrt(v / (1 - beta2**t)) + eps)

        updates = jax.tree.map(one, gradient, first, second)
        return updates, _Nadam(t, product, first, second)

    return optax.GradientTransformation(init, update)


def _scale_by_radam(beta1, beta2, eps):
    """The step of RAdam.

    Optax's version is off by up to one hundredth in single precision, and adds eps in another place
    than PyTorch.
    """
    largest = 2 / (1 - beta2) - 1
    log = math.log(beta2) if isinstance(beta2, float) else jnp.log(beta2)  # joint runs trace beta2

    def update(gradient, state, params=None):
        t = state.count + 1
        first = optax.tree.update_moment(gradient, state.mu, beta1, 1)
        second = optax.tree.update_moment(gradient, state.nu, beta2, 2)
        power = t * log
        length = largest - 2 * t / jnp.expm1(-power)  # beta2^t / (1 - beta2^t), without 1 - 1
        share = (length - 4) * (length - 2) * largest / ((largest - 4) * (largest - 2) * length)
        factor = jnp.sqrt(jnp.maximum(share, 0) * -jnp.expm1(power))

        def one(m, v):
            m = m / (1 - beta1**t)
            return jnp.where(length > 5, factor * m / (jnp.sqrt(v) + eps), m)

        return jax.tree.map(one, first, second), optax.ScaleByAdamState(t, first, second)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def _scale_by_sum_of_squares(eps):
    def update(gradient, total, params=None):
        total = jax.tree.map(lambda s, g: s + g**2, total, gradient)
        return jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + eps), gradient, total), total

    return optax.GradientTransformation(optax.tree.zeros_like, update)


def _decay(weight_decay):
    return [optax.add_decayed_weights(weight_decay)] if _used(weight_decay) else []


def _used(value) -> bool:
    return not isinstance(value, (int, float)) or value != 0
