"""The devices of a run: their selection, the placement of arrays, and the choice of a strategy."""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jaxlib
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding

from fedjax_lab import tree
from fedjax_lab.data import limits, safe
from fedjax_lab.engine import fsdp, processes
from fedjax_lab.engine.mesh import on_mesh
from fedjax_lab.engine.width import width
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation.by_kind import deal_kinds
from fedjax_lab.simulation.strategies import Strategy, chunked, sequential, vectorized
from fedjax_lab.types import Array, PyTree

LONGEST_WAIT = 30 * 24 * 3600  # seconds that devices of a CPU wait for each other
WAITS = (  # of the jaxlib versions 0.MINOR with MINOR in JAXLIB_WAITS
    "xla_cpu_collective_call_warn_stuck_timeout_seconds",
    "xla_cpu_collective_call_terminate_timeout_seconds",
)
JAXLIB_WAITS = ("10", "11", "12")
BASE_BYTES, DEVICE_BYTES = 9 << 28, 1 << 25  # of the address space of a small run on the CPU


def use_every_core() -> None:
    """Makes each core of a CPU a device, so that the devices share the clients.

    It has an effect only before jax starts. JAX_NUM_CPU_DEVICES, if set, is the number of devices.
    If jit is disabled (JAX_DISABLE_JIT), there is one.

    Also sets NPROC, the number of XLA's worker threads, to the number of devices plus one. If every
    worker runs a device, the queue of a long loop fills up, XLA then runs a new task directly in
    its caller, and Eigen's convolution overwrites a block that is still being read (measured with
    jaxlib 0.10.2: errors of 15 % in gradients of digit_cnn). The spare worker keeps the queue
    short.
    """
    devices = _chosen_devices()
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        devices = 1 if jit_is_disabled() else _cores()
        jax.config.update("jax_num_cpu_devices", devices)
    if devices > 1:
        os.environ["NPROC"] = str(devices + 1)
        _wait_for_slow_devices()


def use_every_core_if_possible() -> None:
    """`use_every_core` for a Python program, which may have started jax: then a warning says so.

    A number of CPU devices that the program has chosen is not changed.
    """
    if _chosen_devices() > 0 and "JAX_NUM_CPU_DEVICES" not in os.environ:
        return
    try:
        use_every_core()
    except RuntimeError:  # jax has started
        if jax.default_backend() == "cpu" and len(jax.local_devices()) < _cores():
            warnings.warn(
                f"jax has started with {len(jax.local_devices())} of {_cores()} cores; call"
                " fedjax_lab.engine.parallel.use_every_core() before anything uses jax",
                stacklevel=3,
            )


def _chosen_devices() -> int:
    """The number of CPU devices that the program or JAX_NUM_CPU_DEVICES has set; -1 if neither."""
    return jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # jax adds its flags


def _cores() -> int:
    """The number of cores that this process may use."""
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return len(cores(0))


def jit_is_disabled() -> bool:
    """Whether JAX_DISABLE_JIT=1 lets every operation run alone, and no program is compiled."""
    return jax.config.jax_disable_jit  # type: ignore[attr-defined]  # jax adds its flags


def _wait_for_slow_devices():
    """Sets the time that the devices of a CPU wait for each other, if this jaxlib can.

    By default XLA prints lines after 20 seconds and aborts the process after 60, although the last
    device of a round may only have more clients. An unknown flag would abort the process, too.
    """
    given, version = os.environ.get("XLA_FLAGS", ""), jaxlib.__version__.split(".")
    if version[0] == "0" and version[1] in JAXLIB_WAITS:
        flags = [f"--{flag}={LONGEST_WAIT}" for flag in WAITS if flag not in given]
        os.environ["XLA_FLAGS"] = " ".join([given, *flags]).strip()


def check_devices() -> None:
    """Starts jax.

    Raises BadInput if it finds no device, for example because of a wrong JAX_PLATFORMS, and
    MemoryError if a limit of this process is too low: jax would crash or wait forever.
    """
    devices = max(1, _chosen_devices())
    if low := limits.too_low(BASE_BYTES + devices * DEVICE_BYTES):
        raise MemoryError(f"{low} for a small run")
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # AssertionError: no plugin has the platform
        platforms = jax.config.jax_platforms  # type: ignore[attr-defined]  # jax adds its flags
        asked = f"JAX_PLATFORMS={platforms}: " if platforms else ""
        raise BadInput(f"{asked}{str(error) or 'jax finds no such device here'}") from error


