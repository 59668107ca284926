"""How a run uses the devices: the config's section `engine`."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import ml_collections

from fedjax_lab import tree
from fedjax_lab.engine import parallel, sizes
from fedjax_lab.engine.input import Host
from fedjax_lab.engine.width import client_bytes
from fedjax_lab.errors import BadInput
from fedjax_lab.models.frozen import Model, model_of
from fedjax_lab.models.task import has_convolutions, is_recurrent
from fedjax_lab.simulation import needs
from fedjax_lab.types import Federation, Plan, Stage


def engine_fields(
    engine: ml_collections.ConfigDict,
    plan: Plan,
    stages: Sequence[Stage],
    model: Model,
    federations: Sequence[Federation],
    devices: Sequence[jax.Device] | None,
    memory: int,
) -> dict[str, Any]:
    """The fields of a simulation that depend on the config's section `engine`.

    devices, memory: as for `experiment.build`. Raises BadInput if the run does not allow a setting.
    """
    task = model.unbound
    # Clients of these models train one after another on a CPU.
    in_turn = any(has_convolutions(net) or is_recurrent(net) for net in task.kinds or (task,))
    lent = _lent(engine, plan, stages, model, devices, memory)
    division = _divide(engine, plan, stages, federations, lent)
    host = _host(division, engine, stages)
    together = vectorizes_seeds(engine.seeds, stages, in_turn, platform_of(devices), host)
    alone = engine.fsdp > 1 or parallel.jit_is_disabled()
    together = together and (not alone or engine.seeds == "vectorized")
    at_once = len(federations) if together else 1
    of_client = functools.cache(lambda: at_once * _step_bytes(model, plan))
    strategy = parallel.choose(
        engine.strategy,
        cohort=plan.cohort,
        in_turn=in_turn,
        equal_steps=plan.equal_steps or plan.steps > 0,
        client_bytes=of_client,
        chunk=engine.chunk,
        group=engine.fsdp,
        devices=devices,
        by_kind=bool(task.kinds),
        **division.divided,
    )
    _check_jit(host, len(parallel.choose_devices(plan.cohort, engine.fsdp, devices)))
    return {
        "strategy": strategy,
        "vectorized_seeds": together,
        "precision": None if engine.precision == "default" else engine.precision,
        "placement": "; ".join((division.words, *_step(strategy, plan, of_client, lent))),
        "host": host,
    }


def _check_jit(host, devices):
    """Raises BadInput if jit is disabled for a run on several devices, or with data on the host."""
    if parallel.jit_is_disabled() and (host is not None or devices > 1):
        raise BadInput(
            "JAX_DISABLE_JIT: without jit a run uses one device and keeps everything on it; set"
            " JAX_NUM_CPU_DEVICES=1, and config.engine.state and config.engine.data to replicated"
        )


def _divide(engine, plan, stages, federations, lent):
    """Decides what is kept on every device, divided among the devices, or on the host."""
    return sizes.divide(
        [stage.method for stage in stages],
        federations,
        plan.objective.num_classes,
        lent,
        state=engine.state,
        data=engine.data,
    )


def _step_bytes(model, plan):
    """The bytes that a step of one client uses, at most."""
    models = [model_of(kind) for kind in model.unbound.kinds] or [model]
    return max(client_bytes(each, plan) for each in models)


def _step(strategy, plan, of_client, lent):
    """Words on the memory that a step needs on an accelerator whose memory is known."""
    if lent.of_host or not lent.memory:
        return
    line = -(-plan.cohort // lent.number)
    number = min(line, strategy.at_a_time or line)
    yield sizes.step_words(number, of_client() // strategy.group, lent.memory)


def _lent(engine, plan, stages, model, devices, memory):
    """The devices with the memory that frozen weights leave. Raises BadInput if none is left."""
    chosen = parallel.choose_devices(plan.cohort, engine.fsdp, devices)
    lent = sizes.Devices(
        number=len(chosen) // engine.fsdp,
        memory=memory or parallel.free_memory(devices),
        of_host=chosen[0].platform == "cpu",
    )
    base = tree.num_bytes(model.base)
    sizes.check_model(stages[0].method, engine.fsdp, lent, base)
    if not lent.memory:
        return lent
    return lent._replace(memory=max(1, lent.memory - base // engine.fsdp))


HOST_NEEDS = ("plain", "clients")
FSDP_NEEDS = ("no_turns",)


def _host(division, engine, stages):
    """What the run keeps on the host; None: nothing.

    Raises BadInput if its method does not allow it.
    """
    if not division.on_host:
        return None
    stream = division.data.where == "stream"
    asked = f"config.engine.{'data=stream' if stream else f'state={division.state.where}'}"
    needs.check(stages, *HOST_NEEDS, what=f"{asked} does not fit this method: ")
    if engine.seeds == "vectorized":
        raise BadInput(f"{asked} trains one seed after another; use config.engine.seeds=sequential")
    if engine.fsdp > 1:
        raise BadInput(f"{asked} needs a whole model on each device; use config.engine.fsdp=1")
    return Host(on_disk=division.state.where == "disk", stream=stream)


def platform_of(devices: Sequence[jax.Device] | None) -> str:
    """The platform of the devices of a run: "cpu", "gpu" or "tpu"."""
    return (jax.devices() if devices is None else devices)[0].platform


def vectorizes_seeds(
    choice: str,
    stages: Sequence[Stage],
    in_turn: bool,
    platform: str,
    host: Host | None = None,
) -> bool:
    """Whether all seeds are one computation; choice: config.engine.seeds."""
    if host is not None:
        return False
    if choice != "auto":
        return choice == "vectorized"
    if any(stage.prepare for stage in stages):  # the facts may differ in size between seeds
        return False
    return platform != "cpu" or not in_turn


def check_fsdp(config: ml_collections.ConfigDict, plan: Plan, stages: Sequence[Stage]) -> None:
    """Raises BadInput if a group of devices cannot share a client's work."""
    group = config.engine.fsdp
    if plan.batch_size % group:
        raise BadInput(
            f"config.engine.fsdp={group} does not divide a batch of {plan.batch_size} examples"
            " (config.local.batch_size, or all examples of the largest client)"
        )
    if group > 1:
        what = f"config.engine.fsdp={group} does not fit method {config.method.name}: "
        needs.check(stages, *FSDP_NEEDS, what=what)
