"""What the server sends, in fewer bytes.

Nothing is kept from one message to the next: a client need not have taken part before, and what it
downloads in a round is all that it needs. Clients start from what they read, w~ = w + e. The server
adds their updates to its own w (Caldas et al., 2018, arXiv:1812.07210), so that e, which is the
same for all clients, is not added up over the rounds.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_lab import tree, wire
from fedjax_lab.transforms import codecs, compression
from fedjax_lab.transforms.codecs import Codec
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, Task, Weights, Work


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Message:
    """A message on its way: the code of its numbers, and the leaves that travel as they are."""

    code: PyTree
    kept: list[Array]
    form: tuple = field(metadata={"static": True})  # structure, and the shape of each coded leaf


def qsgd(
    method: Method, task: Task, *, bits: int = 8, norm: Literal["max", "l2"] = "max"
) -> Method:
    """Messages as `compression.qsgd` writes uploads, but of the numbers themselves.

    Whole numbers and the running statistics of a model are sent as they are. The rounding is drawn
    from the message's own bits: everybody who is sent the same reads the same.

    bits: of each number, with its sign: 2, 4 or 8.
    norm: the largest |w_j| of a leaf, or its Euclidean norm.
    """
    codec = codecs.quantized(bits, compression.norm_of("downlink", bits, norm))
    return messages(method, codec)


def messages(method: Method, codec: Codec) -> Method:
    """The method whose server sends codes. Its clients are scored with what it has not encoded."""

    def wrapped(exchange):
        return exchange._replace(
            send=lambda server, id: encoded(codec, exchange.send(server, id)),
            local=partial(_local, exchange, codec),
            aggregate=partial(_aggregate, exchange, codec),
            updates=partial(_updates, exchange, codec),
        )

    scored = method.scored or method.round[-1].send
    return method._replace(round=tuple(map(wrapped, method.round)), scored=scored)


def encoded(codec: Codec, message: PyTree) -> Message:
    """A message as it is sent."""
    leaves, structure = jax.tree.flatten(message)
    coded = _is_coded(message)
    numbers = [a for a, c in zip(leaves, coded, strict=True) if c]
    kept = [a for a, c in zip(leaves, coded, strict=True) if not c]
    shapes = (
        jax.ShapeDtypeStruct(a.shape, a.dtype) if c else None
        for a, c in zip(leaves, coded, strict=True)
    )
    code = codec.encode(numbers, numbers, _key(numbers)) if numbers else ()
    return Message(code, kept, (structure, tuple(shapes)))


def decoded(codec: Codec, sent: Message) -> PyTree:
    """A message as a client reads it."""
    structure, shapes = sent.form
    zeros = [jnp.zeros(a.shape, a.dtype) for a in shapes if a is not None]
    numbers = iter(codec.decode(sent.code, zeros) if zeros else [])
    kept = iter(sent.kept)
    leaves = [next(kept) if a is None else next(numbers).astype(a.dtype) for a in shapes]
    return jax.tree.unflatten(structure, leaves)


def _local(exchange: Exchange, codec: Codec, sent: Message, client: Client, work: Work):
    return exchange.local(decoded(codec, sent), client, work)


def _updates(exchange, codec, sent, id, upload):
    return wire.references(exchange, decoded(codec, sent), id, upload)


def _aggregate(exchange: Exchange, codec: Codec, server: PyTree, uploads: PyTree, cohort: Client):
    """That of updates that clients have made from w~, as if they had made them from w."""

    def moved(id, upload):
        message = exchange.send(server, id)
        read = decoded(codec, encoded(codec, message))
        update = wire.updates(wire.references(exchange, read, id, upload), upload)
        return wire.with_updates(wire.references(exchange, message, id, upload), upload, update)

    uploads = tree.where(cohort.arrived, jax.vmap(moved)(cohort.id, uploads), tree.zeros(uploads))
    return exchange.aggregate(server, uploads, cohort)


def _is_coded(message):
    """Of each leaf whether it is encoded: numbers with a fraction, but no running statistics."""

    def of_part(part):
        if isinstance(part, Weights):
            return Weights(
                jax.tree.map(_is_number, part.params), jax.tree.map(lambda _: False, part.stats)
            )
        return _is_number(part)

    flags = jax.tree.map(of_part, message, is_leaf=lambda part: isinstance(part, Weights))
    return jax.tree.leaves(flags)


def _is_number(a):
    return jnp.issubdtype(a.dtype, jnp.floating)


def _key(numbers):
    """A stream that depends on these numbers alone."""
    seed = jnp.uint32(0)
    for a in numbers:
        bits = jax.lax.bitcast_convert_type(a.astype(jnp.float32), jnp.uint32)
        seed = seed * jnp.uint32(31) + jnp.sum(bits, dtype=jnp.uint32)
    return jax.random.key(seed)
