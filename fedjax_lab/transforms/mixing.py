"""What makes honest updates alike before an aggregator: means of them, and momentum of clients.

The two kinds of means are those that config.aggregator.mixing names.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import sampling, streams, tree, wire
from fedjax_lab.ranges import Positive, checked
from fedjax_lab.transforms import cohort, private_state, rehearsal
from fedjax_lab.transforms.aggregators import Minority, squared_distances
from fedjax_lab.transforms.cohort import Updates
from fedjax_lab.transforms.private_state import Beside
from fedjax_lab.types import Client, Exchange, Method, Task, Work

ORDER = 6  # number of the random stream of buckets among those of the server in an exchange


@checked("aggregator")
def bucketing(method: Method, task: Task, *, bucket: Positive[int] = 2) -> Method:
    """The aggregator gets the means of random groups of updates (Karimireddy et al., ICLR 2022).

    arXiv:2006.09365. Each client is in one group in each round. The shares of an aggregator,
    such as `attackers`, are shares of the groups: f attackers may be in as many as f groups.

    bucket: s, the number of updates in a group; the last group may be smaller.
    """
    return cohort.mixed(method, partial(in_buckets, bucket=bucket))


@checked("aggregator")
def nearest_neighbors(method: Method, task: Task, *, far: Minority = 0.2) -> Method:
    """The aggregator gets, for each update, the mean of those nearest to it, itself among them.

    NNM (Allouah et al., AISTATS 2023, arXiv:2302.01772).

    far: f as a share of a round's clients, rounded down but at least 1: the f updates that are
        farthest from an update are not in its mean.
    """
    return cohort.mixed(method, partial(with_nearest, far=far))


def momentum(method: Method, task: Task, beta: float) -> Method:
    """The method whose clients send m_i <- (1 - beta) u_i + beta m_i instead of their updates.

    Karimireddy et al., ICML 2021, arXiv:2012.10333. A client that takes part for the first time
    sends its update. Clients keep m_i, as large as an upload. Attackers who change their own upload
    send the momentum of what they would send; those who cooperate know the momentum of others.

    beta: the share of the earlier updates, config.aggregator.momentum.
    """
    each = enumerate(method.round)
    round = tuple(e._replace(local=partial(_with_momentum, e, i, beta)) for i, e in each)

    def begin(state, num_clients):
        shapes = rehearsal.updates(method, task, state, num_clients)
        return tree.repeat([(tree.zeros(a), jnp.zeros((), bool)) for a in shapes], num_clients)

    return private_state.wrapped(method, begin)._replace(round=round)


def _with_momentum(exchange: Exchange, i: int, beta: float, message, client: Client, work: Work):
    private, kept = client.private
    before, is_known = kept[i]
    upload, private = exchange.local(message, client._replace(private=private), work)
    references = wire.references(exchange, message, client.id, upload)
    update = wire.updates(references, upload)
    mean = tree.add(optax.tree.scale(1 - beta, update), before, beta)
    mean = tree.where(is_known, mean, update)
    kept = [*kept[:i], (mean, jnp.ones((), bool)), *kept[i + 1 :]]
    return wire.with_updates(references, upload, mean), Beside(private, kept)


def in_buckets(updates: Updates, cohort: Client, *, bucket: int) -> tuple[Updates, Client]:
    """The means of the groups, and their cohort, which has one entry for each group."""
    key = streams.extra(cohort.key[0], ORDER)
    drawn = jax.random.permutation(key, len(cohort.id))
    order = drawn[jnp.argsort(~cohort.arrived[drawn], stable=True)]  # lost uploads come last
    group = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)) // bucket)
    member = (group[:, None] == group) & cohort.arrived  # [M, M] of the group of each client
    first = jnp.zeros_like(cohort.arrived).at[order[::bucket]].set(True) & cohort.arrived
    share = member / jnp.maximum(jnp.sum(member, 1, keepdims=True), 1)
    weight = jnp.where(first, jnp.sum(member * cohort.weight, 1), 0)
    groups = cohort._replace(arrived=first, weight=weight)
    return tree.take((_mixed(share, updates), groups), order[::bucket])


def with_nearest(updates: Updates, cohort: Client, *, far: float) -> tuple[Updates, Client]:
    """The mean of the m - f updates that are nearest to each update, which itself is the first."""
    count = jnp.sum(cohort.arrived) - sampling.at_least_one(far, len(cohort.id))
    distance = jnp.where(cohort.arrived, squared_distances(updates), jnp.inf)
    places = jnp.arange(len(cohort.id))
    distance = jnp.where(places[:, None] == places, -1, distance)
    rank = jnp.argsort(jnp.argsort(distance, 1), 1)
    near = (rank < jnp.maximum(count, 1)) & cohort.arrived
    share = near / jnp.maximum(jnp.sum(near, 1, keepdims=True), 1)
    return _mixed(share, updates), cohort


def _mixed(share, updates):
    """The mean of the updates with a share, for each client; infinite ones spoil only these."""
    finite = jnp.isfinite(jax.vmap(tree.sq_norm)(updates))
    means = tree.mix(share, tree.where(finite, updates, tree.zeros(updates)))
    spoiled = jnp.any((share > 0) & ~finite, 1)
    return tree.where(spoiled, [jnp.full_like(a, jnp.inf) for a in means], means)
