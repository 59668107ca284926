"""Transforms of a client's update before it is sent to the server."""

from collections.abc import Callable
from functools import partial

from fedjax_lab import wire
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, Work

Update = list[Array]  # the updates in one client's upload: `wire.updates`


def changed(method: Method, change: Callable[[Update, Client, Array], Update]) -> Method:
    """The method whose clients send changed updates.

    Args:
      method: the method to wrap.
      change: (update, client, key) -> an update of the same shapes. It is written for one client,
        and gets a different key for each client, round and exchange. Where it returns the update
        unchanged, the upload is that of the original method, bit for bit; so is an upload without
        an update.
    """
    each = (exchange._replace(local=partial(_local, exchange, change)) for exchange in method.round)
    return method._replace(round=tuple(each))


def _local(exchange: Exchange, change, message: PyTree, client: Client, work: Work):
    upload, private = exchange.local(message, client, work)
    references = wire.references(exchange, message, client.id, upload)
    before = wire.updates(references, upload)
    if not before:
        return upload, private
    after = change(before, client, work.upload_key())
    return wire.with_updates(references, upload, after), private
