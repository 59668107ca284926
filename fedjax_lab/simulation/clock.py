"""The virtual clock: how long the work and the messages of a client take.

  d_i = wait_i + d_down + d_compute + d_up                                          (Y1)
  d_compute = minimum + E s_i xi,   d_down + d_up = (bytes_down + bytes_up) b_i

s_i are the seconds of a pass of client i over its examples (or of a step, if the number of steps is
fixed), b_i its seconds per byte, xi a random factor of the task, and wait_i the time until the
client is available. E is the number of passes, whatever the method does in them.

A synchronous round ends when the last upload has arrived (Y2). Of a larger sample only the first
`Clock.first` uploads are used (over-selection), and uploads after the deadline are late: they are
lost, or the client uploads what it has trained by then.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import streams
from fedjax_lab.types import Array, Plan, Turn


class Availability(NamedTuple):
    """When a client is available; several clients have a leading axis [C]."""

    changes: Any  # [2 L] instants of a period, ascending, at which the client becomes available,
    # unavailable, available, ...
    period: Any  # [] seconds after which the changes repeat
    phase: Any  # [] seconds of the period at the beginning of the run


class Pace(NamedTuple):
    """How fast a client is; several have a leading axis [C]."""

    compute: Array  # [] s_i, seconds of a pass, or of a step
    per_byte: Array  # [] b_i, seconds
    available: Any = None  # `Availability`; None: always


class Clock(NamedTuple):
    """The rules of a run's clock: static values and functions."""

    factor: Callable[[Array], Array]  # xi from a number that is uniform in 0..1
    minimum: float = 0.0  # seconds that a client computes at least
    first: int = 0  # number of uploads that a synchronous round waits for; 0: all
    deadline: float = 0.0  # seconds of a synchronous round at most; 0: no limit
    partial: bool = False  # whether a late client uploads what it has trained by the deadline


def until_available(of: Availability, time: Any, numpy: Any = jnp) -> Any:
    """Returns the seconds from `time` until each client is available, [M]; 0 if it is now.

    of: when the clients [M] are available. time: seconds since the beginning of the run.
    numpy: the library of the arrays, `numpy` or `jax.numpy`.
    """
    changes, period, _ = of
    phase = numpy.asarray((time + of.phase) % period)
    past = numpy.sum(changes <= phase[..., None], -1)  # the number of changes before
    later = numpy.concatenate([changes, (changes[..., :1] + period[..., None])], -1)
    upcoming = numpy.take_along_axis(later, past[..., None], -1)[..., 0]
    return numpy.where(past % 2 == 1, 0, upcoming - phase)


def durations(clock: Clock, pace: Pace, xi: Any, work: Any, sent: int) -> tuple[Any, Any]:
    """Returns the seconds that clients compute and that their messages take, [M] each.  (Y1)

    Args:
      clock: the rules of the run.
      pace: that of the clients, [M].
      xi: the random factor of each task, [M].
      work: the number of passes, or of steps if that is fixed.
      sent: the bytes of the messages of a client, up and down.
    """
    return clock.minimum + pace.compute * work * xi, pace.per_byte * sent


def timed(plan: Plan, sent: int, in_turn: bool, turn: Turn) -> Turn:
    """Returns what becomes of the clients of a synchronous round by the clock of the plan.

    A plan without a clock leaves the turn as it is.

    Args:
      plan: the work of the clients, and the clock.
      sent: the bytes of the messages of a client.
      in_turn: whether clients train one after another.
      turn: the clients with their trait `pace`, and the seconds since the beginning of the run.
    """
    clock = plan.failures.clock
    if clock is None:
        return turn
    pace = turn.clients.traits["pace"]
    planned = plan.work if turn.work is None else turn.work
    xi = clock.factor(jax.vmap(jax.random.uniform)(streams.speed(turn.keys)))
    compute, other = durations(clock, pace, xi, planned, sent)
    if pace.available is not None:
        other = other + until_available(pace.available, turn.seconds)
    seconds = jnp.where(turn.drawn, compute + other, 0)
    arrived = jnp.ones(seconds.shape, bool) if turn.arrived is None else turn.arrived
    done = turn.work
    if clock.deadline:
        in_time, done = _in_time(clock, seconds, compute, other, planned, done)
        arrived, seconds = arrived & in_time, jnp.minimum(seconds, clock.deadline)
    used, whole = _waited(clock, arrived, seconds, turn.drawn, in_turn)
    return turn._replace(arrived=used, work=done, seconds=turn.seconds + whole)


def _in_time(clock, seconds, compute, other, planned, done):
    """Returns whose uploads arrive by the deadline, [M], and how much work clients do, [M] or None.

    Args:
      clock: the rules of the run, which have a deadline.
      seconds: how long each task takes: the sum of `compute` and `other` for drawn clients.
      compute: the seconds of its computation.
      other: the seconds of its messages and of waiting.
      planned: its passes or steps.
      done: the planned work as in `Turn.work`; None: all clients do the same.
    """
    in_time = seconds <= clock.deadline
    if clock.partial:
        left = clock.deadline - other - clock.minimum
        of_one = jnp.maximum((compute - clock.minimum) / planned, 1e-30)
        fewer = jnp.clip(jnp.floor(left / of_one), 0, planned).astype(jnp.int32)
        done = jnp.where(in_time, planned, jnp.maximum(fewer, 1))
        in_time = in_time | (fewer >= 1)
    return in_time, done


def _waited(clock, arrived, seconds, drawn, in_turn):
    """Returns whose uploads are used, [M], and the duration of the round, [].           (Y2)

    The server learns of a lost upload when it should have arrived.
    """
    whole = jnp.sum(seconds) if in_turn else jnp.max(seconds)
    if not 0 < clock.first < len(seconds):
        return arrived, whole
    ends = jnp.where(arrived & drawn, seconds, jnp.inf)
    order = jnp.argsort(ends, stable=True)
    last = ends[order[clock.first - 1]]
    is_first = jnp.zeros_like(arrived).at[order[: clock.first]].set(True)
    return arrived & (is_first | ~drawn), jnp.where(jnp.isfinite(last), last, whole)
