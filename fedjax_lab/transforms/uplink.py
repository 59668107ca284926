"""What happens to an update on its way from a client to the server."""

from collections.abc import Callable
from functools import partial

from fedjax_lab import wire
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, Work

Update = list[Array]  # the updates in an upload, without a client axis: `wire.updates`


def changed(method: Method, change: Callable[[Update, Client, Array], Update]) -> Method:
    """The method whose clients send changed updates.

    Args:
      method: the one that is wrapped.
      change: (update, client, key) -> an update in the same shapes. It is written for one client,
        and the key is another one for each client, round and exchange. Where it changes nothing,
        the upload is that of the plain method, bit for bit; so is an upload without an update.
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
