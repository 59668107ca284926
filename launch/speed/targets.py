"""Accelerators for which programs can be compiled on a machine without them.

Their compilers are packages: `pip install 'fedjax_lab[aot-tpu]'` installs libtpu, and `[aot-cuda]`
the CUDA plugin of JAX and ptxas. Neither needs a driver.
"""

import importlib.util
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, nearest


class Chip(NamedTuple):
    """The properties of one device that the estimates use."""

    memory: int  # bytes
    bandwidth: float  # of the memory, in bytes per second
    clock: float = 0.0  # Hz, of the cycles that the compiler estimates; 0: it estimates none


# Memory and bandwidth as published by the vendors.
CHIPS = {
    "v5e": Chip(16 << 30, 819e9, 1.5e9),
    "v5p": Chip(95 << 30, 2765e9, 1.75e9),
    "v6e": Chip(32 << 30, 1638e9, 1.75e9),
    "h100": Chip(80 << 30, 3352e9),
}
EXAMPLES = ("v5e:2x2", "v5e:2x4", "v5e:16x16", "v6e:2x2", "v5p:2x2x1", "h100")
H100 = Path(__file__).with_name("h100.txtpb")  # XLA's description of the device
# Environment variables that the compilers need before JAX is imported.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # do not query a cloud's metadata server
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",  # autotuning needs a device
}


def check(target: str, devices: int) -> None:
    """Raise BadInput unless the target exists, has enough devices and its compiler is installed.

    target: such as "v5e:2x2" or "h100". devices: the number of devices to use; 0: all.
    """
    kind, _, topology = target.partition(":")
    if kind not in CHIPS or bool(topology) == (kind == "h100"):
        raise BadInput(f"--target: unknown target {target!r}; {nearest(target, EXAMPLES)}")
    if kind != "h100" and not re.fullmatch(r"\d+(x\d+){1,2}", topology):
        raise BadInput(f"--target={target}: the topology must be like {kind}:2x2")
    size = math.prod(int(side) for side in topology.split("x")) if topology else devices
    if not 0 <= devices <= size:
        raise BadInput(f"--devices={devices}: {target} has {size} devices; 0 uses all of them")
    if not installed(target):
        what, extra = ("the CUDA plugin", "cuda") if kind == "h100" else ("libtpu", "tpu")
        raise BadInput(f"--target={target} needs {what}: pip install 'fedjax_lab[aot-{extra}]'")


def installed(target: str) -> bool:
    """Whether the compiler for the target is installed."""
    plugins = ("libtpu",) if target != "h100" else ("jax_cuda12_plugin", "jax_cuda13_plugin")
    return any(importlib.util.find_spec(plugin) for plugin in plugins)


def topology(target: str, devices: int) -> list[Any]:
    """The first `devices` devices of a target for the compiler (0: all of a slice, or one GPU)."""
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
    """The properties of one device of the target."""
    return CHIPS[target.partition(":")[0]]
