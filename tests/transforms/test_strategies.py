"""Transforms with each strategy, with each other, and with every method."""

import itertools
from functools import cache

import jax
import numpy as np
import pytest
import toys
import wrapped
from inputs import complaint
from slow_cases import exhaustive_but

from fedjax_lab.engine import parallel
from fedjax_lab.engine.input import Host
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation.needs import NEEDS
from fedjax_lab.transforms import aggregators, attacks, compression, downlink
from fedjax_lab.types import Failures

PLAN = toys.PLAN._replace(failures=Failures(attackers=0.4, dropout=0.2))


def all_kinds(method):
    """Some clients attack together, all are quantized, and they keep residuals."""
    method = attacks.little_is_enough(downlink.qsgd(method, toys.NORM), toys.NORM)
    method = aggregators.trimmed_mean(method, toys.NORM, trim=0.3)
    return compression.qsgd(method, toys.NORM, bits=4, error_feedback=True)


def divided():
    """Clients are divided among four devices, each of which trains two at a time."""
    return parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2), by_client=True)


@cache
def played(how="one seed at a time"):
    """The final states of two seeds."""
    options = {
        "one seed at a time": lambda: {},
        "seeds at once": lambda: {"vectorized_seeds": True},
        "several devices": lambda: {"strategy": divided()},
        "on the host": lambda: {"host": Host(on_disk=False, stream=True)},
    }[how]()
    return wrapped.played(all_kinds(toys.make("fedavg")), PLAN, **options)


@pytest.mark.parametrize(
    "how", exhaustive_but(["several devices"], ["seeds at once", "several devices", "on the host"])
)
def test_results_do_not_depend_on_the_execution_strategy(how):
    """Up to a step of the quantizer, because rounding errors may change a level."""
    for expected, made in zip(played(), played(how), strict=True):
        for a, b in zip(*map(jax.tree.leaves, (expected, made)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


PAIRS = [
    (first, second)
    for first, second in itertools.combinations(wrapped.EVERY, 2)
    if first[0] != second[0]
]


def ids(transforms):
    return " ".join(name for _, name in transforms)


@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", PAIRS, ids=ids)
def test_all_pairs_of_transforms_can_be_combined(pair):
    """Attacks are run with every aggregator; the rounds of the other pairs are only traced."""
    kinds = {kind for kind, _ in pair}
    check = wrapped.check_works if kinds == {"attack", "aggregator"} else wrapped.check_sends
    check("fedavg", *pair)


def is_rejected(name, transform):
    """Whether the method rejects the transform with one of the expected errors."""
    try:
        wrapped.wrap(toys.make(name), transform)
    except BadInput:
        message = complaint(wrapped.wrap, toys.make(name), transform)
        needs = ("all_at_once", "common_update", "first_state", "one_exchange")
        return message in [NEEDS[need].reason for need in needs]
    return False


@pytest.mark.exhaustive
@pytest.mark.parametrize("transform", wrapped.EVERY, ids=lambda transform: transform[1])
def test_every_transform_works_with_every_method_or_is_rejected(transform):
    """The rounds are only traced."""
    for name in wrapped.METHODS:
        if not is_rejected(name, transform):
            wrapped.check_sends(name, transform)
            continue
        method = toys.make(name)
        assert transform[0] in ("aggregator", "attack"), name
        several = len(method.round) > 1 and transform[1] == "foolsgold"
        assert several or method.extra.one_by_one or not method.round[-1].alike, name
