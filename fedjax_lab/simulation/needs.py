"""What transforms and runs need of a method, with the reason why a method does not have it."""

from collections.abc import Callable
from typing import NamedTuple

from fedjax_lab import sampling
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Method


class Need(NamedTuple):
    """A property that a method has, or else does not fit."""

    holds: Callable[[Method], bool]
    reason: str  # why a method without it does not fit; the method is "it"


NEEDS = {
    "clients": Need(
        lambda method: not method.extra.pooled,
        "it trains on the examples of all clients at once and has no uploads",
    ),
    "all_at_once": Need(
        lambda method: not (method.extra.pooled or method.extra.one_by_one),
        "its server never sees the updates of several clients at once",
    ),
    "common_update": Need(
        lambda method: all(exchange.alike for exchange in method.round),
        "its clients update models of their own, so that no single update can stand for all",
    ),
    "single_updates": Need(
        lambda method: not method.extra.private_sum,
        "its server only learns a noisy sum of the updates (config.privacy);"
        " config.privacy.name=local protects each update, so that other transforms can follow",
    ),
    "first_state": Need(
        lambda method: method.init is not None,
        "it starts from the state of an earlier stage, which is not supported here",
    ),
    "one_exchange": Need(
        lambda method: len(method.round) == 1,
        "it has several exchanges in a round",
    ),
    "idle_server": Need(
        lambda method: method.extra.alone is None,
        "its server trains after each round",
    ),
    "any_clients": Need(
        lambda method: method.sample in (sampling.by_size, sampling.equal),
        "it draws its clients itself",
    ),
}


def unmet(method: Method, *needs: str) -> str:
    """The reason why the method does not fit; empty if it meets these keys of NEEDS."""
    return next((NEEDS[need].reason for need in needs if not NEEDS[need].holds(method)), "")


def check(method: Method, *needs: str) -> None:
    """Raises BadInput with the first reason why the method does not meet these keys of NEEDS."""
    if reason := unmet(method, *needs):
        raise BadInput(reason)
