"""Counts the floating-point operations of the rounds of a run, with XLA's cost analysis.

XLA counts the body of a loop once; here it is multiplied by the number of iterations. The work of
each client and of the server is counted before XLA optimizes it. Therefore the numbers depend
neither on the device nor on the strategy, and padding does not count. Evaluations are not counted.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun, jaxprs_in_params
from jax.interpreters import partial_eval

from fedjax_lab.simulation import outline, simulate
from fedjax_lab.simulation.client_work import WorkRows, work_sets
from fedjax_lab.simulation.simulate import Lane, Program
from fedjax_lab.types import POOL, ROWS, PyTree, State

# Peak rate of one device for dense products in bfloat16 (in float16 on devices without bfloat16),
# in operations per second, as published by the vendor; by JAX's name of the device. TPUs: from the
# pages v4, v5e, v5p-training and v6e of cloud.google.com/tpu/docs. GPUs: from tables that repeat
# NVIDIA's data sheets, whose rates of H100, H200 and L4 are those with sparsity, twice as high.
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
    """Operations of a round of one seed: `fixed`, plus `step` for each step of a client."""

    fixed: float
    step: float

    def operations(self, rounds: int, steps: float) -> float:
        """The operations of `rounds` rounds in which all clients together make `steps` steps."""
        return rounds * self.fixed + steps * self.step


def utilization(rate: float | None) -> float | None:
    """The share of the devices' peak rate that `rate` operations per second are, in 0..1.

    None if the peak rate of the devices is unknown.
    """
    peak = PEAKS.get(jax.devices()[0].device_kind)
    return rate / (len(jax.devices()) * peak) if rate and peak else None


def round_cost(program: Program, lane: Lane, state: State) -> RoundCost | None:
    """The cost of a round of one seed, from the shapes of the arguments.

    None for clients with unlike models, whose cost depends on who takes part.

    A client with one batch and a client with two batches are compared. Their difference is the cost
    of the additional steps. The rest of the first one's operations is fixed: each client of a
    cohort performs it in each round, whatever it holds. The server's operations are fixed too.
    """
    if "kind" in lane.population.traits:
        return None
    lane, state = outline.stripped((lane, state))
    clients = outline.cohort_size(program, lane, state)
    small, large = (client_cost(program, lane, state, batches) for batches in (1, 2))
    steps = large.steps - small.steps
    step = (large.operations - small.operations) / steps if steps else 0.0
    fixed = max(small.operations - small.steps * step, 0.0)
    of_server = server_operations(program, lane, state, small.uploads, clients)
    return RoundCost(clients * fixed + of_server, step)


def count(program: ClosedJaxpr) -> float:
    """The operations of a program. A loop whose length depends on data counts as one iteration."""
    return _count_once(program) + _count_repeats(program.jaxpr)


def _count_once(program):
    """The operations as XLA counts them, with the body of each loop once."""
    lowered = jax.jit(jaxpr_as_fun(program)).lower(*program.in_avals)
    return (lowered.cost_analysis() or {}).get("flops", 0.0)


def _count_repeats(jaxpr):
    """The operations of the loops after their first iteration; of the longest branch of a cond."""
    total = 0.0
    for each in jaxpr.eqns:
        inner = [_count_repeats(program) for program in jaxprs_in_params(each.params)]
        name, params = each.primitive.name, each.params
        if name == "scan":
            total += params["length"] * inner[0]
            further = params["length"] - 1
            total += further * _count_once(params["jaxpr"]) if further else 0.0
        else:
            total += max(inner, default=0.0) if name == "cond" else sum(inner)
    return total


class ClientCost(NamedTuple):
    """The operations of one client in a round, and its number of steps."""

    operations: float
    steps: float
    uploads: tuple[PyTree, ...] = ()  # as shapes, one for each exchange


def client_cost(program: Program, lane: Lane, state: State, batches: int) -> ClientCost:
    """The cost of a client that holds this number of full batches, in a round; from shapes."""
    plan = program.plan._replace(equal_steps=True)
    federation, rows = _small(program.method, lane.federation, batches * plan.batch_size)
    operations, steps, uploads = 0.0, 0.0, []
    for exchange in program.method.round:
        run = partial(_with_steps, simulate.one_client(exchange, plan))
        trace = jax.make_jaxpr(run, return_shape=True)
        traced, shapes = trace(state.server, federation, rows, _entry(lane, state))
        (_, ((upload, _), _)) = shapes
        operations, steps = operations + count(traced), steps + _first_output(traced)
        uploads.append(upload)
    return ClientCost(operations, steps, tuple(uploads))


def _with_steps(run, *args):
    """(number of steps of the client's trainings, the results of `run`)."""
    done = run(*args)
    return sum((training.steps for training in done[1]), jnp.float32(0)), done


def _first_output(traced):
    """The first output of a program, a number; 0 if it depends on the arguments."""
    only_first = [i == 0 for i in range(len(traced.out_avals))]
    jaxpr, needed = partial_eval.dce_jaxpr(traced.jaxpr, only_first)
    return 0.0 if any(needed) else float(jaxpr_as_fun(ClosedJaxpr(jaxpr, traced.consts))()[0])


def server_operations(
    program: Program, lane: Lane, state: State, uploads: Sequence[PyTree], clients: int
) -> float:
    """The operations of the server in a round with this number of clients; from shapes.

    uploads: the shapes of what a client uploads in each exchange.
    """
    federation, _ = _small(program.method, lane.federation, program.plan.batch_size)
    client, *_ = _entry(lane, state)
    extra, total = program.method.extra, 0.0
    times, size = (clients, 1) if extra.one_by_one else (1, clients)
    for exchange, upload in zip(program.method.round, uploads, strict=True):
        arrived, cohort = outline.aggregated(client, upload, size)
        aggregate = outline.aggregate_with(exchange, program.plan)
        traced = jax.make_jaxpr(aggregate)(state.server, arrived, cohort, federation)
        total += times * count(traced)
    return total


def _small(method, federation, count):
    """The shapes of a federation with `count` examples and no rows, and `WorkRows` of them all."""
    pool = {name: getattr(federation, name) for name in POOL}
    pool = outline.stripped(pool, lambda shape: (count, *shape[1:]))
    rows = WorkRows(*[jax.ShapeDtypeStruct((count,), np.int32)] * len(work_sets(method)))
    return federation._replace(**pool, **dict.fromkeys(ROWS)), rows


def _entry(lane, state):
    """The shapes of one client, of its key and of its work.

    The client has the plan's settings, because its numbers of steps are measured in the run.
    """
    traits = {name: of for name, of in lane.population.traits.items() if name != "settings"}
    population = lane.population._replace(traits=traits)
    return outline.one_entry(lane._replace(population=population), state)
