"""How many floating-point operations the rounds of a run take, as XLA counts them.

XLA counts the body of a loop once, however often it turns; here it counts as often as the loop
turns. What is counted is what each client does, and then the server, before XLA optimizes it. So
the numbers depend neither on the device nor on the strategy, and padding is no work. Evaluations
are not counted.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun, jaxprs_in_params
from jax.interpreters import partial_eval

from fedjax_lab import simulate
from fedjax_lab.local import WorkRows, work_sets
from fedjax_lab.simulate import Lane, Program
from fedjax_lab.types import POOL, ROWS, State

# Dense products in bfloat16 (float16 where there is none) of one device, by the name that JAX gives
# it, in operations a second, as the makers publish them.
PEAKS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA L4": 121e12,
    "Tesla T4": 65e12,
    "Tesla V100-SXM2-16GB": 125e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


class RoundCost(NamedTuple):
    """Operations of a round of one seed: `fixed`, and `step` for each step of a client."""

    fixed: float
    step: float

    def of(self, rounds: int, steps: float) -> float:
        """Those of so many rounds, in which all clients together made so many steps."""
        return rounds * self.fixed + steps * self.step


def utilization(rate: float | None) -> float | None:
    """The share of what all devices could do that so many operations a second are.

    None where that is not known.
    """
    peak = PEAKS.get(jax.devices()[0].device_kind)
    return rate / (len(jax.devices()) * peak) if rate and peak else None


def of_round(program: Program, lane: Lane, state: State) -> RoundCost:
    """The cost of a round of one seed, from the shapes of what it is played with.

    A client with one batch and one with two batches are counted. What the second one does more is
    the cost of its additional steps; the rest of what the first one does is fixed: each client of a
    cohort does it in each round, whatever it holds. So is what the server does.
    """
    lane, state = _shapes((lane, state))
    clients = simulate.cohort_size(program, lane, state)
    small, large = (of_client(program, lane, state, batches) for batches in (1, 2))
    steps = large.steps - small.steps
    step = (large.operations - small.operations) / steps if steps else 0.0
    fixed = max(small.operations - small.steps * step, 0.0)
    return RoundCost(clients * fixed + of_server(program, lane, state, clients), step)


def count(program: ClosedJaxpr) -> float:
    """The operations of a program. A loop whose number of turns depends on data turns once."""
    return _count_once(program) + _of_further_turns(program.jaxpr)


def _count_once(program):
    """As XLA counts them: the body of a loop once."""
    lowered = jax.jit(jaxpr_as_fun(program)).lower(*program.in_avals)
    return (lowered.cost_analysis() or {}).get("flops", 0.0)


def _of_further_turns(jaxpr):
    """What the loops do after their first turn."""
    total = 0.0
    for turns, body in _loops(jaxpr):
        total += turns * _of_further_turns(body.jaxpr)
        if turns > 1:
            total += (turns - 1) * _count_once(body)
    return total


def _loops(jaxpr) -> Iterator[tuple[int, ClosedJaxpr]]:
    """(turns, body) of each `scan` that is inside no other."""
    for each in jaxpr.eqns:
        if each.primitive.name == "scan":
            yield each.params["length"], each.params["jaxpr"]
        else:
            for inner in jaxprs_in_params(each.params):
                yield from _loops(inner)


class ClientCost(NamedTuple):
    """Operations of one client in a round, and its steps."""

    operations: float
    steps: float


def of_client(program: Program, lane: Lane, state: State, batches: int) -> ClientCost:
    """What a client does in a round that holds so many full batches; of the shapes of arrays."""
    plan = program.plan._replace(equal_steps=True)
    federation, rows = _small(program.method, lane.federation, batches * plan.batch_size)
    total = ClientCost(0.0, 0.0)
    for exchange in program.method.round:
        run = partial(_with_steps, simulate.one_client(exchange, plan))
        traced = jax.make_jaxpr(run)(state.server, federation, rows, _entry(lane, state))
        total = ClientCost(total.operations + count(traced), total.steps + _first_output(traced))
    return total


def _with_steps(run, *args):
    """The steps of a client's trainings, before what `run` gives."""
    done = run(*args)
    return sum((training.steps for training in done[2]), jnp.float32(0)), done


def _first_output(traced):
    """The number that a program gives first; 0 where it depends on the arguments."""
    only_first = [i == 0 for i in range(len(traced.out_avals))]
    jaxpr, needed = partial_eval.dce_jaxpr(traced.jaxpr, only_first)
    return 0.0 if any(needed) else float(jaxpr_as_fun(ClosedJaxpr(jaxpr, traced.consts))()[0])


def of_server(program: Program, lane: Lane, state: State, clients: int) -> float:
    """What the server does in a round with the uploads of so many clients; of shapes."""
    federation, rows = _small(program.method, lane.federation, program.plan.batch_size)
    client, *others = _entry(lane, state)
    total = 0.0
    for exchange in program.method.round:
        run = simulate.one_client(exchange, program.plan)
        upload, _, _ = jax.eval_shape(run, state.server, federation, rows, (client, *others))
        times, size = (clients, 1) if exchange.one_by_one else (1, clients)
        uploads, cohort = _stacked((upload, client), size)
        arrived, key = jax.eval_shape(
            lambda m=size: (jnp.ones(m, bool), jax.random.split(_key(), m))
        )
        cohort = cohort._replace(arrived=arrived, key=key)
        total += times * count(jax.make_jaxpr(exchange.aggregate)(state.server, uploads, cohort))
        if exchange.alone is not None:
            alone = jax.make_jaxpr(lambda server, do=exchange.alone: do(server, lambda rows: rows))
            total += times * count(alone(state.server))
    return total


def _shapes(tree):
    """Of the arrays of a tree; where they lie is forgotten."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), tree)


def _small(method, federation, count):
    """The shapes of a federation with a pool of so many examples, and `WorkRows` of all of them.

    Nothing of it is scored.
    """
    pool = {name: _of_length(getattr(federation, name), count) for name in POOL}
    rows = WorkRows(*[jax.ShapeDtypeStruct((count,), np.int32)] * len(work_sets(method)))
    return federation._replace(**pool, **dict.fromkeys(ROWS)), rows


def _of_length(a, count):
    return jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype)


def _entry(lane, state):
    """The shapes of one client and of its key; None: it makes all of its passes."""
    stacked = lane.population._replace(private=state.private)
    client = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), stacked)
    return client, jax.eval_shape(_key), None


def _key():
    return jax.random.key(0)


def _stacked(one, count):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((count, *a.shape), a.dtype), one)
