"""How one function runs for every client. The only module that knows of devices.

All strategies give the same numbers.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab import fsdp, processes, sampling, shards, tree
from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, Federation, PyTree, Rows
from fedjax_lab.width import width


class Strategy(NamedTuple):
    """A way to run a cohort.

    `each` and `everyone` take a function written for one client, fn(shared, federation, rows,
    entry), and give run(shared, federation, rows, stacked). `shared` is for all clients alike; what
    the client may look at is `rows` (a tree of arrays [N] of rows of this federation), and `entry`
    is its entry of the leading axis of `stacked`.

    Of a population whose number the devices do not divide, `stacked` has entries beyond the last
    client, whose results mean nothing.
    """

    name: str
    each: Callable[[Callable], Callable]  # (fn) -> run for a cohort; rows [M, N], stacked [M]
    everyone: Callable[[Callable, int], Callable]
    # (fn, size) -> run for all [C], at most `size` at a time; rows: `Rows`, or arrays [C, N]
    deal: Callable[[Array], Array]  # steps [M] -> the order [M] in which to line the clients up
    lane_steps: Callable[[Array], Array]  # steps [M] so ordered -> steps that are executed
    one_by_one: bool = False  # clients run one after another, so that one can be left out for free
    split: Callable[[PyTree], PyTree] = lambda rows: rows  # as `Exchange.alone` is given it
    take: Callable[[PyTree, Array], PyTree] = lambda stacked, ids: _take(stacked, ids)
    # (what is kept by client [C, ...], ids [M]) -> [M, ...]; of `Rows` [M, N]
    put: Callable[[PyTree, Array, PyTree], PyTree] = tree.put  # the inverse, for arrays
    take_any: Callable[[PyTree, Array], PyTree] = lambda stacked, ids: _take(stacked, ids)
    # as `take`, of clients that `draw` has not drawn
    draw: Callable[[Callable], Callable] = lambda sample: sample  # what is used of `Method.sample`
    collect: Callable[[Federation, Array], tuple[Federation, Array]] = lambda *pool: pool
    # (federation, rows [...]) -> a federation that all devices have, with these rows; the rows
    arrange: Callable[[Federation], Federation] = lambda federation: federation
    # (NumPy arrays of one seed) -> the same with the pool in the order in which devices hold it
    sharding: Sharding | None = None  # of what every device has; None: the default device
    by_client: NamedSharding | None = None  # of what is kept by client, where that is another one
    by_row: NamedSharding | None = None  # of the pool of examples, where that is another one
    group: int = 1  # devices that hold a model together: see `fsdp`


def _take(stacked, ids):
    return jax.tree.map(lambda a: a[ids], stacked, is_leaf=_is_rows)


def vectorized() -> Strategy:
    """All clients at once on one device: each runs for as long as the longest."""

    def each(fn):
        return jax.vmap(fn, (None, None, 0, 0))

    def lane_steps(steps):
        return steps.shape[0] * jnp.max(steps)

    return Strategy("vectorized", each, _in_groups(each), _as_they_come, lane_steps)


def sequential() -> Strategy:
    """One client after another: no step is wasted."""

    def each(fn):
        def run(shared, federation, rows, stacked):
            return jax.lax.map(lambda client: fn(shared, federation, *client), (rows, stacked))

        return run

    everyone = _in_groups(each)
    return Strategy("sequential", each, everyone, _as_they_come, jnp.sum, one_by_one=True)


def chunked(size: int) -> Strategy:
    """At most `size` clients at a time, sorted: a chunk ends with its own longest client."""

    def lane_steps(steps):
        lanes = _groups(steps, size)
        return lanes.shape[1] * jnp.sum(jnp.max(lanes, axis=1))

    everyone = vectorized().everyone
    return Strategy(
        name=f"chunked({size})",
        each=lambda fn: everyone(fn, size),
        everyone=lambda fn, at_most: everyone(fn, min(size, at_most)),
        deal=_longest_first,
        lane_steps=lane_steps,
    )


def _in_groups(each):
    """An `everyone` that runs groups of clients with this `each`."""

    def everyone(fn, size):
        def run(shared, federation, rows, stacked):
            def group(clients):
                places, stacked = clients
                return each(fn)(shared, federation, _take(rows, places), stacked)

            m = _length((stacked, rows))
            if m <= size:
                return group((jnp.arange(m), stacked))
            groups = jax.tree.map(lambda a: _groups(a, size), (jnp.arange(m), stacked))
            out = jax.lax.map(group, groups)
            return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:m], out)

        return run

    return everyone


def on_mesh(
    mesh: Mesh,
    inner: Strategy,
    by_client: bool = False,
    by_row: bool = False,
    by_device: bool = False,
) -> Strategy:
    """The cohort dealt over the mesh's `client` axis by size; `inner` runs a device's share.

    by_client: each device holds its share of what is kept by client, and not all of it.
    by_row: and of the examples. A device then gets those of the clients that it trains at the
        beginning of a round.
    by_device: each device draws its part of the cohort from the clients that it holds, whose
        examples it holds too (`shards.arrange`): nothing but sums travels. Needs both of the above;
        the devices divide the clients and the cohort.

    A cohort that the devices do not divide is filled up with copies of its last client, whose
    results are dropped. Where clients run one by one a copy is skipped instead; under `vmap` it
    must not be, because a `cond` there turns into a `select` whose operands, the pool of examples
    among them, are copied for every client.

    shard_map and not a sharding constraint: XLA replicates a convolution with per-client weights.
    """
    devices = mesh.shape["client"]
    clients = NamedSharding(mesh, P("client"))
    strategy = Strategy(
        name=f"mesh({devices}) x {inner.name}",
        each=partial(_each_on_mesh, mesh, inner, by_row, by_device),
        everyone=partial(_everyone_on_mesh, mesh, inner, by_client, by_row, by_device),
        deal=partial(_longest_first_of_each if by_device else _by_load, devices=devices),
        lane_steps=lambda steps: _lane_steps_on_mesh(inner, devices, steps),
        split=lambda rows: jax.lax.with_sharding_constraint(rows, clients),
        sharding=NamedSharding(mesh, P()),
    )
    if (group := fsdp.group_size(mesh)) > 1:
        name = f"mesh({devices} x fsdp {group}) x {inner.name}"
        strategy = strategy._replace(name=name, group=group)
    if by_client:
        take, put = partial(_take_on_mesh, mesh), partial(_put_on_mesh, mesh)
        strategy = strategy._replace(take=take, put=put, take_any=take, by_client=clients)
    if by_row:
        strategy = strategy._replace(collect=partial(_collect_on_mesh, mesh), by_row=clients)
    if by_device:
        spread = partial(_on_shares, mesh, in_specs=P("client"), out_specs=P("client"))
        strategy = strategy._replace(
            take=lambda *args: spread(shards.take_here)(*args),
            put=lambda *args: spread(shards.put_here)(*args),
            draw=partial(_drawn_by_device, devices, spread),
            arrange=partial(shards.arrange, devices=devices),
        )
    return strategy


def _drawn_by_device(devices, spread, sample):
    """`sample`, with which each device draws from the clients that it holds."""

    def draw(key, server, population, m):
        def each(fn):
            return spread(jax.vmap(fn))

        return sampling.in_strata(sample, key, server, population, m, devices, each)

    return draw


def _each_on_mesh(mesh, inner, by_row, by_device, fn):
    devices = mesh.shape["client"]
    each = partial(_with_examples, inner.each, by_row, by_device)

    def run(shared, federation, rows, stacked):
        m = _length(rows)
        rows, stacked = _filled((rows, stacked), devices)
        spread = _spread(mesh, each, by_row)
        if inner.one_by_one and m % devices:
            is_copy = jnp.arange(_length(rows)) >= m
            out = spread(_unless_copy(fn))(shared, federation, rows, (is_copy, stacked))
        else:
            out = spread(fn)(shared, federation, rows, stacked)
        return jax.tree.map(lambda a: a[:m], out)

    return run


def _everyone_on_mesh(mesh, inner, by_client, by_row, by_device, fn, size):
    """Each device runs its share of the clients, in groups."""
    devices = mesh.shape["client"]

    def on_device(fn):
        def run(shared, federation, rows, stacked):
            here = by_device and all(map(_is_rows, jax.tree.leaves(rows, is_leaf=_is_rows)))
            each = _in_groups(partial(_with_examples, inner.each, by_row, here))
            rows = shards.local(rows, _length(stacked), by_client)
            return each(fn, -(-size // devices))(shared, federation, rows, stacked[1])

        return run

    def run(shared, federation, rows, stacked):
        m = _length((stacked, rows))
        rows, stacked = _filled((rows, (jnp.arange(m), stacked)), devices)
        spread = _spread(mesh, on_device, by_row, rows_whole=not by_client)
        return jax.tree.map(lambda a: a[:m], spread(fn)(shared, federation, rows, stacked))

    return run


def _with_examples(each, by_row, here, fn):
    """`each` on a device that first gets the examples of its clients from those that hold them.

    here: it holds them itself.
    """
    if not by_row:
        return each(fn)
    if here:
        return lambda shared, federation, rows, stacked: each(fn)(
            shared, federation, shards.rows_here(federation, rows), stacked
        )

    def of_client(shared, federation, brought, entry):
        pool, rows = brought
        return fn(shared, federation._replace(**pool), rows, entry)

    def run(shared, federation, rows, stacked):
        if not jax.tree.leaves(rows):
            return each(fn)(shared, federation, rows, stacked)
        return each(of_client)(shared, federation, shards.bring(federation, rows), stacked)

    return run


def _unless_copy(fn):
    """fn for an entry with a flag; zeros where the flag says that the entry is a copy."""

    def run(shared, federation, rows, flagged):
        is_copy, entry = flagged
        args = shared, federation, rows, entry
        out = jax.eval_shape(fn, *args)
        return jax.lax.cond(is_copy, lambda: tree.zeros(out), lambda: fn(*args))

    return run


def _spread(mesh, each, by_row, rows_whole=False):
    """`each` with a share of the leading axes on each device.

    rows_whole: all devices have the same `Rows`.
    """
    clients, everything = P("client"), P()
    pool = Federation._make(everything for _ in Federation._fields)
    if by_row:
        pool = pool._replace(**dict.fromkeys(shards.POOL, clients))

    def spread(fn):
        def run(shared, federation, rows, stacked):
            whole = everything if rows_whole else clients
            of_rows = jax.tree.map(
                lambda a: whole if _is_rows(a) else clients, rows, is_leaf=_is_rows
            )
            return _on_shares(
                mesh,
                fsdp.in_group(each(fn), fsdp.group_size(mesh)),
                in_specs=(everything, pool, of_rows, clients),
                out_specs=clients,
            )(shared, _without_rows(federation), rows, stacked)

        return run

    return spread


# The function for each share of the clients; the axis `fsdp` is the compiler's.
def _on_shares(mesh, fn, **specs):
    return jax.shard_map(fn, mesh=mesh, axis_names={"client"}, check_vma=False, **specs)


def _without_rows(federation):
    nobody = dict.fromkeys(("train", "validation", "test", "global_test", "unseen"))
    return federation._replace(**nobody)


def _is_rows(a):
    return isinstance(a, Rows)


def _take_on_mesh(mesh, stacked, ids):
    m, ids = len(ids), _fill(ids, mesh.shape["client"])
    specs = {"in_specs": (P("client"), P()), "out_specs": P("client")}
    out = _on_shares(mesh, shards.take, **specs)(stacked, ids)
    return jax.tree.map(lambda a: a[:m], out)


def _put_on_mesh(mesh, stacked, ids, new):
    devices = mesh.shape["client"]
    new = _filled(tree.typed_like(new, stacked), devices)
    ids = jnp.pad(ids, (0, -len(ids) % devices), constant_values=-1)
    specs = {"in_specs": (P("client"), P(), P("client")), "out_specs": P("client")}
    return _on_shares(mesh, shards.put, **specs)(stacked, ids, new)


def _collect_on_mesh(mesh, federation, rows):
    pool = Federation._make(P() for _ in Federation._fields)
    divided = pool._replace(**dict.fromkeys(shards.POOL, P("client")))
    specs = {"in_specs": (divided, P()), "out_specs": (pool, P())}
    return _on_shares(mesh, shards.collect, **specs)(_without_rows(federation), rows)


def _lane_steps_on_mesh(inner, devices, steps):
    missing = -len(steps) % devices
    filled = jnp.pad(steps, (0, missing)) if inner.one_by_one else _fill(steps, devices)
    return sum(inner.lane_steps(line) for line in filled.reshape(devices, -1))


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


def put(a: PyTree, sharding: Sharding | None) -> PyTree:
    """A copy of what every process has on all devices of the mesh; keys of random numbers too."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(a, sharding)

    def one(a):
        if not isinstance(a, jax.Array) or _is_divided(a):
            return jax.device_put(a, sharding)
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            # An array on the only device of a process would become one that cannot be read.
            return jax.device_put(np.asarray(a), sharding)
        bits = jax.device_put(np.asarray(jax.random.key_data(a)), sharding)
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(a))

    return jax.tree.map(one, a)


