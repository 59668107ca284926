"""Rules that keep a state, and counts of the clients that a rule leaves out.

The server counts for each client since the beginning of the run: how often its upload arrived, how
often it attacked, how often the rule gave it the weight 0, and how often both. Each row of metrics
records them (`recorded`): arrived, attacked, excluded, excluded_attacks.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.transforms import cohort, server_state
from fedjax_lab.transforms.cohort import Updates
from fedjax_lab.types import Array, Client, Method, PyTree, State

Weigh = Callable[[PyTree, PyTree, Updates, Client], tuple[Array, Updates, PyTree]]
COUNTS = ("arrived", "attacked", "excluded", "excluded_attacks")


class Counting(NamedTuple):
    """The state of a rule, and the counts of its clients."""

    rule: PyTree
    counts: dict[str, Array]  # by name of COUNTS, [C] int32


def weighed(method: Method, weigh: Weigh, first: Callable[[State, int], PyTree]) -> Method:
    """The method whose server takes a weighted mean of the updates, with a state of the rule.

    Args:
      method: the method to wrap.
      weigh: (message of a client, state of the rule, updates, cohort) -> (weights [M], updates
        whose weighted mean is taken, state). The weights need not sum to 1; if all are 0, the
        update is 0.
      first: (first state of the method, C) -> the first state of the rule.

    Raises BadInput for a method that has several exchanges in a round, or to which an aggregator
    does not apply.
    """

    def apply(message, state, updates, clients):
        weights, scaled, state = weigh(message, state, updates, clients)
        return tree.repeat(cohort.weighted(weights, scaled), len(clients.id)), weights, state

    cohort.check_common(method)
    return _counting(method, apply, first)


def excluded(method: Method) -> Method:
    """The method with an aggregator that also counts whom this leaves out.

    Raises BadInput if its aggregator is not the mean of some of the updates.
    """
    *others, exchange = method.round
    before, changes = cohort.parts(exchange)
    if not changes or getattr(changes[-1], "weigh", None) is None:
        raise BadInput(
            "its aggregator leaves nobody out, or records by itself whom it leaves out"
            " (aggregator.excluded)"
        )
    *earlier, rule = changes
    plain = exchange._replace(
        aggregate=cohort.Changed(before, tuple(earlier)) if earlier else before.aggregate
    )

    def apply(message, state, updates, clients):
        return rule(updates, clients), rule.weigh(updates, clients), state

    return _counting(method._replace(round=(*others, plain)), apply, lambda *_: ())


def _counting(method, apply, first):
    """apply: (message, state, updates, cohort) -> (updates, weights [M], state)."""

    def begin(state, num_clients):
        counts = {name: jnp.zeros(num_clients, jnp.int32) for name in COUNTS}
        return Counting(first(state, num_clients), counts)

    def change(message, state, updates, clients):
        updates, weights, rule = apply(message, state.rule, updates, clients)
        return updates, Counting(rule, _counts(state.counts, weights, clients))

    return server_state.with_changes(method, begin, change, lambda state: state.counts)


def _counts(before, weights, clients):
    arrived = clients.arrived
    attacks = arrived if clients.attacks is None else arrived & clients.attacks
    attacks &= clients.attacks is not None
    left_out = arrived & (weights == 0)
    each = zip(COUNTS, (arrived, attacks, left_out, attacks & left_out), strict=True)
    return {
        name: before[name].at[clients.id].add(which.astype(jnp.int32), mode="drop")
        for name, which in each
    }
