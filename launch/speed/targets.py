"""The accelerators for which programs can be compiled where they are not there.

Their compilers are packages: `pip install 'fedjax_lab[aot-tpu]'` brings libtpu, `[aot-cuda]` the
CUDA plugin of JAX and ptxas. Neither needs a driver.
"""

import importlib.util
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, nearest


class Chip(NamedTuple):
    """What the estimates need to know of one device."""

    memory: int  # bytes
    bandwidth: float  # bytes of that memory a second
    clock: float = 0.0  # in which the compiler counts its cycles, in Hz; 0: it counts none


# Memory and bandwidth as their makers publish them.
CHIPS = {
    "v5e": Chip(16 << 30, 819e9, 1.5e9),
    "v5p": Chip(95 << 30, 2765e9, 1.75e9),
    "v6e": Chip(32 << 30, 1640e9, 1.75e9),
    "h100": Chip(80 << 30, 3352e9),
}
EXAMPLES = ("v5e:2x2", "v5e:2x4", "v5e:16x16", "v6e:2x2", "v5p:2x2x1", "h100")
H100 = Path(__file__).with_name("h100.txtpb")  # what XLA needs to know of the device
# What the compilers ask of the environment, before JAX is imported.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # no question to the metadata server of a cloud
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",  # measuring kernels takes a device
}


def check(target: str, devices: int) -> None:
    """BadInput unless the target exists, has so many devices, and its compiler is installed."""
    kind, _, topology = target.partition(":")
    if kind not in CHIPS or bool(topology) == (kind == "h100"):
        raise BadInput(f"--target: no target {target!r}; {nearest(target, EXAMPLES)}")
    if kind != "h100" and not re.fullmatch(r"\d+(x\d+){1,2}", topology):
        raise BadInput(f"--target={target}: the topology must be like {kind}:2x2")
    there = math.prod(int(side) for side in topology.split("x")) if topology else devices
    if not 0 <= devices <= there:
        raise BadInput(f"--devices={devices}: {target} has {there}; 0 takes all")
    if not installed(target):
        what, extra = ("the CUDA plugin", "cuda") if kind == "h100" else ("libtpu", "tpu")
        raise BadInput(f"--target={target} needs {what}: pip install 'fedjax_lab[aot-{extra}]'")


def installed(target: str) -> bool:
    """Whether the compiler for the target is installed."""
    plugins = ("libtpu",) if target != "h100" else ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return any(importlib.util.find_spec(plugin) for plugin in plugins)


def topology(target: str, devices: int) -> list[Any]:
    """The first `devices` devices of a target (0: all of a TPU's, one GPU), for the compiler."""
    from jax.experimental import topologies

    if target == "h100":
        size = devices or 1
        described = topologies.get_topology_desc(
            platform="cuda", target_config=H100.read_text(), topology=f"1x1x{size}"
        )
    else:
        described = topologies.get_topology_desc(target, "tpu")
    return list(described.devices)[: devices or None]


def chip(target: str) -> Chip:
    """One device of the target."""
    return CHIPS[target.partition(":")[0]]
