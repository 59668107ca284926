"""Clients that fail: their uploads are lost or late, they are stragglers, or they attack.

Which clients fail depends only on the seed, the round and the client, so that it is the same for
every method. An attacker attacks in every round.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import sampling, streams, tree
from fedjax_lab.types import Array, Client, Plan, PyTree, Turn

NOBODY = np.iinfo(np.int32).max  # an id beyond all clients: JAX drops scattered updates to it


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


def attackers(plan: Plan, cohort: Array, num_clients: int, turn: Turn) -> Turn:
    """Marks the attackers: returns the turn with `Client.attacks`.

    The attackers are the first of all C clients in a random order, floor(share C) but at least one.

    Args:
      plan: its `failures.attackers` is the share.
      cohort: the random stream `Keys.cohort` of the seed, which determines the order.
      num_clients: C.
      turn: the clients of the round.
    """
    share, clients = plan.failures.attackers, turn.clients
    if not share:
        return turn
    count = sampling.at_least_one(share, num_clients)
    # Computed once for all rounds: XLA hoists what does not depend on the round out of the loop.
    order = jax.random.permutation(streams.attackers(cohort), num_clients)
    return turn._replace(clients=clients._replace(attacks=order[clients.id] < count))


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
