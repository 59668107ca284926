"""How one function runs for every client on a mesh of devices."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab import fsdp, sampling, shards, tree
from fedjax_lab.strategies import Strategy, fill, filled, in_groups, is_rows, length, longest_first
from fedjax_lab.types import POOL, ROWS, Federation


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
        m = length(rows)
        rows, stacked = filled((rows, stacked), devices)
        spread = _spread(mesh, each, by_row)
        if inner.one_by_one and m % devices:
            is_copy = jnp.arange(length(rows)) >= m
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
            here = by_device and all(map(is_rows, jax.tree.leaves(rows, is_leaf=is_rows)))
            each = in_groups(partial(_with_examples, inner.each, by_row, here))
            rows = shards.local(rows, length(stacked), by_client)
            return each(fn, -(-size // devices))(shared, federation, rows, stacked[1])

        return run

    def run(shared, federation, rows, stacked):
        m = length((stacked, rows))
        rows, stacked = filled((rows, (jnp.arange(m), stacked)), devices)
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

    def spread(fn):
        def run(shared, federation, rows, stacked):
            whole = everything if rows_whole else clients
            of_rows = jax.tree.map(
                lambda a: whole if is_rows(a) else clients, rows, is_leaf=is_rows
            )
            return _on_shares(
                mesh,
                fsdp.in_group(each(fn), fsdp.group_size(mesh)),
                in_specs=(everything, _specs(by_row), of_rows, clients),
                out_specs=clients,
            )(shared, _without_rows(federation), rows, stacked)

        return run

    return spread


def _on_shares(mesh, fn, **specs):
    """The function on each device's share of the clients; the axis `fsdp` is the compiler's."""
    return jax.shard_map(fn, mesh=mesh, axis_names={"client"}, check_vma=False, **specs)


def _without_rows(federation):
    return federation._replace(**dict.fromkeys(ROWS))


def _specs(by_row):
    """Of a federation without rows whose pool every device has, or which the devices divide."""
    whole = Federation._make(P() for _ in Federation._fields)
    return whole._replace(**dict.fromkeys(POOL, P("client"))) if by_row else whole


def _take_on_mesh(mesh, stacked, ids):
    m, ids = len(ids), fill(ids, mesh.shape["client"])
    specs = {"in_specs": (P("client"), P()), "out_specs": P("client")}
    out = _on_shares(mesh, shards.take, **specs)(stacked, ids)
    return jax.tree.map(lambda a: a[:m], out)


def _put_on_mesh(mesh, stacked, ids, new):
    devices = mesh.shape["client"]
    new = filled(tree.typed_like(new, stacked), devices)
    ids = jnp.pad(ids, (0, -len(ids) % devices), constant_values=-1)
    specs = {"in_specs": (P("client"), P(), P("client")), "out_specs": P("client")}
    return _on_shares(mesh, shards.put, **specs)(stacked, ids, new)


def _collect_on_mesh(mesh, federation, rows):
    specs = {"in_specs": (_specs(True), P()), "out_specs": (_specs(False), P())}
    return _on_shares(mesh, shards.collect, **specs)(_without_rows(federation), rows)


def _lane_steps_on_mesh(inner, devices, steps):
    missing = -len(steps) % devices
    filled = jnp.pad(steps, (0, missing)) if inner.one_by_one else fill(steps, devices)
    return sum(inner.lane_steps(line) for line in filled.reshape(devices, -1))


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

    longest = longest_first(steps)
    start = jnp.zeros(devices), jnp.zeros(devices, jnp.int32), jnp.zeros(m, longest.dtype)
    return jax.lax.fori_loop(0, m, place, start)[2]
