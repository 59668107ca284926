"""Clients that fail: their uploads are lost, they are stragglers, or they attack.

Who fails depends on the seed, the round and the client alone, so it is the same for every method;
who attacks does so in all rounds.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import contract, streams, tree
from fedjax_lab.types import Array, Client, Plan, PyTree

NOBODY = np.iinfo(np.int32).max  # an id beyond all clients: JAX drops what is scattered there
ALIKE = "where uploads may be lost, each `aggregate` of a method must return the server's state"


def arrivals(plan: Plan, clients: Array) -> Array | None:
    """Whose uploads arrive in a round, [M] bool; None: those of all.

    clients: the streams [M] of the clients in this round.
    """
    if not plan.dropout:
        return None
    lost = jax.vmap(partial(jax.random.bernoulli, p=plan.dropout))
    return ~lost(streams.loss(clients))


def passes(plan: Plan, clients: Array) -> Array | None:
    """How many of its `plan.epochs` passes each client makes in a round, [M]; None: all of them.

    A straggler makes 1 to epochs - 1 of them, each number with the same probability, as in FedProx
    (Li et al., MLSys 2020).

    clients: the streams [M] of the clients in this round.
    """
    if not plan.straggler:
        return None

    def one(key):
        late = jax.random.bernoulli(key, plan.straggler)
        fewer = jax.random.randint(streams.extra(key), (), 1, plan.epochs)
        return jnp.where(late, fewer, plan.epochs)

    return jax.vmap(one)(streams.delay(clients))


def attacks(plan: Plan, cohort: Array, ids: Array, num_clients: int) -> Array | None:
    """Which of the clients `ids` [M] attack, [M] bool; None: nobody does.

    They are the first floor(share C) of all C clients in an order that the seed draws.

    cohort: the stream of that name.
    """
    if not plan.attackers:
        return None
    count = math.floor(plan.attackers * num_clients + 1e-6)
    # Drawn once for all rounds: XLA moves what does not depend on the round out of their loop.
    return jax.random.permutation(streams.attackers(cohort), num_clients)[ids] < count


def received(uploads: PyTree, cohort: Client, arrived: Array | None) -> tuple[PyTree, Client]:
    """Uploads and cohort [M] as `aggregate` gets them: the entry of a lost upload is empty.

    The shares of the others sum to 1. arrived: of `arrivals`.
    """
    if arrived is None:
        return uploads, cohort._replace(arrived=jnp.ones(cohort.id.shape, bool))
    weight = jnp.where(arrived, cohort.weight, 0)
    total = jnp.sum(weight)
    return tree.where(arrived, uploads, tree.zeros(uploads)), cohort._replace(
        id=jnp.where(arrived, cohort.id, NOBODY),
        n=jnp.where(arrived, cohort.n, 0),
        weight=weight / jnp.where(total > 0, total, 1),
        arrived=arrived,
    )


def learned(after: PyTree, before: PyTree, arrived: Array | None) -> PyTree:
    """The server's state after an exchange: that before it where no upload has arrived."""
    if arrived is None:
        return after
    contract.check_alike(ALIKE, after, before)
    return tree.where(jnp.any(arrived), after, before)
