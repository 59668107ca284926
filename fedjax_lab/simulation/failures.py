"""Clients that fail: their uploads are lost or late, they are stragglers, or they attack.

Which clients fail depends only on the seed, the round and the client, so that it is the same for
every method. An attacker attacks in every round.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import sampling, streams, tree
from fedjax_lab.simulation import clock, contract
from fedjax_lab.simulation.clock import Outcome
from fedjax_lab.types import Array, Client, LocalSettings, Plan, PyTree

NOBODY = np.iinfo(np.int32).max  # an id beyond all clients: JAX drops scattered updates to it
ALIKE = "where uploads may be lost, each `aggregate` of a method must return the server's state"


def outcome(
    plan: Plan,
    clients: Array,
    cohort: Client,
    sent: Callable[[], int],
    time: Array | None,
    drawn: Array,
    in_turn: bool = False,
) -> Outcome:
    """Whose uploads of a round are used, and how much work the clients do.

    Args:
      plan: has the probabilities, and the clock of the run.
      clients: the random streams [M] of the clients in this round.
      cohort: the clients [M].
      sent: () -> the bytes of the messages of a client.
      time: [] seconds of the clock at the beginning of the round, if there is one.
      drawn: [M] whether each entry of the cohort is a client that takes part.
      in_turn: whether the clients train one after another.
    """
    work = passes(plan, clients, cohort.traits.get("settings"))
    plain = Outcome(arrivals(plan, clients), None, work)
    if plan.clock is None or time is None:
        return plain
    facts = plan.work, sent(), time, drawn, in_turn
    return clock.outcome(plan.clock, clients, cohort, plain, *facts)


def arrivals(plan: Plan, clients: Array) -> Array | None:
    """Draws which clients' uploads arrive in a round, [M] bool; None if no upload can be lost.

    clients: the random streams [M] of the clients in this round.
    """
    if not plan.dropout:
        return None
    lost = jax.vmap(partial(jax.random.bernoulli, p=plan.dropout))
    return ~lost(streams.loss(clients))


def passes(plan: Plan, clients: Array, settings: LocalSettings | None = None) -> Array | None:
    """Draws how much work each client does in a round, [M]; None if all do `plan.work`.

    A straggler makes 1 to epochs - 1 passes, each number with the same probability, as in FedProx
    (Li et al., MLSys 2020); if the number of steps is fixed, so many steps.

    clients: the random streams [M] of the clients in this round. settings: theirs [M].
    """
    work = None if settings is None else settings.work
    if not plan.straggler:
        return work

    def one(key, work):
        late = jax.random.bernoulli(key, plan.straggler)
        fewer = jax.random.randint(streams.extra(key), (), 1, work)
        return jnp.where(late, fewer, work)

    axes = (0, None if work is None else 0)
    return jax.vmap(one, axes)(streams.delay(clients), plan.work if work is None else work)


def attacks(plan: Plan, cohort: Array, ids: Array, num_clients: int) -> Array | None:
    """Which of the clients `ids` [M] attack, [M] bool; None if there are no attackers.

    The attackers are the first of all C clients in a random order, floor(share C) but at least one.

    cohort: the random stream `Keys.cohort` of the seed, which determines the order.
    """
    if not plan.attackers:
        return None
    count = sampling.at_least_one(plan.attackers, num_clients)
    # Computed once for all rounds: XLA hoists what does not depend on the round out of the loop.
    return jax.random.permutation(streams.attackers(cohort), num_clients)[ids] < count


def received(uploads: PyTree, cohort: Client, arrived: Array | None) -> tuple[PyTree, Client]:
    """Uploads and cohort [M] as `aggregate` gets them: the entries of lost uploads are empty.

    The shares of the other clients sum to 1. arrived: the result of `arrivals`.
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
    """The server's state after an exchange; it stays as before if no upload has arrived."""
    if arrived is None:
        return after
    contract.check_alike(ALIKE, after, before)
    return tree.where(jnp.any(arrived), after, before)
