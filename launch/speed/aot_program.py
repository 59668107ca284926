"""Compiles one program of a run for absent devices and prints its figures; started by `aot.py`."""

import json
import sys
import time
from typing import Any

import benchmark
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import targets
import workloads

from fedjax_lab import losses
from fedjax_lab.commands import command
from fedjax_lab.engine import flops
from fedjax_lab.engine.engine import Engine, Simulation
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.models import kernels
from fedjax_lab.models.task import has_convolutions
from fedjax_lab.simulation import evaluate
from fedjax_lab.types import Batch, Rows, Task

PROGRAMS = {"rounds": "play", "evaluation": "score"}
BY_CYCLES = "dispatch, collectives and most transfers (cycles that the compiler estimates)"
BY_BYTES = "arithmetic and the start of kernels (touched_bytes at the memory's bandwidth)"


def main(argv: list[str]) -> int:
    """Print the figures for the request argv[0], a JSON object; returns the exit code."""
    return command.call(lambda argv: print_figures(json.loads(argv[0])), argv)


def print_figures(request: dict) -> int:
    """Print a JSON line for each stage of the run."""
    devices = targets.topology(request["target"], request["devices"])
    simulation, task, convolution = make(request, devices)
    concrete = _concrete(request, simulation)
    engine = Engine(simulation, abstract=True, facts=concrete and concrete.first_facts)
    for number, stage in enumerate(simulation.stages):
        if number:
            engine.next_stage(concrete and concrete.next_stage())
        line = {key: request[key] for key in ("workload", "config") if key in request}
        line |= {"stage": stage.name} if len(simulation.stages) > 1 else {}
        line |= {"program": request["program"], "target": request["target"]}
        line |= {"devices": len(devices), "strategy": simulation.strategy.name}
        line |= {"placement": simulation.placement}
        line |= {"convolution": convolution if has_convolutions(task) else None}
        for programs in engine.lower().values():
            print(json.dumps(line | measure(programs, engine, task, request)), flush=True)
    return 0


def make(request: dict, devices: list) -> tuple[Simulation, Task, str]:
    """The simulation for these devices, the model's task, and the convolutions' formulation."""
    memory = targets.chip(request["target"]).memory
    if "workload" in request:
        work = workloads.load(request["workload"])
        settings = {key.removeprefix("engine."): value for key, value in request["overrides"]}
        asked, task = settings.get("convolution", "auto"), benchmark.make_model(work)
        simulation = benchmark.build(work, devices=devices, memory=memory, **settings)
    else:
        config = resolve(load_config(request["config"]), request["overrides"])
        asked = config.engine.convolution
        built = experiment.build(config, request["seeds"], devices=devices, memory=memory)
        task, simulation = built.task, built.simulation
    convolution = kernels.choose(devices[0].platform, asked).convolution
    return simulation, task, convolution.__name__


def _concrete(request, simulation):
    """An engine on this machine if stages need facts that are computed from the data, else None."""
    if not any(stage.prepare for stage in simulation.stages):
        return None
    return Engine(make(request, jax.devices())[0])


def measure(programs: Any, engine: Engine, task: Task, request: dict) -> dict:
    """Compile the requested program of the engine's stage; returns its figures."""
    began = time.perf_counter()
    try:
        compiled = getattr(programs, PROGRAMS[request["program"]]).compile()
    except jax.errors.JaxRuntimeError as error:
        return {"compiled": False, "error": str(error).splitlines()[0][:500]}
    seconds = time.perf_counter() - began
    sizes, chip = compiled.memory_analysis(), targets.chip(request["target"])
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    turns = trips(engine, request["program"])
    cost = hlo.cost(compiled.as_text(), lambda depth: turns[min(depth, len(turns) - 1)])
    by_cycles = cost.cycles / chip.clock if chip.clock else 0
    return {
        "compiled": True,
        "compile_seconds": round(seconds, 2),
        "argument_bytes": sizes.argument_size_in_bytes,
        "temporary_bytes": sizes.temp_size_in_bytes,
        "memory_bytes": chip.memory,
        "fits": held + sizes.temp_size_in_bytes <= chip.memory,
        "flops": round(cost.flops),
        "plain_flops": plain_flops(engine, task) if request["program"] == "rounds" else None,
        "kernels": round(cost.kernels),
        "touched_bytes": round(cost.bytes),
        "collective_bytes": {kind: round(size) for kind, size in cost.collectives.items()},
        "estimated_seconds": float(f"{by_cycles or cost.bytes / chip.bandwidth:.4g}"),
        "estimate_leaves_out": BY_CYCLES if by_cycles else BY_BYTES,
        "assumed_trips": turns,
    }


