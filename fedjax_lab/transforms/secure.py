"""Secure aggregation in simulation: the server learns the sum of all updates and nothing else.

    x_i = round(p_i clip(u_i) / step)     as an integer modulo 2^b               (client i)
    u   = step sum_i x_i / sum_i p_i      over the clients that have arrived      (server)

u_i is the update of client i, p_i its share in the server's mean, and step = 2 limit / 2^(b-1).
Since all p_i sum to 1, the sum uses at most half of the range of b bits. A number is rounded up
with a probability equal to its fractional part, so that the expectation of u is exact; each client
adds an error of less than one step. A client would send x_i plus masks, which cancel in the sum and
are therefore not drawn (`neighbors`).

As with any aggregator, the method sees only u, as the update of every client (`cohort.replaced`).
Values that the method averages without the shares, such as SCAFFOLD's control variates, are thus
averaged by share. Where too many clients are lost to unmask the sum, the server's state does not
change, and the rows of the evaluations count such rounds (recorded, aborted_sums). They also have
the largest share of numbers that were clipped in a round (clipped_share), which the simulation sees
in the words before they are masked, and a server does not.

An upload has the arrays that a client would send: masked words, its share, two public keys, and for
each of its k neighbors two secret shares and one more that it reveals at the end. A message has two
keys and two secret shares of each neighbor. For k = M - 1 Bonawitz et al. (CCS 2017) count the
same, except for a client's share of its own secret, which is not sent. The counts exclude the
overhead of encrypting the secret shares and the list of clients that have arrived. Key agreement,
secret sharing and encryption are not carried out, and the secret shares are zeros. This simulates
the protocol and does not protect real clients.
"""

from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import streams, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import BelowOne, OneOf, Positive, checked
from fedjax_lab.sampling import AT_RANDOM
from fedjax_lab.transforms import cohort as of_cohort
from fedjax_lab.transforms import server_state
from fedjax_lab.transforms.neighbors import can_unmask, make_ring
from fedjax_lab.transforms.server_state import Server
from fedjax_lab.types import Array, Client, Exchange, Method, PyTree, Task, Work

WORDS = {16: jnp.uint16, 32: jnp.uint32}
SIGNED = {16: jnp.int16, 32: jnp.int32}
SECURE = 6  # number of this transform's random stream among the streams of an upload
SECRET = 32  # bytes of a public key, and of a share of a secret
COARSE = 8  # steps up to the limit, below which rounding takes too many numbers there
KEYS = 2  # key pairs of a client: for the masks, and to encrypt messages between neighbors


class Fixed(NamedTuple):
    """The fixed-point format in which updates are encoded as words."""

    bits: int
    limit: float

    @property
    def step(self) -> float:
        """The difference of two updates whose words differ by one."""
        return self.limit / 2 ** (self.bits - 2)


class Protocol(NamedTuple):
    """The parameters that clients and server have agreed on."""

    fixed: Fixed
    neighbors: int
    threshold: float


class Counters(NamedTuple):
    """What the rows of the evaluations record."""

    aborted: Array  # [] int32, rounds whose sum could not be unmasked
    clipped: Array  # [] float32, largest share of numbers of a round that were clipped


class Sealed(NamedTuple):
    """An upload as it is sent, without its masks."""

    words: PyTree  # with the structure of the decoded upload
    share: Array  # [] p_i
    keys: Array  # [2, 32] public keys
    secrets: Array  # [k, 3, 32] shares of secrets: two for each neighbor, and one that is revealed


class WithPeers(NamedTuple):
    """A message as it is sent, with the arrays that the server forwards from the neighbors."""

    message: PyTree
    keys: Array  # [k, 2, 32]
    secrets: Array  # [k, 2, 32]


@checked("aggregator")
def secure_sum(
    method: Method,
    task: Task,
    *,
    bits: Annotated[int, OneOf(WORDS)] = 32,
    limit: Positive[float] = 16.0,
    neighbors: Positive[int] = 4,
    threshold: BelowOne = 0.5,
) -> Method:
    """The weighted mean; the server sees only the sum (simulated secure aggregation).

    Bonawitz et al., CCS 2017, doi:10.1145/3133956.3133982; with few neighbors Bell et al., CCS
    2020, doi:10.1145/3372297.3417885. Where no number is clipped, the error of the mean of M
    clients is at most M limit / 2^(bits-2), divided by the sum of the shares that have arrived.
    More neighbors cost bytes and time; the mean does not depend on them.

    bits: the bits of each number that is sent, 16 or 32. The sum is modulo 2^bits.
    limit: the largest absolute value of a number of an update; larger ones are clipped, and the run
        says so (recorded: clipped_share).
    neighbors: k, the number of clients with which a client shares masks; M - 1: all others, as in
        Bonawitz et al.
    threshold: more than this share of a client's neighbors must arrive, or else the round changes
        nothing; this happens more often with fewer neighbors (recorded: aborted_sums).
    """
    of_cohort.check_common(method)
    protocol = Protocol(Fixed(bits, limit), neighbors, threshold)

    def wrapped(exchange):
        return exchange._replace(
            send=partial(_send, exchange, neighbors),
            local=partial(_local, exchange, protocol),
            aggregate=partial(_unmask, exchange, protocol),
            updates=_are_masked,
        )

    masked = method._replace(round=tuple(map(wrapped, method.round)), scored=method.sends_scored)
    masked = server_state.with_state(
        masked,
        lambda key: Counters(jnp.int32(0), jnp.float32(0)),
        partial(_listen, protocol.fixed),
        lambda seen: {"aborted_sums": seen.aborted, "clipped_share": seen.clipped},
    )
    ignores_server = method.sample in AT_RANDOM
    return masked._replace(sample=method.sample) if ignores_server else masked