def _is_divided(a):
    """Whether this process cannot read all of it."""
    return not (a.is_fully_addressable or a.is_fully_replicated)


def num_parts(sharding: NamedSharding) -> int:
    """How many devices, or groups of devices, divide what is kept by client or by row."""
    return sharding.mesh.shape["client"]


def put_divided(a: np.ndarray, sharding: NamedSharding, axis: int) -> Array:
    """A host array whose axis the sharding divides, padded there with zeros to a multiple.

    Each process reads only the entries of its devices.
    """
    parts = num_parts(sharding)
    length = -(-a.shape[axis] // parts) * parts

    def part(index):
        piece = np.asarray(a[index if axis else index[0]])  # what is beyond the end is cut off
        begin, end, _ = index[axis].indices(length)
        missing = end - begin - piece.shape[axis]
        widths = [(0, missing if i == axis else 0) for i in range(piece.ndim)]
        return np.pad(piece, widths) if missing else piece

    return jax.make_array_from_callback(
        (*a.shape[:axis], length, *a.shape[axis + 1 :]), sharding, part
    )


def _groups(a, size):
    """[M, ...] in as few groups of at most `size` as there can be, of one length: [G, g, ...]."""
    groups = -(-len(a) // size)
    length = -(-len(a) // groups)
    return _fill(a, length).reshape(groups, length, *a.shape[1:])


def _length(stacked):
    return jax.tree.leaves(stacked)[0].shape[0]


def _fill(a, multiple):
    """[M, ...] made a multiple long by repeating the last entry (if sorted, the shortest)."""
    missing = -a.shape[0] % multiple
    return jnp.concatenate([a, jnp.repeat(a[-1:], missing, axis=0)]) if missing else a


def _filled(a, multiple):
    """The tree with each array so filled, but not what is in a `Rows`."""
    return jax.tree.map(lambda a: a if _is_rows(a) else _fill(a, multiple), a, is_leaf=_is_rows)


def _as_they_come(steps):
    return jnp.arange(steps.shape[0])


def _longest_first(steps):
    return jnp.argsort(-steps, stable=True)


def _longest_first_of_each(steps, devices):
    """The longest first among the clients of each device, which lie one device after another."""
    lines = steps.reshape(devices, -1)
    first = lines.shape[1] * jnp.arange(devices)[:, None]
    return (first + jnp.argsort(-lines, axis=1, stable=True)).reshape(-1)


def _by_load(steps, devices):
    """The longest first, each to the device with the least to do that has a place left."""
    m = len(steps)
    share = -(-m // devices)
    room = jnp.clip(m - share * jnp.arange(devices), 0, share)

    def place(rank, carry):
        load, used, order = carry
        client = longest[rank]
        device = jnp.argmin(jnp.where(used < room, load, jnp.inf))
        order = order.at[device * share + used[device]].set(client)
        return load.at[device].add(steps[client]), used.at[device].add(1), order

    longest = _longest_first(steps)
    start = jnp.zeros(devices), jnp.zeros(devices, jnp.int32), jnp.zeros(m, longest.dtype)
    return jax.lax.fori_loop(0, m, place, start)[2]


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
