"""Schedules of a learning rate over the rounds of a run.

A schedule is a pure function from the index of a round, counted from 0, to the factor by which the
learning rate of that round is multiplied. The functions below make a schedule for a number of
rounds: those of the run or, if a method has stages, of a stage. All of them start at 1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab.errors import BadInput, place_of, quoted, reason_of
from fedjax_lab.ranges import NotNegative, Positive, checked
from fedjax_lab.types import Array

Schedule = Callable[[Array], Array]  # index of a round -> factor of the learning rate


def constant(rounds: int) -> Schedule:
    """The same learning rate in every round."""
    return optax.constant_schedule(1.0)


@checked("run")
def exponential(
    rounds: int, *, lr_decay: Positive[float] = 0.99, lr_decay_every: Positive[int] = 1
) -> Schedule:
    """lr_decay^(t / lr_decay_every) in round t: PyTorch's ExponentialLR with `lr_decay` as gamma.

    lr_decay: the factor by which the learning rate has changed after `lr_decay_every` rounds.
    lr_decay_every: the number of rounds in which the learning rate changes by `lr_decay`.
    """
    # Not optax.exponential_decay: its decay rate cannot be traced, as joint runs require.
    return lambda t: jnp.power(jnp.float32(lr_decay), t / lr_decay_every)


@checked("run")
def step(
    rounds: int, *, lr_decay: Positive[float] = 0.1, lr_decay_every: Positive[int] = 10
) -> Schedule:
    """lr_decay^floor(t / lr_decay_every) in round t: PyTorch's StepLR.

    lr_decay: the factor by which the learning rate changes at a step.
    lr_decay_every: the number of rounds between two steps.
    """
    return lambda t: jnp.power(jnp.float32(lr_decay), jnp.floor(t / lr_decay_every))


@checked("run")
def multistep(
    rounds: int,
    *,
    lr_decay: Positive[float] = 0.1,
    lr_decay_at: tuple[NotNegative[int], ...] = (30, 80),
) -> Schedule:
    """lr_decay^k in round t, for k entries of `lr_decay_at` up to t: PyTorch's MultiStepLR.

    lr_decay: the factor by which the learning rate changes at a step.
    lr_decay_at: the numbers of rounds after which there is a step.
    """
    steps = jnp.array(lr_decay_at, jnp.int32)
    return lambda t: jnp.power(jnp.float32(lr_decay), jnp.sum(t >= steps))


@checked("run")
def linear(
    rounds: int, *, lr_end: NotNegative[float] = 0.0, lr_decay_rounds: NotNegative[int] = 0
) -> Schedule:
    """A straight line from 1 to `lr_end`: PyTorch's LinearLR with a start factor of 1.

    lr_end: the factor of the learning rate at the end of the schedule.
    lr_decay_rounds: the number of rounds until `lr_end`, which holds afterwards; 0: the whole run.
    """
    return optax.linear_schedule(1.0, lr_end, lr_decay_rounds or rounds)


@checked("run")
def cosine(
    rounds: int, *, lr_end: NotNegative[float] = 0.0, lr_decay_rounds: NotNegative[int] = 0
) -> Schedule:
    """Half a cosine wave from 1 to `lr_end`: PyTorch's CosineAnnealingLR until T_max.

    lr_end: the factor of the learning rate at the end of the schedule.
    lr_decay_rounds: the number of rounds until `lr_end`, which holds afterwards; 0: the whole run.
    """
    return optax.cosine_decay_schedule(1.0, lr_decay_rounds or rounds, lr_end)


def after_warmup(make: Callable[[int], Schedule], warmup: int, rounds: int) -> Schedule:
    """A linear warm-up, followed by the schedule that `make` returns for the remaining rounds.

    In round t of the warm-up the factor is (t + 1) / (warmup + 1), so that it is never 0.

    make: number of rounds -> schedule. warmup: the number of rounds of the warm-up. rounds: the
    number of all rounds. Raises BadInput if `make` does not return a function.
    """
    schedule = make(max(rounds - warmup, 1))  # a short stage may end before its warm-up
    if not callable(schedule):
        raise BadInput(f"it must return a function of a round's index, not {quoted(schedule)}")
    if not warmup:
        return schedule
    rise = optax.linear_schedule(1 / (warmup + 1), 1.0, warmup)
    return optax.join_schedules([rise, schedule], [warmup])


def curve(schedule: Schedule, rounds: int) -> np.ndarray:
    """The factors of all rounds, [rounds].

    Raises BadInput unless each is a finite number above 0.
    """
    try:
        factors = np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(rounds)))
    except (TypeError, ValueError) as error:
        if place_of(error):  # an error in the schedule itself
            raise
        raise BadInput(f"it must return one number for each round: {reason_of(error)}") from error
    if factors.dtype.kind not in "biuf" and factors.dtype != jnp.bfloat16:
        raise BadInput(f"it must return one number for each round, not {factors.dtype}")
    factors = factors.astype(np.float32)
    if factors.shape != (rounds,):
        shape = list(factors.shape[1:])
        raise BadInput(f"it must return one number for each round, not the shape {shape}")
    invalid = ~(np.isfinite(factors) & (factors > 0))
    if invalid.any():
        t = int(np.argmax(invalid))
        raise BadInput(
            f"its factor of the learning rate is {factors[t]:g} in round {t + 1} of {rounds}; it"
            " must be a finite number above 0 in every round"
        )
    return factors
