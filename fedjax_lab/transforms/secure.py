"""Secure aggregation in simulation: the server learns the sum of all updates and nothing else.

    x_i = round(p_i clip(u_i) / step)     as a whole number modulo 2^b           (client i)
    u   = step sum_i x_i / sum_i p_i      over the clients that have arrived      (server)

u_i is the update of client i, p_i its share in the server's mean, step = 2 limit / 2^(b-1). Since
all p_i sum to 1, the sum is at most half of what b bits can hold. Rounding goes up with the
probability of the fraction, so that u is right in the mean: each client adds an error of less than
a step. What is sent is x_i and masks, which cancel in the sum (`masks`).

The method gets u in the place of everybody's update, as from any aggregator (`cohort.replaced`):
what it averages in another way than by share, such as SCAFFOLD's control variates, it then averages
by share. Where too many clients are lost to unmask the sum, the server's state stays as it was, and
the evaluations' rows count this (recorded, aborted_sums).

An upload has the arrays that a client would send: masked words, its share, two public keys, and for
each of its k neighbors two secret shares and one more that it reveals in the end; a message has two
keys and two secret shares of each neighbor. With k = M - 1 that is what Bonawitz et al. (CCS 2017)
count, but for a client's share of its own secret, which does not travel. Excluded are what
encrypting the secret shares adds, and the list of who has arrived. Masks are really drawn, from the
public keys of all clients; key agreement, secret sharing and encryption are not carried out, and
the secret shares are zeros. This simulates the protocol, it does not protect anybody.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import streams, tree, wire
from fedjax_lab.errors import BadInput, check_below_one, check_positive
from fedjax_lab.sampling import AT_RANDOM
from fedjax_lab.transforms import cohort as of_cohort
from fedjax_lab.transforms import masks, server_state
from fedjax_lab.transforms.server_state import Server
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, Task, Work

WORDS = {16: jnp.uint16, 32: jnp.uint32}
SIGNED = {16: jnp.int16, 32: jnp.int32}
SECURE = 6  # the number of this stream, of what is drawn for an upload
SECRET = 32  # bytes of a public key, and of a share of a secret
KEYS = 2  # pairs of keys of a client: for the masks, and to encrypt what neighbors send each other


class Fixed(NamedTuple):
    """How updates are written as words."""

    bits: int
    limit: float

    @property
    def step(self) -> float:
        """The update that one stands for."""
        return self.limit / 2 ** (self.bits - 2)


class Protocol(NamedTuple):
    """What clients and server have agreed on."""

    fixed: Fixed
    neighbors: int
    threshold: float


class Sealed(NamedTuple):
    """An upload on its way. Its words are masked where it meets those of the others."""

    words: PyTree  # like the upload that they are read to
    share: Array  # [] p_i
    keys: Array  # [2, 32] public keys
    secrets: Array  # [k, 3, 32] shares of secrets: two for each neighbor, and one that is revealed


class WithPeers(NamedTuple):
    """A message on its way, with what the server passes on from a client's neighbors."""

    message: PyTree
    keys: Array  # [k, 2, 32]
    secrets: Array  # [k, 2, 32]


def secure_sum(
    method: Method,
    task: Task,
    *,
    bits: int = 32,
    limit: float = 16.0,
    neighbors: int = 4,
    threshold: float = 0.5,
) -> Method:
    """The mean by share, of which the server sees the sum alone (secure aggregation, simulated).

    Bonawitz et al., CCS 2017, doi:10.1145/3133956.3133982; with few neighbors Bell et al., CCS
    2020, doi:10.1145/3372297.3417885. Where no number is clipped, the mean of M clients is within
    M limit / 2^(bits-2) of the plain one, divided by the part of all shares that has arrived. More
    neighbors cost bytes and time; the mean does not depend on them.

    bits: of each number that is sent, 16 or 32. The sum is modulo 2^bits.
    limit: the largest size of a number of an update; larger ones are clipped.
    neighbors: k, with how many others a client shares masks; M - 1: with all, as Bonawitz et al.
    threshold: of a client's neighbors, the share more than which must arrive, or else the round
        changes nothing; the fewer neighbors, the more often that happens (recorded: aborted_sums).
    """
    if bits not in WORDS:
        raise BadInput(f"config.aggregator.bits must be 16 or 32, got {bits}")
    if not 0 < limit < math.inf:
        raise BadInput(f"config.aggregator.limit must be above 0 and finite, got {limit}")
    check_positive("aggregator.neighbors", neighbors)
    check_below_one("aggregator.threshold", threshold)
    of_cohort.check_common(method)
    protocol = Protocol(Fixed(bits, limit), neighbors, threshold)

    def wrapped(exchange):
        return exchange._replace(
            send=partial(_send, exchange, neighbors),
            local=partial(_local, exchange, protocol),
            aggregate=partial(_unmask, exchange, protocol),
            updates=_are_masked,
        )

    scored = method.scored or method.round[-1].send
    masked = method._replace(round=tuple(map(wrapped, method.round)), scored=scored)
    masked = server_state.with_state(
        masked, lambda key: jnp.int32(0), _listen, lambda aborted: {"aborted_sums": aborted}
    )
    does_not_look = method.sample in AT_RANDOM  # at the server's state
    return masked._replace(sample=method.sample) if does_not_look else masked


# Fixed-point numbers.


