"""The devices of a run: which there are, what they hold, and which strategy they follow."""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding

from fedjax_lab import fsdp, processes, tree
from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput
from fedjax_lab.mesh import on_mesh
from fedjax_lab.strategies import Strategy, chunked, sequential, vectorized
from fedjax_lab.types import Array, PyTree
from fedjax_lab.width import width


def use_every_core() -> None:
    """Makes each core of a CPU a device, so that the devices share the clients.

    Takes effect only before jax starts. JAX_NUM_CPU_DEVICES, if set, is the number of devices.

    Sets NPROC, the number of XLA's worker threads, to one more than the devices. If every worker
    runs a device, the queue of a long loop fills up, XLA runs a new task at once in its caller, and
    Eigen's convolution overwrites a block that it still reads (measured with jaxlib 0.10.2:
    gradients of digit_cnn that are wrong by 15 %). The spare worker keeps the queue short.
    """
    devices = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # jax adds its flags
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
        devices = len(cores(0))
        jax.config.update("jax_num_cpu_devices", devices)
    if devices > 1:
        os.environ["NPROC"] = str(devices + 1)


def check_devices() -> None:
    """Starts jax. BadInput where it finds no device, for example under a wrong JAX_PLATFORMS."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the second: no plugin has the platform
        platforms = jax.config.jax_platforms  # type: ignore[attr-defined]  # jax adds its flags
        asked = f"JAX_PLATFORMS={platforms}: " if platforms else ""
        raise BadInput(f"{asked}{str(error) or 'jax finds no such device here'}") from error


def check_memory(size: int, what: str) -> None:
    """MemoryError unless each CPU device can take `size` bytes more; `what` begins the message.

    An accelerator's runtime refuses an allocation that is too large. A CPU's operating system
    grants it, and kills the process when the memory is used.
    """
    total = size * len(jax.local_devices())
    free = safe.free_memory()
    if jax.default_backend() == "cpu" and total > free:
        raise MemoryError(f"{what} {total / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free")


def make_mesh(devices: int | Sequence[jax.Device], group: int = 1) -> Mesh:
    """A mesh with the axis `client` over these devices, or over so many of JAX's first.

    With a `group` above 1, which must divide their number, so many of them hold a model together,
    along the axis `fsdp`.
    """
    chosen = jax.devices()[:devices] if isinstance(devices, int) else devices
    shape: tuple[int, ...] = (len(chosen),)
    names: tuple[str, ...] = ("client",)
    if group > 1:
        shape, names = (len(chosen) // group, group), ("client", fsdp.AXIS)
    axes = {"axis_types": (AxisType.Auto,) * len(names)}
    try:
        return jax.make_mesh(shape, names, devices=chosen, **axes)
    except AssertionError:  # JAX orders the chips of a TPU only if they form a box
        return Mesh(np.array(chosen).reshape(shape), names, **axes)


def put(a: PyTree, sharding: Sharding | None, compared: bool = True) -> PyTree:
    """A copy of what every process has on all devices of the mesh; keys of random numbers too.

    compared: the processes make sure that theirs are equal, which only the main thread may do.
    """
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(a, sharding)
    place = jax.device_put if compared else _from_host

    def one(a):
        if isinstance(a, jax.Array) and (_is_divided(a) or a.sharding == sharding):
            return jax.device_put(a, sharding)
        if not tree.is_key(a):
            # An array on the only device of a process would become one that cannot be read.
            return place(np.asarray(a), sharding)
        bits = place(np.asarray(jax.random.key_data(a)), sharding)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(a))

    return jax.tree.map(one, a)


def _from_host(a, sharding):
    return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])


def _is_divided(a):
    """Whether this process cannot read all of it."""
    return not (a.is_fully_addressable or a.is_fully_replicated)


def num_parts(sharding: NamedSharding) -> int:
    """How many devices, or groups of devices, divide what is kept by client or by row."""
    return sharding.mesh.shape["client"]


def padded_shape(shape: Sequence[int], sharding: NamedSharding, axis: int) -> tuple[int, ...]:
    """The shape with this axis as long as a multiple of what divides it."""
    length = shape[axis] + -shape[axis] % num_parts(sharding)
    return (*shape[:axis], length, *shape[axis + 1 :])


def put_divided(a: np.ndarray, sharding: NamedSharding, axis: int) -> Array:
    """A host array whose axis the sharding divides, padded there with zeros to a multiple.

    Each process reads only the entries of its devices.
    """
    shape = padded_shape(a.shape, sharding, axis)

    def part(index):
        piece = np.asarray(a[index if axis else index[0]])  # what is beyond the end is cut off
        begin, end, _ = index[axis].indices(shape[axis])
        missing = end - begin - piece.shape[axis]
        widths = [(0, missing if i == axis else 0) for i in range(piece.ndim)]
        return np.pad(piece, widths) if missing else piece

    return jax.make_array_from_callback(shape, sharding, part)


def put_segment(a: PyTree, sharding: NamedSharding) -> PyTree:
    """This process's segment of host arrays whose leading axis the sharding divides.

    The segments of all processes have one length, a multiple of its devices.
    """
    return jax.tree.map(partial(jax.make_array_from_process_local_data, sharding), a)


def of_process(a: Array) -> np.ndarray:
    """The segment of an array that the devices of this process hold; all if it is not divided."""
    if a.is_fully_replicated:
        return np.asarray(a)
    shards = sorted(a.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([shard.data for shard in shards])


def choose(
    name: str,
    *,
    cohort: int,
    convolutional: bool,
    equal_steps: bool,
    client_bytes: Callable[[], int],
    chunk: int = 0,
    group: int = 1,
    devices: Sequence[jax.Device] | None = None,
    **divided: bool,
) -> Strategy:
    """The named strategy on these devices, by default all of this machine; `auto` picks one.

    On a CPU a convolutional model goes through its clients one after another, since its kernels
    cannot be batched over clients; so does a `group` of more than one device, which trains one
    client together, since a model that needs it fills the devices alone. Otherwise `chunk` clients
    run at a time; where it is 0, `width` decides from client_bytes(), the memory that a step of one
    client works on. Several devices, or groups of them, share the cohort, and what `divided` says:
    arguments of `on_mesh`.
    """
    chosen = choose_devices(cohort, group, devices)
    line = -(-cohort * group // len(chosen))  # clients of one device, or of one group
    on_cpu = convolutional and chosen[0].platform == "cpu"
    if name == "auto" and not chunk and (on_cpu or group > 1):
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
        return on_mesh(make_mesh(chosen, group), strategy, **divided)
    return (
        strategy if devices is None else strategy._replace(sharding=SingleDeviceSharding(chosen[0]))
    )


def choose_devices(
    cohort: int, group: int = 1, devices: Sequence[jax.Device] | None = None
) -> Sequence[jax.Device]:
    """Those that a run takes: no more than a cohort needs, but of several processes all.

    Where a cohort has fewer clients, the others train copies. A process must not stand idle, and
    the compiler for TPUs wants all chips of a slice of several hosts.
    """
    every = jax.devices() if devices is None else devices
    _check_group(group, len(every))
    several = len({device.process_index for device in every}) > 1
    return every if several else every[: cohort * group]


def free_memory(devices: Sequence[jax.Device] | None = None) -> int:
    """Bytes that each of this machine's devices can take, the least of all processes.

    0: not known, as of devices that are not there.
    """
    if devices is not None:
        return 0
    if jax.default_backend() == "cpu":
        of_process = safe.free_memory() // len(jax.local_devices())
        return processes.least(of_process)
    return _memory()


def _memory():
    """Bytes that JAX may allocate on a device, the same in every process; 0: that is not known."""
    stats = processes.of_first(lambda: jax.local_devices()[0].memory_stats())
    return (stats or {}).get("bytes_limit", 0)


def _check_group(group, devices):
    if devices % group:
        divisors = " or ".join(str(n) for n in range(1, devices + 1) if devices % n == 0)
        raise BadInput(
            f"config.engine.fsdp={group} does not divide the {devices} devices; take {divisors}"
        )


def _check_workers(devices):
    local = len(jax.local_devices())
    if devices[0].platform == "cpu" and 1 < local >= int(os.environ.get("NPROC", "0")):
        warnings.warn(
            f"{local} CPU devices without a spare thread: gradients of convolutions can be wrong;"
            " call fedjax_lab.parallel.use_every_core() before jax starts",
            stacklevel=3,
        )
