"""Strategies that run a function for every client on a mesh of devices."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_lab import tree
from fedjax_lab.engine import fsdp, shards
from fedjax_lab.simulation.strategies import (
    Strategy,
    fill,
    filled,
    in_groups,
    is_rows,
    length,
    longest_first,
    unless_copy,
)
from fedjax_lab.types import POOL, ROWS, Federation


def on_mesh(
    mesh: Mesh,
    inner: Strategy,
    by_client: bool = False,
    by_row: bool = False,
) -> Strategy:
    """A strategy that divides the cohort among the devices of a mesh by the clients' work.

    Args:
      mesh: its axis `client` divides the clients.
      inner: the strategy by which each device runs its part of the cohort.
      by_client: the state of clients is divided among the devices; else every device has all of it.
      by_row: the examples are divided too. At the beginning of a round, a device then gets the
        examples of the clients that it trains.

    If the size of a cohort is not a multiple of the number of devices, copies of its last client
    fill it up, and their results are dropped. If clients run one by one, the copies are skipped.
    Under `vmap` they are not, because `cond` would become a `select`, whose operands, among them
    the pool of examples, are copied for every client.

    It uses shard_map instead of a sharding constraint, with which XLA would replicate convolutions
    with per-client weights.
    """
    devices = mesh.shape["client"]
    clients, everywhere = NamedSharding(mesh, P("client")), NamedSharding(mesh, P())
    strategy = Strategy(
        name=f"mesh({devices}) x {inner.name}",
        each=partial(_each_on_mesh, mesh, inner, by_row),
        everyone=partial(_everyone_on_mesh, mesh, inner, by_client, by_row),
        deal=partial(_by_load, devices=devices),
        lane_steps=lambda steps: _lane_steps_on_mesh(inner, devices, steps),
        whole=lambda drawn: jax.lax.with_sharding_constraint(drawn, everywhere),
        sharding=everywhere,
        at_a_time=inner.at_a_time,
    )
    if (group := fsdp.group_size(mesh)) > 1:
        name = f"mesh({devices} x fsdp {group}) x {inner.name}"
        strategy = strategy._replace(name=name, group=group)
    if by_client:
        take, put = partial(_take_on_mesh, mesh), partial(_put_on_mesh, mesh)
        strategy = strategy._replace(take=take, put=put, by_client=clients)
    if by_row:
        strategy = strategy._replace(collect=partial(_collect_on_mesh, mesh), by_row=clients)
    return strategy


def _each_on_mesh(mesh, inner, by_row, fn):
    devices = mesh.shape["client"]
    each = partial(_with_examples, inner.each, by_row)

    def run(shared, federation, rows, stacked):
        m = length(rows)
        rows, stacked = filled((rows, stacked), devices)
        spread = _spread(mesh, each, by_row)
        if inner.one_by_one and m % devices:
            is_copy = jnp.arange(length(rows)) >= m
            out = spread(unless_copy(fn))(shared, federation, rows, (is_copy, stacked))
        else:
            out = spread(fn)(shared, federation, rows, stacked)
        return jax.tree.map(lambda a: a[:m], out)

    return run


def _everyone_on_mesh(mesh, inner, by_client, by_row, fn, size):
    """The `everyone` of the mesh: each device runs its part of the clients, in groups."""
    devices = mesh.shape["client"]

    def on_device(fn):
        def run(shared, federation, rows, stacked):
            each = in_groups(partial(_with_examples, inner.each, by_row))
            rows = shards.local(rows, length(stacked), by_client)
            return each(fn, -(-size // devices))(shared, federation, rows, stacked[1])

        return run

    def run(shared, federation, rows, stacked):
        m = length((stacked, rows))
        rows, stacked = filled((rows, (jnp.arange(m), stacked)), devices)
        spread = _spread(mesh, on_device, by_row, rows_whole=not by_client)
        return jax.tree.map(lambda a: a[:m], spread(fn)(shared, federation, rows, stacked))

    return run


def _with_examples(each, by_row, fn):
    """A version of `each` in which a device first gets the examples of its clients from others."""
    if not by_row:
        return each(fn)

    def run_client(shared, federation, brought, entry):
        pool, rows = brought
        return fn(shared, federation._replace(**pool), rows, entry)

    def run(shared, federation, rows, stacked):
        if not jax.tree.leaves(rows):
            return each(fn)(shared, federation, rows, stacked)
        return each(run_client)(shared, federation, shards.bring(federation, rows), stacked)

    return run


def _spread(mesh, each, by_row, rows_whole=False):
    """A version of `each` with the leading axes divided among the devices.

    rows_whole: whether every device has the `Rows` of all clients.
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
    """The function on each device's part of the clients; the compiler manages the axis `fsdp`."""
    return jax.shard_map(fn, mesh=mesh, axis_names={"client"}, check_vma=False, **specs)


def _without_rows(federation):
    return federation._replace(**dict.fromkeys(ROWS))


def _specs(by_row):
    """The specs of a federation without rows; by_row: its pool is divided among the devices."""
    whole = Federation._make(P() for _ in Federation._fields)
    return whole._replace(**dict.fromkeys(POOL, P("client"))) if by_row else whole


def _take_on_mesh(mesh, stacked, ids):
    m, ids = len(ids), fill(ids, mesh.shape["client"])
    out = _on_shares(mesh, shards.take, in_specs=(P("client"), P()), out_specs=P("client"))(
        stacked, ids
    )
    return jax.tree.map(lambda a: a[:m], out)


def _put_on_mesh(mesh, stacked, ids, new):
    devices = mesh.shape["client"]
    new = filled(tree.typed_like(new, stacked), devices)
    ids = jnp.pad(ids, (0, -len(ids) % devices), constant_values=-1)
    return _on_shares(
        mesh, shards.put, in_specs=(P("client"), P(), P("client")), out_specs=P("client")
    )(stacked, ids, new)


def _collect_on_mesh(mesh, federation, rows):
    return _on_shares(
        mesh, shards.collect, in_specs=(_specs(True), P()), out_specs=(_specs(False), P())
    )(_without_rows(federation), rows)


def _lane_steps_on_mesh(inner, devices, steps):
    missing = -len(steps) % devices
    filled = jnp.pad(steps, (0, missing)) if inner.one_by_one else fill(steps, devices)
    return jnp.sum(jax.vmap(inner.lane_steps)(filled.reshape(devices, -1)))


def _by_load(steps, devices):
    """An order that assigns clients by decreasing steps, each to the least loaded device.

    Each device gets a fixed number of clients.
    """
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