def encode(fixed: Fixed, update: PyTree, share: Array, key: Array) -> PyTree:
    """The words of p u; what is not a number counts as 0."""

    def one(u, key):
        finite = jnp.nan_to_num(u.astype(jnp.float32), posinf=jnp.inf, neginf=-jnp.inf)
        exact = share * jnp.clip(finite, -fixed.limit, fixed.limit) / fixed.step
        low = jnp.floor(exact)
        up = jax.random.uniform(key, u.shape) < exact - low
        signed = (low + up).astype(jnp.int32)
        return signed.astype(WORDS[fixed.bits])

    leaves, structure = jax.tree.flatten(update)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, list(map(one, leaves, keys)))


def decode(fixed: Fixed, words: PyTree, share: Array) -> PyTree:
    """The update that words stand for; 0 where the share is."""
    scale = jnp.where(share > 0, fixed.step / jnp.where(share > 0, share, 1), 0)

    def one(w):
        return jax.lax.bitcast_convert_type(w, SIGNED[fixed.bits]).astype(jnp.float32) * scale

    return jax.tree.map(one, words)


# The two ends of the wire.


def _send(exchange, neighbors, server, id):
    one_each = jnp.zeros((neighbors, 2, SECRET), jnp.uint8)
    return WithPeers(exchange.send(server, id), one_each, one_each)


def _local(exchange: Exchange, protocol: Protocol, sent: WithPeers, client: Client, work: Work):
    upload, private = exchange.local(sent.message, client, work)
    references = wire.references(exchange, sent.message, client.id, upload)
    if any(leaf is wire.KEPT for leaf in jax.tree.leaves(references)):
        raise BadInput(
            "its clients also upload what is no update (counts, ids, or running statistics, which"
            " BatchNorm has), and secure aggregation sums updates alone"
        )
    k_keys, k_words = jax.random.split(streams.extra(work.upload_key(), SECURE))
    update = jax.tree.unflatten(jax.tree.structure(upload), wire.updates(references, upload))
    words = encode(protocol.fixed, update, client.weight, k_words)
    keys = jax.random.bits(k_keys, (KEYS, SECRET), jnp.uint8)
    secrets = jnp.zeros((protocol.neighbors, 3, SECRET), jnp.uint8)
    return Sealed(words, jnp.float32(client.weight), keys, secrets), private


def _listen(exchange, server, sent, cohort):
    after, is_known = exchange.aggregate(server.base, sent, cohort)
    return Server(after, server.extra + ~is_known)


def _unmask(
    exchange: Exchange, protocol: Protocol, server: PyTree, sent: Sealed, cohort: Client
) -> tuple[PyTree, Array]:
    """The method's server after it has learned the mean, and whether it has."""
    fixed = protocol.fixed
    _check_sum(fixed, len(cohort.id))
    k_ring, k_words = jax.random.split(_round_key(sent.keys))
    base, changes = of_cohort.parts(exchange)
    words = _after(changes, fixed, sent, cohort, k_words)
    ring = masks.make_ring(k_ring, cohort.arrived, protocol.neighbors)
    mean = decode(fixed, masks.masked_sum(ring, words), jnp.sum(sent.share))

    def upload(id):
        empty = tree.zeros(mean)
        references = wire.references(exchange, exchange.send(server, id), id, empty)
        return wire.with_updates(references, empty, jax.tree.leaves(mean))

    uploads = jax.vmap(upload)(cohort.id)
    uploads = tree.where(cohort.arrived, uploads, tree.zeros(uploads))
    after = base.aggregate(server, uploads, cohort)
    if jax.tree.map(jnp.shape, after) != jax.tree.map(jnp.shape, server):
        raise BadInput(
            "within a round its server's state changes its shapes, so that an exchange whose sum"
            " cannot be unmasked could not be left out"
        )
    is_known = masks.can_unmask(ring, protocol.threshold)
    return tree.where(is_known, tree.typed_like(after, server), server), is_known


def _after(changes, fixed, sent, cohort, key):
    """The words after these changes of the updates, such as those of attackers who work together.

    Clients make them before they mask their words. Words of unchanged numbers stay as they are.
    """
    if not changes:
        return sent.words
    leaves, structure = jax.tree.flatten(sent.words)
    old = jax.vmap(partial(decode, fixed))(leaves, sent.share)
    new = of_cohort.after(changes, old, cohort)
    keys = jax.random.split(key, len(cohort.id))
    words = jax.vmap(partial(encode, fixed))(new, sent.share, keys)
    kept = [jnp.where(n == o, w, x) for n, o, w, x in zip(new, old, leaves, words, strict=True)]
    return jax.tree.unflatten(structure, kept)


def _check_sum(fixed, clients):
    """BadInput where the rounding of so many clients can go beyond the words."""
    if clients > 2 ** (fixed.bits - 2):
        raise BadInput(
            f"config.aggregator.bits={fixed.bits} can hold the sum of at most"
            f" {2 ** (fixed.bits - 2)} clients in a round, and there are {clients}"
        )


def _round_key(keys):
    """The stream of a round, from all public keys [M, 2, 32]."""
    words = jax.lax.bitcast_convert_type(keys.reshape(-1, 4), jnp.uint32)
    return jax.random.key(jnp.sum(words, dtype=jnp.uint32))


def _are_masked(message, id, upload):
    raise BadInput("its uploads are masked words, which cannot be changed any more")
