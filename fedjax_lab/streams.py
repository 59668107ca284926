"""The streams of random numbers (JAX keys): one for each purpose, all derived from the run's seed.

seed
  init        initial weights: `method.init` gets this stream itself
    extra       other initial values of a method, by a small number that the method chooses
    stage       `prepare` and `start` of a stage after the first
    noise       the noise that the server adds for privacy, in all rounds
  cohort
    round       `method.sample`
      server      draws of `aggregate` in an exchange; if clients take turns, a stream for each
    attackers   which clients attack, in all rounds
  local
    round, client
      loss        whether the client's uploads are lost
      delay       whether it is a straggler, and how many passes it then makes
      speed       how fast it is in this round
      exchange    if a round has several; the last one has the client's stream itself
        training    if `local` trains several times; the first has the exchange's stream itself
          epoch       one stream for the order of the examples, one for the steps
            step        the stream of the loss: dropout uses it, a method's own noise an `extra`
              augmentation
              gradient    the noise that a transform adds to the gradient
        drawing     `work.draw`
        upload      draws of a transform of the upload
  score
    round, client  `tune`, with the same levels as `local`; new clients follow the other clients

In addition there is a stream for each example of a client (`examples`). It comes from the seed with
which the examples are divided among clients, and does not depend on rounds.

Initial weights, cohorts and shuffles are thus the same for every method (common random numbers),
and no stream depends on how rounds are divided into blocks or on the other clients of a cohort.
Each level folds in a number; the constants below separate the numbers of levels with the same
parent.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab.types import Array

ATTACKERS = 1 << 31  # folded into `cohort`; larger than all rounds
SERVER = 1 << 31  # folded into a cohort's round; larger than the numbers that a `sample` uses
AUGMENTATION = 1 << 30  # folded into a step; larger than a method's extras
GRADIENT = AUGMENTATION + 1  # folded into a step
STAGE = 1 << 31  # folded into `init`; larger than a method's extras
NOISE = STAGE - 1  # folded into `init`
TRAINING = 1 << 31  # folded into an exchange; larger than a training's epochs. `draw` uses it as is
EXCHANGE = 3 << 30  # folded into a client's round; larger than its trainings
GOLDEN = 0x9E3779B9  # 2**32 / golden ratio, whose multiples are spread over all bits
UPLOAD = TRAINING - 1  # folded into an exchange; larger than the epochs of the first training
LOSS, DELAY, SPEED = EXCHANGE - 1, EXCHANGE - 2, EXCHANGE - 3  # folded into a client's round


class Keys(NamedTuple):
    """One stream for each purpose of a run."""

    init: Array
    cohort: Array
    local: Array
    score: Array


@partial(jax.jit, inline=True)  # one program where a seed is not traced
def make_keys(seed: Array) -> Keys:
    """The streams of a run from its key, jax.random.key(seed)."""
    return Keys(*jax.random.split(seed, len(Keys._fields)))


def extra(key: Array, number: int = 1) -> Array:
    """An additional stream, by number, for draws besides those for which `key` itself is used."""
    return jax.random.fold_in(key, number)


def stage(init: Array, number: int) -> tuple[Array, Array]:
    """The streams of `prepare` and `start` of stage `number` (the first is 0), from `init`."""
    prepare, start = jax.random.split(jax.random.fold_in(init, STAGE + number))
    return prepare, start


def noise(init: Array) -> Array:
    """The stream of the noise that the server adds for privacy, from the stream `init`."""
    return jax.random.fold_in(init, NOISE)


def attackers(cohort: Array) -> Array:
    """The stream that decides which clients attack, from the stream `cohort`."""
    return jax.random.fold_in(cohort, ATTACKERS)


def server(cohort: Array, t: Array, left: int) -> Array:
    """The server's stream in an exchange of round t, from the stream `cohort`.

    left: the number of exchanges that follow in the round.
    """
    return jax.random.fold_in(jax.random.fold_in(cohort, t), SERVER + left)


def clients(key: Array, t: Array, ids: Array) -> Array:
    """The streams of clients `ids` [M], from the stream `local` or `score`.

    t: the number of the round, []; or the version of the server's state from which each client
    trains, [M]: that at the beginning of round t.
    """

    def one(t, id):
        return jax.random.fold_in(jax.random.fold_in(key, t), id)

    return jax.vmap(one, (0 if jnp.ndim(t) else None, 0))(t, ids)


def exchange(clients: Array, left: int) -> Array:
    """The streams of clients [M] in an exchange.

    left: the number of exchanges that follow in the round. For the last exchange it returns
    `clients`, so that it has the same shuffles as a method with only one exchange.
    """
    return _each(clients, EXCHANGE + left) if left else clients


def loss(clients: Array) -> Array:
    """The streams [M] that decide which clients' uploads of a round are lost."""
    return _each(clients, LOSS)


def delay(clients: Array) -> Array:
    """The streams [M] that decide which clients are stragglers in a round."""
    return _each(clients, DELAY)


def speed(clients: Array) -> Array:
    """The streams [M] that decide how fast clients are in a round."""
    return _each(clients, SPEED)


def training(key: Array, call: int) -> Array:
    """The stream of a training in an exchange, after `call` earlier trainings."""
    return jax.random.fold_in(key, TRAINING + call) if call else key


def drawing(key: Array) -> Array:
    """The stream of `work.draw` in an exchange."""
    return jax.random.fold_in(key, TRAINING)


def upload(key: Array) -> Array:
    """The stream for transforms of the upload of an exchange."""
    return jax.random.fold_in(key, UPLOAD)


def epoch(key: Array, e: Array) -> tuple[Array, Array]:
    """The streams of epoch e of a training: for the order of the examples, and for the steps."""
    return jax.random.fold_in(key, 2 * e), jax.random.fold_in(key, 2 * e + 1)


def augmentation(key: Array) -> Array:
    """The stream for augmenting the images of a step."""
    return jax.random.fold_in(key, AUGMENTATION)


def gradient(key: Array) -> Array:
    """The stream of the noise that a transform adds to the gradient of a step."""
    return jax.random.fold_in(key, GRADIENT)


def examples(seed: Array, x: Array) -> Array:
    """The streams [B] of examples x [B, D] of a client with this seed.

    The stream of an example is always the same: it depends on a hash of the example, not on its row
    in the pool, which depends on the devices and on streaming.
    """
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    factors = jnp.arange(x.shape[-1], dtype=jnp.uint32) * jnp.uint32(GOLDEN) | 1
    hashes = jnp.sum((bits ^ bits >> 16) * factors, -1, dtype=jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), hashes)


def _each(keys, number):
    """The keys [M] with the number folded into each."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)