def check_memory(size: int, what: str) -> None:
    """Raises MemoryError unless each CPU device can allocate `size` more bytes.

    what: the beginning of the message.

    The runtime of an accelerator refuses an allocation that is too large. The operating system of a
    CPU grants it, and kills the process when the memory is used.
    """
    total = size * len(jax.local_devices())
    free = safe.free_memory()
    if jax.default_backend() == "cpu" and total > free:
        raise MemoryError(f"{what} {total / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free")


def make_mesh(devices: int | Sequence[jax.Device], group: int = 1) -> Mesh:
    """A mesh with the axis `client` over these devices.

    devices: the devices, or a number: the first devices of JAX.
    group: number of devices that together hold a model, along the axis `fsdp`; it must divide the
    number of devices. 1: there is no axis `fsdp`.
    """
    chosen = jax.devices()[:devices] if isinstance(devices, int) else devices
    shape: tuple[int, ...] = (len(chosen),)
    names: tuple[str, ...] = ("client",)
    if group > 1:
        shape, names = (len(chosen) // group, group), ("client", fsdp.AXIS)
    types = (AxisType.Auto,) * len(names)
    try:
        return jax.make_mesh(shape, names, devices=chosen, axis_types=types)
    except AssertionError:  # JAX orders the chips of a TPU only if they form a box
        return Mesh(np.array(chosen).reshape(shape), names, axis_types=types)


def put(a: PyTree, sharding: Sharding | None, compared: bool = True) -> PyTree:
    """Copies arrays that every process has, random keys included, to all devices of the mesh.

    compared: checks that the arrays of all processes are equal. Only the main thread may do this.
    """
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(a, sharding)
    place = jax.device_put if compared else _from_host

    def one(a):
        if isinstance(a, jax.Array) and (_is_divided(a) or a.sharding == sharding):
            return jax.device_put(a, sharding)
        if not tree.is_key(a):
            # A jax array on the only device of a process would become unreadable for it.
            return place(np.asarray(a), sharding)
        bits = place(np.asarray(jax.random.key_data(a)), sharding)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(a))

    return jax.tree.map(one, a)


def _from_host(a, sharding):
    return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])


def _is_divided(a):
    """Whether this process cannot read the whole array."""
    return not (a.is_fully_addressable or a.is_fully_replicated)


def num_parts(sharding: NamedSharding) -> int:
    """The number of devices, or groups of devices, among which clients or rows are divided."""
    return sharding.mesh.shape["client"]


def padded_shape(shape: Sequence[int], sharding: NamedSharding, axis: int) -> tuple[int, ...]:
    """The shape with this axis rounded up to a multiple of the number of parts."""
    length = shape[axis] + -shape[axis] % num_parts(sharding)
    return (*shape[:axis], length, *shape[axis + 1 :])


def put_divided(a: np.ndarray, sharding: NamedSharding, axis: int) -> Array:
    """Divides one axis of a host array, padded with zeros, among the devices.

    Each process reads only the entries of its own devices.
    """
    shape = padded_shape(a.shape, sharding, axis)

    def part(index):
        piece = np.asarray(a[index if axis else index[0]])  # slices stop at the end of the array
        begin, end, _ = index[axis].indices(shape[axis])
        missing = end - begin - piece.shape[axis]
        widths = [(0, missing if i == axis else 0) for i in range(piece.ndim)]
        return np.pad(piece, widths) if missing else piece

    return jax.make_array_from_callback(shape, sharding, part)


def put_segment(a: PyTree, sharding: NamedSharding) -> PyTree:
    """Global arrays whose leading axis is divided, from this process's segment of them.

    The segments of all processes have the same length, a multiple of the devices of a process.
    """
    return jax.tree.map(partial(jax.make_array_from_process_local_data, sharding), a)


