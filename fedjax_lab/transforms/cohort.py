"""What the server, or attackers who work together, do to all updates of a round at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax

from fedjax_lab import tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree

Updates = list[Array]  # the updates in all uploads of a cohort, leaves [M, ...]: `wire.updates`
Change = Callable[[Updates, Client], Updates]


@dataclass(frozen=True)
class Changed:
    """The `aggregate` of an exchange, after changes of the updates one after another.

    Uploads without an update reach the exchange as they are.
    """

    exchange: Exchange
    changes: tuple[Change, ...]

    def __call__(self, server: PyTree, uploads: PyTree, cohort: Client) -> PyTree:
        def of_client(id, upload):
            return wire.references(self.exchange, self.exchange.send(server, id), id, upload)

        def updates(id, upload):
            return wire.updates(of_client(id, upload), upload)

        def with_updates(id, upload, after):
            return wire.with_updates(of_client(id, upload), upload, after)

        before = _if_arrived(cohort, jax.vmap(updates)(cohort.id, uploads))
        if not before:
            return self.exchange.aggregate(server, uploads, cohort)
        uploads = jax.vmap(with_updates)(cohort.id, uploads, after(self.changes, before, cohort))
        return self.exchange.aggregate(server, _if_arrived(cohort, uploads), cohort)


def changed(method: Method, change: Change) -> Method:
    """The method whose server gets changed updates.

    A method that is wrapped twice gets the changes in the order of the wrapping, as an update meets
    them on its way.

    Args:
      method: the one that is wrapped.
      change: (updates, cohort) -> updates in the same shapes. Of a lost upload (`cohort.arrived`)
        the update is 0, and stays lost whatever `change` makes of it. Where it changes nothing, the
        server gets what it gets without it, bit for bit.

    BadInput for a method whose server listens to one client after another, or learns a private sum.
    """
    _check_at_once(method)
    return method._replace(round=tuple(_with(exchange, change) for exchange in method.round))


def replaced(method: Method, reduce: Callable[[Updates, Client], Updates]) -> Method:
    """The method whose server gets one and the same update from everybody.

    reduce: (updates [M, ...], cohort) -> one update. What the method then does with equal updates,
    such as their mean, gives this one.

    BadInput also for a method whose clients' updates are of different models.
    """
    check_common(method)

    def change(updates, cohort):
        return tree.repeat(reduce(updates, cohort), len(cohort.id))

    return changed(method, change)


def check_common(method: Method) -> None:
    """BadInput for a method whose server does not see, at once, updates of one and the same."""
    if not all(exchange.alike for exchange in method.round):
        raise BadInput("its clients update models of their own, which have no common update")
    _check_at_once(method)


def parts(exchange: Exchange) -> tuple[Exchange, tuple[Change, ...]]:
    """An exchange before the changes that its `aggregate` begins with, and these changes."""
    before = exchange.aggregate
    if isinstance(before, Changed):
        return before.exchange, before.changes
    return exchange, ()


def with_listener(exchange: Exchange, listen: Callable[..., PyTree]) -> Exchange:
    """The exchange with `listen(before, server, uploads, cohort)` in the place of its `aggregate`.

    before: the exchange without the changes that its `aggregate` begins with, which come first.
    """
    before, changes = parts(exchange)
    heard = exchange._replace(aggregate=partial(listen, before))
    return heard._replace(aggregate=Changed(heard, changes)) if changes else heard


def after(changes: tuple[Change, ...], updates: Updates, cohort: Client) -> Updates:
    """Updates after these changes, one after another; those of lost uploads stay as they are."""
    for change in changes:
        updates = _if_arrived(cohort, change(updates, cohort))
    return updates


def _with(exchange, change):
    plain, changes = parts(exchange)
    return exchange._replace(aggregate=Changed(plain, (*changes, change)))


def _check_at_once(method):
    if method.pooled or any(exchange.one_by_one for exchange in method.round):
        raise BadInput("its server never sees the updates of several clients at once")
    if any(exchange.private_sum for exchange in method.round):
        raise BadInput(
            "its server learns nothing but a noisy sum of the updates (config.privacy);"
            " config.privacy.name=local protects each update, so that others can follow"
        )


def _if_arrived(cohort, stacked):
    """Zeros in the place of what was lost."""
    return tree.where(cohort.arrived, stacked, tree.zeros(stacked))