# Fixed-point numbers.


def encode(fixed: Fixed, update: PyTree, share: Array, key: Array) -> PyTree:
    """Returns the words of p u, for the share p; nan counts as 0."""

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
    """Returns the update that the words encode; 0 if the share is 0."""
    scale = jnp.where(share > 0, fixed.step / jnp.where(share > 0, share, 1), 0)

    def one(w):
        return jax.lax.bitcast_convert_type(w, SIGNED[fixed.bits]).astype(jnp.float32) * scale

    return jax.tree.map(one, words)


# The clients and the server.


def _send(exchange, neighbors, server, id):
    one_each = jnp.zeros((neighbors, 2, SECRET), jnp.uint8)
    return WithPeers(exchange.send(server, id), one_each, one_each)


def _local(exchange: Exchange, protocol: Protocol, sent: WithPeers, client: Client, work: Work):
    upload, private = exchange.local(sent.message, client, work)
    references = wire.references(exchange, sent.message, client.id, upload)
    if any(leaf is wire.KEPT for leaf in jax.tree.leaves(references)):
        raise BadInput(
            "its clients also upload values that are not updates (counts, ids, or the running"
            " statistics of BatchNorm), but secure aggregation only sums updates"
        )
    k_keys, k_words = jax.random.split(streams.extra(work.upload_key(), SECURE))
    update = jax.tree.unflatten(jax.tree.structure(upload), wire.updates(references, upload))
    words = encode(protocol.fixed, update, client.weight, k_words)
    keys = jax.random.bits(k_keys, (KEYS, SECRET), jnp.uint8)
    secrets = jnp.zeros((protocol.neighbors, 3, SECRET), jnp.uint8)
    return Sealed(words, jnp.float32(client.weight), keys, secrets), private


def _listen(fixed, exchange, server, sent, cohort):
    after, is_known = exchange.aggregate(server.base, sent, cohort)
    aborted, most = server.extra
    return Server(after, Counters(aborted + ~is_known, jnp.maximum(most, _clipped(fixed, sent))))


def _clipped(fixed, sent):
    """The share of the numbers in uploads [M] that are at the limit, as clipped ones are.

    Words of a client whose share is too small for COARSE steps up to the limit do not tell it.
    """
    steps = sent.share * fixed.limit / fixed.step  # [M]
    limit = jnp.where(steps >= COARSE, jnp.floor(steps), jnp.inf)

    def share(words):
        signed = jax.lax.bitcast_convert_type(words, SIGNED[fixed.bits]).astype(jnp.float32)
        at_limit = jnp.abs(signed) >= limit.reshape(-1, *[1] * (signed.ndim - 1))
        return jnp.mean(at_limit, dtype=jnp.float32)

    leaves = jax.tree.leaves(sent.words)
    return sum(w.size * share(w) for w in leaves) / sum(w.size for w in leaves)


def _unmask(
    exchange: Exchange, protocol: Protocol, server: PyTree, sent: Sealed, cohort: Client
) -> tuple[PyTree, Array]:
    """Returns the method's server after the aggregation, and whether the sum could be unmasked."""
    fixed = protocol.fixed
    _check_sum(fixed, len(cohort.id))
    k_ring, k_words = jax.random.split(_round_key(sent.keys))
    base, changes = of_cohort.parts(exchange)
    words = _after(changes, fixed, sent, cohort, k_words)
    ring = make_ring(k_ring, cohort.arrived, protocol.neighbors)
    mean = decode(fixed, _sum(cohort.arrived, words), jnp.sum(sent.share))

    def upload(id):
        empty = tree.zeros(mean)
        references = wire.references(exchange, exchange.send(server, id), id, empty)
        return wire.with_updates(references, empty, jax.tree.leaves(mean))

    uploads = jax.vmap(upload)(cohort.id)
    uploads = tree.where(cohort.arrived, uploads, tree.zeros(uploads))
    after = base.aggregate(server, uploads, cohort)
    if jax.tree.map(jnp.shape, after) != jax.tree.map(jnp.shape, server):
        raise BadInput(
            "the shapes of its server's state change within a round, so that an exchange cannot be"
            " skipped when its sum cannot be unmasked"
        )
    is_known = can_unmask(ring, protocol.threshold)
    return tree.where(is_known, tree.typed_like(after, server), server), is_known


def _after(changes, fixed, sent, cohort, key):
    """The words after these changes of the updates, for example by attackers who cooperate.

    Clients apply the changes before they mask their words. Words of unchanged numbers stay the
    same.
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


def _sum(arrived, words):
    """The sum over the clients [M] that have arrived, modulo 2^b."""
    summed = tree.where(arrived, words, tree.zeros(words))
    return jax.tree.map(lambda a: jnp.sum(a, 0, dtype=a.dtype), summed)


def _check_sum(fixed, clients):
    """Raises BadInput if the rounding errors of this many clients can overflow the words."""
    if clients > 2 ** (fixed.bits - 2):
        raise BadInput(
            f"config.aggregator.bits={fixed.bits} can hold the sum of at most"
            f" {2 ** (fixed.bits - 2)} clients in a round, but there are {clients}"
        )


def _round_key(keys):
    """The random stream of a round, from all public keys [M, 2, 32]."""
    words = jax.lax.bitcast_convert_type(keys.reshape(-1, 4), jnp.uint32)
    return jax.random.key(jnp.sum(words, dtype=jnp.uint32))


def _are_masked(message, id, upload):
    raise BadInput("its uploads are already masked and cannot be changed")
