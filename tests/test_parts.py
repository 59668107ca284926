"""Federations of some of the clients."""

import jax
import numpy as np
import pytest
import toys

from fedjax_lab import parts
from fedjax_lab.data.lazy import LazyArray

WHOLE = jax.tree.map(np.asarray, toys.FEDERATION._replace(unseen=toys.FEDERATION.test.list))
IDS = np.array([1, 4, 5, 5, 5])  # the last one is repeated, as padding
SETS = ("train", "test")


def lazy(x):
    return LazyArray(lambda rows: np.array(x)[rows], x.shape, x.dtype, "")


@pytest.mark.parametrize("source", [np.asarray, lazy])
def test_a_part_has_the_examples_of_its_clients(source):
    part = parts.with_examples(WHOLE._replace(x=source(WHOLE.x)), SETS, len(IDS), 8)
    shared = np.array([3, 599, 0, 7, 7, 100, -1, -1], np.int32)
    some = part(IDS, global_test=shared)
    assert isinstance(some.x, np.ndarray) and some.validation is None and some.unseen is None
    for name in SETS:
        check(some, np.asarray(getattr(some, name)), np.asarray(getattr(WHOLE, name))[IDS])
    check(some, some.global_test, shared)


def check(some, rows, expected):
    """That rows of one federation are those of another in the whole."""
    np.testing.assert_array_equal(rows < 0, expected < 0)
    for name in ("x", "y", "domain"):
        there, here = getattr(WHOLE, name)[expected], getattr(some, name)[rows]
        np.testing.assert_array_equal(here[rows >= 0], there[expected >= 0])


def test_all_parts_of_a_kind_have_the_same_shapes():
    """Those of the largest and of the smallest clients, with and without copies."""
    part = parts.with_examples(WHOLE, SETS, 3)
    order = np.argsort(WHOLE.train.count)
    lots = [np.sort(order[:3]), np.sort(order[-3:]), np.repeat(order[:1], 3)]
    shapes = [jax.tree.map(np.shape, part(ids)) for ids in lots]
    assert shapes[0] == shapes[1] == shapes[2]
    counts = WHOLE.train.count[order[-3:]].sum() + WHOLE.test.count[:3].sum()
    assert shapes[0].x == (counts, toys.D)


@pytest.mark.parametrize(("count", "length"), [(7, 3), (6, 3), (2, 5), (1, 1)])
def test_pieces_are_of_one_length_and_leave_nobody_out(count, length):
    pieces = parts.pieces(count, length)
    assert {len(piece) for piece in pieces} == {min(length, count)}
    assert np.unique(np.concatenate(pieces)).tolist() == list(range(count))
