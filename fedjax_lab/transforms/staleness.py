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
    references = wire.references(exchange, message, client.id, upload)
    leaves = zip(jax.tree.leaves(references), jax.tree.leaves(upload), strict=True)
    moved = [u if r is wire.ITSELF or r is wire.KEPT else u - r for r, u in leaves]
    return jax.tree.unflatten(jax.tree.structure(upload), moved), private


def _aggregate(exchange: Exchange, exponent, server: PyTree, uploads: PyTree, cohort: Client):
    def present(id, upload, tau):
        references = wire.references(exchange, exchange.send(server, id), id, upload)
        leaves = zip(jax.tree.leaves(references), jax.tree.leaves(upload), strict=True)
        made = [_present(r, u, polynomial(tau, exponent)) for r, u in leaves]
        return jax.tree.unflatten(jax.tree.structure(upload), made)

    return exchange.aggregate(
        server, jax.vmap(present)(cohort.id, uploads, cohort.staleness), cohort
    )


def _present(reference, u, s):
    if reference is wire.KEPT:
        return u
    return s * u if reference is wire.ITSELF else reference + s * u


def _updates(exchange: Exchange, message: PyTree, id, upload: PyTree):
    references = wire.references(exchange, message, id, upload)
    return jax.tree.map(lambda r: r if r is wire.KEPT else wire.ITSELF, references)