def local_part(a: Array) -> np.ndarray:
    """The part of an array on the devices of this process; the whole array if it is not divided."""
    if a.is_fully_replicated:
        return np.asarray(a)
    shards = sorted(a.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([shard.data for shard in shards])


def choose(
    name: str,
    *,
    cohort: int,
    in_turn: bool,
    equal_steps: bool,
    client_bytes: Callable[[], int],
    chunk: int = 0,
    group: int = 1,
    by_kind: bool = False,
    devices: Sequence[jax.Device] | None = None,
    **divided: bool,
) -> Strategy:
    """The named strategy on these devices, by default on all devices of this machine.

    `auto` chooses one. On a CPU it runs clients one after another if `in_turn`: those of a
    convolutional model, because their kernels cannot be batched over clients. It does the same for
    recurrent models, because products of batches of matrices are slower in their loops; for a
    `group` of more than one device, because a model that needs a group fills its devices alone; and
    if jit is disabled, so that a debugger sees the arrays of one client. Otherwise `chunk` clients
    run at a time; if it is 0, `width` chooses the number from client_bytes(), the memory for a step
    of one client. Several devices, or groups of devices, share the cohort, and the arrays that
    `divided` selects: arguments of `on_mesh`. Clients with unlike models are dealt `by_kind`.
    """
    chosen = choose_devices(cohort, group, devices)
    line = -(-cohort * group // len(chosen))  # clients of one device, or of one group
    on_cpu = in_turn and chosen[0].platform == "cpu"
    if name == "auto" and not chunk and (on_cpu or group > 1 or jit_is_disabled()):
        name = "sequential"
    if name in ("auto", "chunked") and not chunk:
        memory = _memory() if devices is None else 0
        chunk = width(chosen[0].platform, line, client_bytes() // group, equal_steps, memory)
    if name == "auto":
        name = "vectorized" if chunk >= line else "sequential" if chunk == 1 else "chunked"
    inner = {"vectorized": vectorized, "sequential": sequential, "chunked": lambda: chunked(chunk)}
    strategy = inner[name]()
    _check_workers(chosen)
    if len(chosen) > 1:
        strategy = on_mesh(make_mesh(chosen, group), strategy, **divided)
    elif devices is not None:
        strategy = strategy._replace(sharding=SingleDeviceSharding(chosen[0]))
    return deal_kinds(strategy, len(chosen)) if by_kind else strategy


def choose_devices(
    cohort: int, group: int = 1, devices: Sequence[jax.Device] | None = None
) -> Sequence[jax.Device]:
    """The devices of a run: no more than the cohort needs, but all devices of several processes.

    With several processes, devices without a client train copies: no process may be idle, and the
    TPU compiler needs all chips of a slice with several hosts.
    """
    every = jax.devices() if devices is None else devices
    _check_group(group, len(every))
    several = len({device.process_index for device in every}) > 1
    return every if several else every[: cohort * group]


def free_memory(devices: Sequence[jax.Device] | None = None) -> int:
    """Bytes that can be allocated on each of this machine's devices, the minimum of all processes.

    0 if unknown, for example for `devices` that are not on this machine.
    """
    if devices is not None:
        return 0
    if jax.default_backend() == "cpu":
        of_process = safe.free_memory() // len(jax.local_devices())
        return processes.least(of_process)
    return _memory()


def _memory():
    """Bytes that JAX may allocate on a device, the same in every process; 0 if unknown."""
    stats = processes.call_in_first(lambda: jax.local_devices()[0].memory_stats())
    return (stats or {}).get("bytes_limit", 0)


def _check_group(group, devices):
    if devices % group:
        divisors = " or ".join(str(n) for n in range(1, devices + 1) if devices % n == 0)
        raise BadInput(
            f"config.engine.fsdp={group} does not divide the {devices} devices; choose {divisors}"
        )


def _check_workers(devices):
    local = len(jax.local_devices())
    if devices[0].platform == "cpu" and 1 < local >= int(os.environ.get("NPROC", "0")):
        warnings.warn(
            f"{local} CPU devices without a spare thread: gradients of convolutions can be wrong;"
            " call fedjax_lab.engine.parallel.use_every_core() before jax starts",
            stacklevel=3,
        )
