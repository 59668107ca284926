"""Asynchronous runs of methods that were made for synchronous rounds.

A client sends its update instead of its model. The server adds the update, weighted by its
staleness, to the present message, so that `aggregate` sees what a client would have uploaded that
had started from the present version: FedBuff's update of the server (arXiv:2106.06639), with the
method's own aggregation.
"""

from functools import partial

import jax

from fedjax_lab import wire
from fedjax_lab.methods._staleness import polynomial
from fedjax_lab.types import Client, Exchange, Method, PyTree, Work


def weighted(method: Method, exponent: float) -> Method:
    """The method whose clients may start from earlier versions of the server's state.

    method: has one exchange. exponent: a of the weight s(tau) = (1 + tau)^-a of an update; 0: all
    weigh the same.
    """
    (exchange,) = method.round
    changed = exchange._replace(
        local=partial(_local, exchange),
        aggregate=partial(_aggregate, exchange, exponent),
        updates=partial(_updates, exchange),
    )
    return method._replace(round=(changed,))


def _local(exchange: Exchange, message: PyTree, client: Client, work: Work):
    upload, private = exchange.local(message, client, work)
    return _each_leaf(_update, exchange, message, client.id, upload), private


def _aggregate(exchange: Exchange, exponent, server: PyTree, uploads: PyTree, cohort: Client):
    def present(id, upload, tau):
        change = partial(_present, polynomial(tau, exponent))
        return _each_leaf(change, exchange, exchange.send(server, id), id, upload)

    uploads = jax.vmap(present)(cohort.id, uploads, cohort.staleness)
    return exchange.aggregate(server, uploads, cohort)


def _each_leaf(change, exchange, message, id, upload):
    """The upload with each leaf u replaced by change(its reference, u); see `wire`."""
    references = wire.references(exchange, message, id, upload)
    pairs = zip(jax.tree.leaves(references), jax.tree.leaves(upload), strict=True)
    return jax.tree.unflatten(jax.tree.structure(upload), [change(r, u) for r, u in pairs])


def _update(reference, u):
    return u if isinstance(reference, wire.Leaf) else u - reference


def _present(s, reference, u):
    if reference is wire.KEPT:
        return u
    return s * u if reference is wire.ITSELF else reference + s * u


def _updates(exchange: Exchange, message: PyTree, id, upload: PyTree):
    references = wire.references(exchange, message, id, upload)
    return jax.tree.map(lambda r: r if r is wire.KEPT else wire.ITSELF, references)
