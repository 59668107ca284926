"""Transforms of all updates of a round at once: by the server, or by attackers who cooperate."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_lab import tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import needs
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree

Updates = list[Array]  # the updates in all uploads of a cohort, [M, ...] each: `wire.updates`
Change = Callable[[Updates, Client], Updates]


@dataclass(frozen=True)
class Changed:
    """The `aggregate` of an exchange, which first applies changes to the updates, in order.

    Uploads without an update reach the exchange unchanged.
    """

    exchange: Exchange
    changes: tuple[Change, ...]

    def __call__(self, server: PyTree, uploads: PyTree, cohort: Client) -> PyTree:
        def change(updates, cohort):
            return after(self.changes, updates, cohort), ()

        uploads, _ = applied(self.exchange, change, server, uploads, cohort)
        return self.exchange.aggregate(server, uploads, cohort)


@dataclass(frozen=True)
class Reduced:
    """The change in which all clients get the same update: that of an aggregator."""

    reduce: Callable[[Updates, Client], Updates]
    weigh: Callable[[Updates, Client], Array] | None = None

    def __call__(self, updates: Updates, cohort: Client) -> Updates:
        return tree.repeat(self.reduce(updates, cohort), len(cohort.id))


def applied(
    exchange: Exchange,
    change: Callable[[Updates, Client], tuple[Updates, PyTree]],
    server: PyTree,
    uploads: PyTree,
    cohort: Client,
) -> tuple[PyTree, PyTree]:
    """Returns the uploads after a change, and what it returns besides updates.

    Uploads without an update are returned unchanged, and the second result is then None.
    """

    def client_references(id, upload):
        return wire.references(exchange, exchange.send(server, id), id, upload)

    def updates(id, upload):
        return wire.updates(client_references(id, upload), upload)

    def with_updates(id, upload, after):
        return wire.with_updates(client_references(id, upload), upload, after)

    before = _if_arrived(cohort, jax.vmap(updates)(cohort.id, uploads))
    if not before:
        return uploads, None
    made, other = change(before, cohort)
    uploads = jax.vmap(with_updates)(cohort.id, uploads, made)
    return _if_arrived(cohort, uploads), other


def changed(method: Method, change: Change) -> Method:
    """The method whose server gets changed updates.

    The changes of a method that is wrapped several times are applied in the order of the wrapping.

    Args:
      method: the method to wrap.
      change: (updates, cohort) -> updates of the same shapes. The update of a lost upload
        (`cohort.arrived`) is 0 and stays lost, whatever `change` returns for it. Where `change`
        returns an update unchanged, the server gets the original upload, bit for bit.

    Raises BadInput for a method whose server aggregates one client after another, or only learns a
    private sum.
    """
    needs.check(method, "all_at_once", "single_updates")
    return method._replace(round=tuple(_with(exchange, change) for exchange in method.round))


def replaced(
    method: Method,
    reduce: Callable[[Updates, Client], Updates],
    weigh: Callable[[Updates, Client], Array] | None = None,
) -> Method:
    """The method whose server gets the same update from every client.

    reduce: (updates [M, ...], cohort) -> one update. The mean that the method then takes of equal
    updates is this update.

    weigh: (updates, cohort) -> the weights [M] of the clients, 0 for those whose update has no
    effect; None if `reduce` leaves no client out.

    Raises BadInput as `changed` does, and for a method whose clients update different models.
    """
    check_common(method)
    return changed(method, Reduced(reduce, weigh))


def weighed(method: Method, weigh: Callable[[Updates, Client], Array]) -> Method:
    """As `replaced`, by the mean of the updates with the weights that `weigh` returns."""
    return replaced(method, lambda u, cohort: weighted(weigh(u, cohort), u), weigh)


def weighted(weights: Array, updates: Updates) -> Updates:
    """The mean of the updates with these weights [M], or 0 if all are 0.

    Updates with the weight 0 are not multiplied by it, because they may be infinite.
    """
    total = jnp.sum(weights)
    share = weights / jnp.where(total > 0, total, 1)
    return tree.mix(share, tree.where(share > 0, updates, tree.zeros(updates)))


def mixed(method: Method, mix: Callable[[Updates, Client], tuple[Updates, Client]]) -> Method:
    """The method whose aggregator gets other updates and clients.

    mix: (updates, cohort) -> (updates of the same shapes, cohort).

    Raises BadInput unless the method has an aggregator that replaces all updates by one, and keeps
    no state.
    """

    def one(exchange):
        before, changes = parts(exchange)
        if not changes or not isinstance(changes[-1], Reduced):
            raise BadInput("its aggregator must get the updates as they are (aggregator.mixing)")
        reduce = changes[-1].reduce
        rule = Reduced(lambda updates, cohort: reduce(*mix(updates, cohort)))
        return exchange._replace(aggregate=Changed(before, (*changes[:-1], rule)))

    return method._replace(round=tuple(map(one, method.round)))


def check_common(method: Method) -> None:
    """Raises BadInput unless the method's server sees all updates, of the same model, at once."""
    needs.check(method, "common_update", "all_at_once", "single_updates")


def parts(exchange: Exchange) -> tuple[Exchange, tuple[Change, ...]]:
    """Returns the exchange without the changes that its `aggregate` applies first, and these."""
    before = exchange.aggregate
    if isinstance(before, Changed):
        return before.exchange, before.changes
    return exchange, ()


def with_listener(exchange: Exchange, listen: Callable[..., PyTree]) -> Exchange:
    """The exchange with `listen` instead of its `aggregate`.

    Changes that the `aggregate` applies first are still applied first.

    listen: (the exchange without these changes, server, uploads, cohort) -> server.
    """
    before, changes = parts(exchange)
    heard = exchange._replace(aggregate=partial(listen, before))
    return heard._replace(aggregate=Changed(heard, changes)) if changes else heard


def after(changes: tuple[Change, ...], updates: Updates, cohort: Client) -> Updates:
    """Applies the changes to the updates, in order; updates of lost uploads become 0."""
    for change in changes:
        updates = _if_arrived(cohort, change(updates, cohort))
    return updates


def _with(exchange, change):
    plain, changes = parts(exchange)
    return exchange._replace(aggregate=Changed(plain, (*changes, change)))


def _if_arrived(cohort, stacked):
    """The stacked values, with zeros for lost uploads."""
    return tree.where(cohort.arrived, stacked, tree.zeros(stacked))
