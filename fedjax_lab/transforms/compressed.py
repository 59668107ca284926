"""Compressed uploads, with or without error feedback, for any codec.

A client sends the code of its update; counts, ids and running statistics are sent unchanged
(`wire`). The server decodes it with the reference that it has sent, before the method's `aggregate`
and all other transforms of it, because compression is applied last.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, arXiv:1901.09847): a
client keeps the error of its code and adds it to its next update. The client does not learn whether
an upload was lost (config.run.dropout): it treats every upload as received, as the method does with
the client's private state.
"""

from functools import partial

import jax
import optax

from fedjax_lab import streams, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.transforms import codecs, private_state, rehearsal
from fedjax_lab.transforms.codecs import Codec, Coded
from fedjax_lab.transforms.private_state import Beside
from fedjax_lab.types import Client, Exchange, Method, PyTree, Task, Work

UP = 4  # number of this transform's random stream among the streams of an upload


def uploads(method: Method, task: Task, codec: Codec, error_feedback: bool) -> Method:
    """The method whose clients send codes of their updates.

    Raises BadInput if the method does not say which parts of its uploads are updates, or if its
    uploads are already compressed.
    """
    local = _with_feedback if error_feedback else _without_feedback
    each = tuple(
        exchange._replace(
            local=partial(local, exchange, codec, i),
            aggregate=partial(_aggregate, exchange, codec),
            updates=_are_codes,
        )
        for i, exchange in enumerate(method.round)
    )
    if not error_feedback:
        return method._replace(round=each)

    def residuals(state, num_clients):
        shapes = rehearsal.updates(method, task, state, num_clients)
        return tree.repeat(tree.zeros(shapes), num_clients)

    return private_state.wrapped(method, residuals)._replace(round=each)


def _without_feedback(exchange, codec, number, message, client, work):
    upload, private = exchange.local(message, client, work)
    references = wire.references(exchange, message, client.id, upload)
    update = wire.updates(references, upload)
    return _sent(codec, references, upload, update, _key(work)), private


def _with_feedback(exchange: Exchange, codec, number: int, message, client: Client, work: Work):
    """With error feedback: residual' = residual + update - decoded update."""
    private, residuals = client.private
    upload, private = exchange.local(message, client._replace(private=private), work)
    references = wire.references(exchange, message, client.id, upload)
    update = tree.add(wire.updates(references, upload), residuals[number])
    after = wire.with_updates(references, upload, update)
    sent = _sent(codec, references, after, update, _key(work))
    if update:
        read = codec.decode(codec.encode(update, update, _key(work)), tree.zeros(update))
        residuals = [*residuals]
        residuals[number] = optax.tree.sub(update, read)
    return sent, Beside(private, residuals)


def _sent(codec, references, upload, update, key):
    """The code of an upload whose updates are `update`."""
    kept = [r is wire.KEPT for r in jax.tree.leaves(references)]
    return codecs.coded(upload, kept, lambda new: codec.encode(update, new, key))


def _aggregate(exchange: Exchange, codec: Codec, server: PyTree, sent: Coded, cohort: Client):
    def read(id, sent):
        return _read(exchange, codec, exchange.send(server, id), id, sent)

    uploads = jax.vmap(read)(cohort.id, sent)
    uploads = tree.where(cohort.arrived, uploads, tree.zeros(uploads))
    return exchange.aggregate(server, uploads, cohort)


def _read(exchange, codec, message, id, sent):
    """Decodes a client's upload. References depend only on the message and on KEPT leaves."""
    blank = sent.joined(sent.zeros)
    references = wire.references(exchange, message, id, blank)
    pairs = zip(jax.tree.leaves(references), jax.tree.leaves(blank), strict=True)
    old = [zero if r is wire.ITSELF else r for r, zero in pairs if r is not wire.KEPT]
    return sent.joined(codec.decode(sent.code, old) if old else [])


def _key(work):
    return streams.extra(work.upload_key(), UP)


def _are_codes(message, id, upload):
    raise BadInput("its uploads are already compressed and cannot be changed")
