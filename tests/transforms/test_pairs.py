"""Transforms of every kind with methods of every kind; all combinations are exhaustive tests."""

import itertools

import pytest
import toys
import wrapped
from inputs import complaint

from fedjax_lab.errors import BadInput

# Every kind of method with a transform of each kind that it accepts. Attackers that act together
# come before compression, and both before the aggregator. The median is a trimmed mean, and
# multi-Krum is Krum with more clients; both have their formulas in test_aggregators.py.
QSGD = ("downlink", "qsgd")
TOGETHER = {
    "fedavg": [
        QSGD,
        ("attack", "sign_flip"),
        ("aggregator", "geometric_median"),
        ("compression", "low_rank"),
    ],
    "fedbn": [("attack", "gaussian"), ("aggregator", "trimmed_mean"), ("compression", "sign")],
    "fedc2i": [("attack", "inner_product"), ("aggregator", "norm_bound"), ("compression", "qsgd")],
    "fediir": [("attack", "label_flip"), ("aggregator", "krum"), ("compression", "top_k")],
    "hfedf": [QSGD, ("attack", "little_is_enough"), ("compression", "sign")],
    "ifca": [QSGD, ("attack", "label_flip"), ("compression", "random_k")],
    "pfedhn": [QSGD, ("attack", "label_flip"), ("compression", "qsgd")],
    "scaffold": [
        ("attack", "little_is_enough"),
        ("aggregator", "centered_clipping"),
        ("compression", "low_rank"),
    ],
}
PAIRS = [
    (first, second)
    for first, second in itertools.combinations(wrapped.EVERY, 2)
    if first[0] != second[0]
]


def ids(transforms):
    return " ".join(name for _, name in transforms)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_transforms_of_all_kinds_can_be_combined(name):
    wrapped.check_works(name, *TOGETHER[name])


@pytest.mark.slow
def test_a_method_learns_with_compressed_messages_and_uploads():
    wrapped.check_works("scaffold", QSGD, ("compression", "sign"))


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
