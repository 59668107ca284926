"""Transforms of all updates of a round at once: by the server, or by attackers who cooperate."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax

from fedjax_lab import tree, wire
from fedjax_lab.errors import BadInput
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
        def client_references(id, upload):
            return wire.references(self.exchange, self.exchange.send(server, id), id, upload)

        def updates(id, upload):
            return wire.updates(client_references(id, upload), upload)

        def with_updates(id, upload, after):
            return wire.with_updates(client_references(id, upload), upload, after)

        before = _if_arrived(cohort, jax.vmap(updates)(cohort.id, uploads))
        if not before:
            return self.exchange.aggregate(server, uploads, cohort)
        uploads = jax.vmap(with_updates)(cohort.id, uploads, after(self.changes, before, cohort))
        return self.exchange.aggregate(server, _if_arrived(cohort, uploads), cohort)


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
    _check_at_once(method)
    return method._replace(round=tuple(_with(exchange, change) for exchange in method.round))


def replaced(method: Method, reduce: Callable[[Updates, Client], Updates]) -> Method:
    """The method whose server gets the same update from every client.

    reduce: (updates [M, ...], cohort) -> one update. The mean that the method then takes of equal
    updates is this update.

    Raises BadInput as `changed` does, and for a method whose clients update different models.
    """
    check_common(method)

    def change(updates, cohort):
        return tree.repeat(reduce(updates, cohort), len(cohort.id))

    return changed(method, change)


def check_common(method: Method) -> None:
    """Raises BadInput unless the method's server sees all updates, of the same model, at once."""
    if not all(exchange.alike for exchange in method.round):
        raise BadInput(
            "its clients update models of their own, so that no single update can stand for all"
        )
    _check_at_once(method)


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


def _check_at_once(method):
    if method.extra.one_by_one:
        raise BadInput("its server never sees the updates of several clients at once")
    if method.extra.private_sum:
        raise BadInput(
            "its server only learns a noisy sum of the updates (config.privacy);"
            " config.privacy.name=local protects each update, so that other transforms can follow"
        )


def _if_arrived(cohort, stacked):
    """The stacked values, with zeros for lost uploads."""
    return tree.where(cohort.arrived, stacked, tree.zeros(stacked))
