"""Clients that fail: their uploads are lost or late, they are stragglers, or they attack.

Which clients fail depends only on the seed, the round and the client, so that it is the same for
every method.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import sampling, streams, tree
from fedjax_lab.types import Array, Client, Plan, PyTree, Turn

NOBODY = np.iinfo(np.int32).max  # an id beyond all clients: JAX drops scattered updates to it


def draw(
    plan: Plan, cohort: Array, num_clients: int, turn: Turn, t: Array, empty_places: bool
) -> Turn:
    """Draws which clients fail in round t, and returns the turn with what becomes of them.

    empty_places: `Extra.empty_places`. The other arguments are as in `attackers`.
    """
    turn = stragglers(plan, turn)
    if empty_places:
        turn = absent(plan, turn)
    return attackers(plan, cohort, num_clients, losses(plan, turn), t)


def losses(plan: Plan, turn: Turn) -> Turn:
    """Draws which clients' uploads are lost in this round, independently for each client.

    plan: its `failures.dropout` is the probability. Returns the turn with `arrived`.
    """
    dropout = plan.failures.dropout
    if not dropout:
        return turn
    lost = jax.vmap(partial(jax.random.bernoulli, p=dropout))(streams.loss(turn.keys))
    return turn._replace(arrived=~lost)


def stragglers(plan: Plan, turn: Turn) -> Turn:
    """Draws which clients do only some of their work, and returns the turn with their `work`.

    A straggler makes 1 to epochs - 1 passes, each number with the same probability, as in FedProx
    (Li et al., MLSys 2020); if the number of steps is fixed, so many steps.
    """
    probability, work = plan.failures.straggler, turn.work
    if not probability:
        return turn

    def one(key, work):
        late = jax.random.bernoulli(key, probability)
        fewer = jax.random.randint(streams.extra(key), (), 1, work)
        return jnp.where(late, fewer, work)

    axes = (0, None if work is None else 0)
    planned = plan.work if work is None else work
    return turn._replace(work=jax.vmap(one, axes)(streams.delay(turn.keys), planned))


def absent(plan: Plan, turn: Turn) -> Turn:
    """Returns the turn in which the empty places of the cohort do no work."""
    planned = plan.work if turn.work is None else turn.work
    return turn._replace(work=jnp.where(turn.drawn, planned, 0))


class Attackers(NamedTuple):
    """Which clients attack in which rounds: a value of `Failures.attackers` besides a share."""

    share: float = 0.0  # of all C clients; they attack whenever they take part
    clients: tuple[int, ...] = ()  # their ids; (): `share` says how many
    per_round: int = 0  # so many clients of each round, drawn anew; 0: the same in all rounds
    first: int = 1  # the first round with an attack, from 1
    last: int = 0  # the last one; 0: that of the run


def attackers(plan: Plan, cohort: Array, num_clients: int, turn: Turn, t: Array | int = 0) -> Turn:
    """Marks the attackers: returns the turn with `Client.attacks`.

    A share are the first of all C clients in a random order, floor(share C) but at least one.

    Args:
      plan: its `failures.attackers` is the share, or `Attackers`.
      cohort: the random stream `Keys.cohort` of the seed, which determines the order.
      num_clients: C.
      turn: the clients of the round.
      t: the number of the round, from 0.
    """
    who, clients = plan.failures.attackers, turn.clients
    if not who:
        return turn
    who = who if isinstance(who, Attackers) else Attackers(who)
    if who.per_round:
        key = jax.random.fold_in(streams.attackers(cohort), t)
        order = jax.random.permutation(key, num_clients)[clients.id]
        order = jnp.where(turn.drawn, order, num_clients)
        attacks = turn.drawn & (jnp.argsort(jnp.argsort(order)) < who.per_round)
    else:
        attacks = always(who, cohort, num_clients)[clients.id]
    if who.first > 1:
        attacks &= t >= who.first - 1
    if who.last:
        attacks &= t < who.last
    return turn._replace(clients=clients._replace(attacks=attacks))


def always(who: Attackers, cohort: Array, num_clients: int) -> Array:
    """Which clients attack whenever they take part in a round with an attack, [C] bool.

    XLA computes it once for all rounds. The arguments are as in `attackers`.
    """
    if who.clients:
        return jnp.isin(jnp.arange(num_clients), jnp.asarray(who.clients))
    order = jax.random.permutation(streams.attackers(cohort), num_clients)
    return order < sampling.at_least_one(who.share, num_clients)


def received(uploads: PyTree, cohort: Client, arrived: Array | None) -> tuple[PyTree, Client]:
    """Returns the uploads and the cohort [M] as `aggregate` gets them.

    The entries of lost uploads are empty: their numbers are 0, and their id is `NOBODY`. The shares
    of the other clients sum to 1. arrived: `Turn.arrived`.
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
    """Returns the server's state after an exchange, which stays as before if no upload arrived."""
    return after if arrived is None else tree.where(jnp.any(arrived), after, before)
