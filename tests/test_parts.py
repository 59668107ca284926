"""Federations of some of the clients."""

import jax
import numpy as np
import pytest
import toys

from fedjax_lab import parts
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.owners import Owners
from fedjax_lab.types import POOL, Rows

WHOLE = jax.tree.map(np.asarray, toys.FEDERATION._replace(unseen=toys.FEDERATION.test.list))
IDS = np.array([1, 4, 5, 5, 5])  # the last one is repeated, as padding
SETS = ("train", "test")
ALONE = Owners((0, toys.C))


def lazy(x):
    return LazyArray(lambda rows: np.array(x)[rows], x.shape, x.dtype, "")


@pytest.mark.parametrize("source", [np.asarray, lazy])
def test_a_part_has_the_examples_of_its_clients(source):
    part = parts.with_examples(WHOLE._replace(x=source(WHOLE.x)), SETS, len(IDS), 8, ALONE)
    shared = np.array([3, 599, 0, 7, 7, 100, -1, -1], np.int32)
    some = part(IDS, global_test=shared)
    assert isinstance(some.x, np.ndarray) and some.validation is None and some.unseen is None
    for name in SETS:
        expected = np.asarray(getattr(WHOLE, name))[IDS]
        expected[3:] = -1  # who is repeated has rows once
        check(some, np.asarray(getattr(some, name)), expected)
    check(some, some.global_test, shared)


def check(some, rows, expected):
    """That rows of one federation are those of another in the whole."""
    np.testing.assert_array_equal(rows < 0, expected < 0)
    for name in ("x", "y", "domain"):
        there, here = getattr(WHOLE, name)[expected], getattr(some, name)[rows]
        np.testing.assert_array_equal(here[rows >= 0], there[expected >= 0])


def test_all_parts_of_a_kind_have_the_same_shapes():
    """Those of the largest and of the smallest clients, with and without copies."""
    part = parts.with_examples(WHOLE, SETS, 3, 0, ALONE)
    order = np.argsort(WHOLE.train.count)
    lots = [np.sort(order[:3]), np.sort(order[-3:]), np.repeat(order[:1], 3)]
    shapes = [jax.tree.map(np.shape, part(ids)) for ids in lots]
    assert shapes[0] == shapes[1] == shapes[2]
    counts = WHOLE.train.count[order[-3:]].sum() + WHOLE.test.count[:3].sum()
    assert shapes[0].x == (counts, toys.D)


def test_processes_read_each_their_own_part():
    """Put together the parts of three processes with two devices each are a federation of all."""
    bounds, ids = (0, 3, 5, toys.C), np.array([1, 2, 5, 6, 7])
    shared = np.array([3, 599, 0, 7, 7, 100, -1], np.int32)
    made, room = [], 4
    lined_up = Owners(bounds).line_up(ids, room)
    for process in range(3):
        owners = Owners(bounds, process, devices=2)
        part = parts.with_examples(WHOLE, SETS, room, len(shared), owners)
        made.append(part(owners.own(lined_up), global_test=shared))
    pool = {name: np.concatenate([getattr(some, name) for some in made]) for name in POOL}
    together = made[0]._replace(**pool)
    wanted = np.isin(np.arange(len(lined_up)), np.searchsorted(lined_up, ids))
    wanted[room] = True  # the first place of the second segment, none of whose clients is asked for
    for name in SETS:
        rows = [getattr(some, name) for some in made]
        start, count, held = (
            np.concatenate([getattr(r, field) for r in rows])
            for field in ("start", "count", "list")
        )
        expected = np.asarray(getattr(WHOLE, name))[lined_up]
        expected[~wanted] = -1
        check(together, np.asarray(Rows(start, count, held, rows[0].longest)), expected)
        device = np.arange(len(lined_up)) // 2  # has a sixth of the clients, and of the list
        assert np.all(start >= device * len(held) // 6)
        assert np.all(start + count <= (device + 1) * len(held) // 6)
    for some in made:
        check(together, some.global_test, shared)
