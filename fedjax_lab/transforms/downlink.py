"""Compression of the messages from the server to the clients.

A code does not depend on earlier messages: a client may take part for the first time in any round,
and the message of a round contains everything that it needs. Clients start from the decoded model
w~ = w + e. The server adds their updates to its own w (Caldas et al., 2018, arXiv:1812.07210), so
that the error e, which is the same for all clients, does not accumulate over the rounds.
"""

from functools import partial

import jax
import jax.numpy as jnp

from fedjax_lab import tree, wire
from fedjax_lab.ranges import checked
from fedjax_lab.transforms import codecs, compression
from fedjax_lab.transforms.codecs import Codec, Coded
from fedjax_lab.types import Client, Exchange, Method, PyTree, Task, Weights, Work


@checked("downlink")
def qsgd(
    method: Method, task: Task, *, bits: compression.Bits = 8, norm: compression.Norm = "max"
) -> Method:
    """Encodes messages as `compression.qsgd` encodes updates, but the numbers themselves.

    Integers and the running statistics of a model are sent unchanged. The random numbers for the
    rounding are drawn from the bits of the message, so that all clients decode the same message to
    the same numbers.

    bits: the bits of each number, including its sign: 2, 4 or 8.
    norm: max, the largest |w_j| of a leaf, or l2, its Euclidean norm.
    """
    codec = codecs.quantized(bits, compression.NORMS[norm])
    return messages(method, codec)


def messages(method: Method, codec: Codec) -> Method:
    """The method whose server sends codes. Clients are scored with the message before encoding."""

    def wrapped(exchange):
        return exchange._replace(
            send=lambda server, id: encoded(codec, exchange.send(server, id)),
            local=partial(_local, exchange, codec),
            aggregate=partial(_aggregate, exchange, codec),
            updates=partial(_updates, exchange, codec),
        )

    return method._replace(round=tuple(map(wrapped, method.round)), scored=method.sends_scored)


def encoded(codec: Codec, message: PyTree) -> Coded:
    """Encodes a message."""

    def encode(numbers):
        return codec.encode(numbers, numbers, _key(numbers))

    return codecs.coded(message, [not is_coded for is_coded in _is_coded(message)], encode)


def decoded(codec: Codec, sent: Coded) -> PyTree:
    """Decodes a message."""
    return sent.joined(codec.decode(sent.code, zeros) if (zeros := sent.zeros) else [])


def _local(exchange: Exchange, codec: Codec, sent: Coded, client: Client, work: Work):
    return exchange.local(decoded(codec, sent), client, work)


def _updates(exchange, codec, sent, id, upload):
    return wire.references(exchange, decoded(codec, sent), id, upload)


def _aggregate(exchange: Exchange, codec: Codec, server: PyTree, uploads: PyTree, cohort: Client):
    """Aggregates updates that clients computed from w~ as if they had computed them from w."""

    def moved(id, upload):
        message = exchange.send(server, id)
        read = decoded(codec, encoded(codec, message))
        update = wire.updates(wire.references(exchange, read, id, upload), upload)
        return wire.with_updates(wire.references(exchange, message, id, upload), upload, update)

    uploads = tree.where(cohort.arrived, jax.vmap(moved)(cohort.id, uploads), tree.zeros(uploads))
    return exchange.aggregate(server, uploads, cohort)


def _is_coded(message):
    """Whether each leaf is encoded: floating-point numbers are, except running statistics."""

    def part_flags(part):
        if isinstance(part, Weights):
            return Weights(
                jax.tree.map(_is_number, part.params), jax.tree.map(lambda _: False, part.stats)
            )
        return _is_number(part)

    flags = jax.tree.map(part_flags, message, is_leaf=lambda part: isinstance(part, Weights))
    return jax.tree.leaves(flags)


def _is_number(a):
    return jnp.issubdtype(a.dtype, jnp.floating)


def _key(numbers):
    """A random stream that depends only on these numbers."""
    seed = jnp.uint32(0)
    for a in numbers:
        bits = jax.lax.bitcast_convert_type(a.astype(jnp.float32), jnp.uint32)
        seed = seed * jnp.uint32(31) + jnp.sum(bits, dtype=jnp.uint32)
    return jax.random.key(seed)
