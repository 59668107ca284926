"""Transforms of every kind with methods of every kind; all combinations are exhaustive tests."""

import itertools

import pytest
import toys
import wrapped
from inputs import complaint

from fedjax_lab.errors import BadInput

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
    """Whether the method rejects the transform with one of two expected errors."""
    try:
        wrapped.wrap(toys.make(name), transform)
    except BadInput:
        message = complaint(wrapped.wrap, toys.make(name), transform)
        return message in (
            "its server never sees the updates of several clients at once",
            "its clients update models of their own, so that no single update can stand for all",
        )
    return False


@pytest.mark.exhaustive
@pytest.mark.parametrize("transform", wrapped.EVERY, ids=lambda transform: transform[1])
def test_every_transform_works_with_every_method_or_is_rejected(transform):
    """The rounds are only traced."""
    for name in wrapped.METHODS:
        if not is_rejected(name, transform):
            wrapped.check_sends(name, transform)
            continue
        (*_, exchange) = toys.make(name).round
        assert transform[0] in ("aggregator", "attack"), name
        assert exchange.one_by_one or not exchange.alike, name