def trips(engine: Engine, program: str) -> tuple[float, ...]:
    """The assumed iterations of loops without a fixed length, by depth.

    The last number also holds for deeper loops. For rounds, the outermost loop is one round, and
    the inner ones run the batches of a client of a typical cohort under the strategy. For
    evaluation see `evaluation_batches`.
    """
    if program == "rounds":
        steps, strategy = jnp.asarray(cohort_batches(engine)), engine.simulation.strategy
        lanes = strategy.lane_steps(jnp.ones_like(steps))  # includes copies that fill up a chunk
        return 1, float(strategy.lane_steps(steps[strategy.deal(steps)]) / lanes)
    return (evaluation_batches(engine),)


def evaluation_batches(engine: Engine) -> float:
    """The number of batches in a call of `evaluate.count`, averaged over an evaluation's calls."""

    def length(rows):
        return rows.longest if isinstance(rows, Rows) else rows.shape[-1]

    federation, size = engine.lanes[0].scoring.federation, engine.plan.eval_batch
    clients = len(federation.train)
    sets = [federation.validation, federation.test, federation.unseen]
    calls = [(clients, length(rows)) for rows in sets if rows is not None]  # number, rows of each
    if federation.global_test is not None:
        count = federation.global_test.shape[-1]
        if engine.stage.method.newcomer is None:
            calls.append((min(clients, evaluate.GLOBAL_CLIENTS), count))
        else:  # one model for all: each call scores a block of one batch
            calls.append((-(-count // size), 1))
    batches = sum(number * max(-(-rows // size), 1) for number, rows in calls)
    return batches / max(sum(number for number, _ in calls), 1)


def cohort_batches(engine: Engine) -> np.ndarray:
    """Batches per epoch of the clients of a typical cohort.

    The clients' sizes are evenly spaced quantiles of the sizes of the population.
    """
    federation, plan = engine.simulation.seeds[0].training, engine.plan
    sizes = np.sort(federation.train.count)
    places = np.linspace(0, len(sizes) - 1, min(plan.cohort, len(sizes))).round().astype(int)
    return -(-sizes[places] // plan.batch_size)


def plain_flops(engine: Engine, task: Task) -> float:
    """Operations on each device for plain training of a typical cohort for all of the seeds."""
    plan, shape = engine.plan, task.input_shape
    like = jax.ShapeDtypeStruct
    x = like((plan.batch_size, *shape), np.float32)
    label = plan.objective.label
    y, mask = (
        like((plan.batch_size, *label.shape), label.dtype),
        like((plan.batch_size,), "float32"),
    )
    batch = Batch(x, y, mask)
    key = jax.eval_shape(lambda: jax.random.key(0))
    weights = jax.eval_shape(task.init, key)
    gradient = jax.grad(losses.risk(task), has_aux=True, allow_int=True)
    step = flops.count(jax.make_jaxpr(gradient)(weights, batch, key))
    sharding = engine.simulation.strategy.sharding
    seeds = len(engine.simulation.seeds) if engine.together else 1
    batches = plan.epochs * float(cohort_batches(engine).sum())
    if plan.steps:
        batches = plan.steps * len(cohort_batches(engine))
    return round(step * seeds * batches / sharding.num_devices)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
