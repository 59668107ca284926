"""The streams of random numbers: one for each purpose, all folded from the run's seed alone.

seed
  init        first weights: `method.init` gets this stream itself
    extra       what a method has beside them, by a small number that the method chooses
    stage       what a stage after the first prepares and starts with
    noise       what the server adds to protect the clients, in all rounds
  cohort
    round       `method.sample`
      server      what `aggregate` draws in an exchange; one by one, a stream for each client
    attackers   which clients attack, in all rounds
  local
    round, client
      loss        whether the client's uploads are lost
      delay       whether it is a straggler, and how many passes it then makes
      exchange    where a round has several; the last one has the client's stream itself
        training    where `local` trains several times; the first one has the exchange's itself
          epoch       one stream for the order of the examples, one for the steps
            step        the loss gets this stream: dropout takes it, a method's own noise an `extra`
              augmentation
              gradient    what a transform adds to the gradient
        drawing     `work.draw`
        upload      what a transform of the upload draws
  score
    round, client  what `tune` does, as under `local`; new clients are numbered after the others

Beside them there is a stream for each example of a client (`examples`), from what follows of the
seed as the examples are dealt: it does not depend on rounds.

First weights, cohorts and shuffles are thus the same for every method (common random numbers), and
no stream depends on how rounds are cut into blocks or on who else is in a cohort. A level is a
number that is folded in; the constants keep the numbers of two levels with one parent apart.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab.types import Array

ATTACKERS = 1 << 31  # of `cohort`, beyond all rounds
SERVER = 1 << 31  # of a cohort's round, beyond what a `sample` draws
AUGMENTATION = 1 << 30  # of a step, beyond a method's extras
GRADIENT = AUGMENTATION + 1  # likewise
STAGE = 1 << 31  # of `init`, beyond a method's extras
NOISE = STAGE - 1  # likewise
TRAINING = 1 << 31  # of an exchange, beyond a training's epochs; the first number is that of `draw`
EXCHANGE = 3 << 30  # of a client in a round, beyond its trainings
GOLDEN = 0x9E3779B9  # 2**32 over the golden ratio, whose multiples are spread over all bits
UPLOAD = TRAINING - 1  # likewise, beyond the passes of the first training
LOSS, DELAY = EXCHANGE - 1, EXCHANGE - 2  # likewise


class Keys(NamedTuple):
    """One stream for each purpose of a run."""

    init: Array
    cohort: Array
    local: Array
    score: Array


def make_keys(seed: Array) -> Keys:
    """The streams of a run with this key."""
    return Keys(*jax.random.split(seed, len(Keys._fields)))


def extra(key: Array, number: int = 1) -> Array:
    """Another stream, by number, of what is drawn beside the draws that `key` itself is for."""
    return jax.random.fold_in(key, number)


def stage(init: Array, number: int) -> tuple[Array, Array]:
    """What stage `number` (the first is 0) prepares and starts with, from the stream `init`."""
    return tuple(jax.random.split(jax.random.fold_in(init, STAGE + number)))


def noise(init: Array) -> Array:
    """That of what the server adds to protect the clients, from the stream `init`."""
    return jax.random.fold_in(init, NOISE)


def attackers(cohort: Array) -> Array:
    """That which decides who attacks, from the stream `cohort`."""
    return jax.random.fold_in(cohort, ATTACKERS)


def server(cohort: Array, t: Array, left: int) -> Array:
    """What the server draws in an exchange of round t that so many follow in the round."""
    return jax.random.fold_in(jax.random.fold_in(cohort, t), SERVER + left)


def clients(key: Array, t: Array, ids: Array) -> Array:
    """Those of clients `ids` [M] in round t, from the stream `local` or `score`."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, t), ids)


def exchange(clients: Array, left: int) -> Array:
    """Those of clients [M] in an exchange that so many follow in its round.

    The last exchange of a round shuffles as the only one of another method does.
    """
    return _each(clients, EXCHANGE + left) if left else clients


def loss(clients: Array) -> Array:
    """Those [M] that decide whose uploads are lost in a round."""
    return _each(clients, LOSS)


def delay(clients: Array) -> Array:
    """Those [M] that decide who is a straggler in a round."""
    return _each(clients, DELAY)


def training(key: Array, call: int) -> Array:
    """That of the training after `call` others in an exchange."""
    return jax.random.fold_in(key, TRAINING + call) if call else key


def drawing(key: Array) -> Array:
    """That of the batch which `work.draw` gives in an exchange."""
    return jax.random.fold_in(key, TRAINING)


def upload(key: Array) -> Array:
    """That of what is drawn for the upload of an exchange."""
    return jax.random.fold_in(key, UPLOAD)


def epoch(key: Array, e: Array) -> tuple[Array, Array]:
    """The order of the examples in epoch e of a training, and its steps."""
    return jax.random.fold_in(key, 2 * e), jax.random.fold_in(key, 2 * e + 1)


def augmentation(key: Array) -> Array:
    """That of the images of a step."""
    return jax.random.fold_in(key, AUGMENTATION)


def gradient(key: Array) -> Array:
    """That of what a step adds to its gradient."""
    return jax.random.fold_in(key, GRADIENT)


def examples(seed: Array, x: Array) -> Array:
    """Those of examples x [B, D] of a client with this seed, [B]; always the same for an example.

    What is folded into the seed is a hash of the example, since its row in the pool depends on how
    devices divide the pool and on what is streamed.
    """
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    factors = jnp.arange(x.shape[-1], dtype=jnp.uint32) * jnp.uint32(GOLDEN) | 1
    hashes = jnp.sum((bits ^ bits >> 16) * factors, -1, dtype=jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), hashes)


def _each(keys, number):
    """The number folded into each of keys [M]."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)
