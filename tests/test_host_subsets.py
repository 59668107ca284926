"""Federations that hold a part of the clients, which are divided among processes."""

import jax
import numpy as np
import pytest
import toys

from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.engine.host import subsets
from fedjax_lab.engine.host.assignment import Owners
from fedjax_lab.errors import BadInput
from fedjax_lab.types import POOL, Rows

WHOLE = jax.tree.map(np.asarray, toys.FEDERATION._replace(unseen=toys.FEDERATION.test.list))
IDS = np.array([1, 4, 5, 5, 5])  # the last id is repeated as padding
SETS = ("train", "test")
ONE_PROCESS = Owners((0, toys.C))


def test_a_part_has_the_examples_of_its_clients():
    shared = np.array([3, 599, 0, 7, 7, 100, -1, -1], np.int32)
    for x in (
        np.asarray(WHOLE.x),
        LazyArray(lambda rows: WHOLE.x[rows], WHOLE.x.shape, WHOLE.x.dtype, ""),
    ):
        part = subsets.with_examples(WHOLE._replace(x=x), SETS, len(IDS), 8, ONE_PROCESS)
        held = part(IDS, global_test=shared)
        assert isinstance(held.x, np.ndarray) and held.validation is None and held.unseen is None
        for name in SETS:
            expected = np.asarray(getattr(WHOLE, name))[IDS]
            expected[3:] = -1  # a repeated client has its rows only once
            check(held, np.asarray(getattr(held, name)), expected)
        check(held, held.global_test, shared)


def check(federation, rows, expected):
    """Asserts that rows of a federation hold the examples of the expected rows of WHOLE."""
    np.testing.assert_array_equal(rows < 0, expected < 0)
    for name in ("x", "y", "domain"):
        wanted, got = getattr(WHOLE, name)[expected], getattr(federation, name)[rows]
        np.testing.assert_array_equal(got[rows >= 0], wanted[expected >= 0])


def test_all_parts_of_a_kind_have_the_same_shapes():
    part = subsets.with_examples(WHOLE, SETS, 3, 0, ONE_PROCESS)
    order = np.argsort(WHOLE.train.count)
    choices = [np.sort(order[:3]), np.sort(order[-3:]), np.repeat(order[:1], 3)]
    shapes = [jax.tree.map(np.shape, part(ids)) for ids in choices]
    assert shapes[0] == shapes[1] == shapes[2]
    counts = WHOLE.train.count[order[-3:]].sum() + WHOLE.test.count[:3].sum()
    assert shapes[0].x == (counts, toys.D)


def test_the_parts_of_several_processes_form_one_federation():
    """Three processes with two devices each together hold all clients that are asked for."""
    bounds, ids = (0, 3, 5, toys.C), np.array([1, 2, 5, 6, 7])
    shared = np.array([3, 599, 0, 7, 7, 100, -1], np.int32)
    federations, places = [], 4
    lined_up = Owners(bounds).line_up(ids, places)
    for process in range(3):
        owners = Owners(bounds, process, devices=2)
        part = subsets.with_examples(WHOLE, SETS, places, len(shared), owners)
        federations.append(part(owners.share_of_process(lined_up), global_test=shared))
    pool = {
        name: np.concatenate([getattr(federation, name) for federation in federations])
        for name in POOL
    }
    together = federations[0]._replace(**pool)
    wanted = np.isin(np.arange(len(lined_up)), np.searchsorted(lined_up, ids))
    wanted[places] = True  # the first place of the second segment, which has none of the ids
    for name in SETS:
        rows = [getattr(federation, name) for federation in federations]
        start, count, held = (
            np.concatenate([getattr(r, field) for r in rows])
            for field in ("start", "count", "list")
        )
        expected = np.asarray(getattr(WHOLE, name))[lined_up]
        expected[~wanted] = -1
        check(together, np.asarray(Rows(start, count, held, rows[0].longest)), expected)
        device = np.arange(len(lined_up)) // 2  # each has a sixth of the clients and of the list
        assert np.all(start >= device * len(held) // 6)
        assert np.all(start + count <= (device + 1) * len(held) // 6)
    for federation in federations:
        check(together, federation.global_test, shared)


@pytest.mark.parametrize(("bounds", "length"), [((0, 7), 3), ((0, 2), 5), ((0, 3, 7, 10), 2)])
@pytest.mark.parametrize("devices", [1, 2])
def test_every_client_is_in_a_piece(bounds, length, devices):
    owners = Owners(bounds, devices=devices)
    pieces = owners.pieces(length)
    segments = len(bounds) - 1
    places = {len(piece) for piece in pieces}
    assert len(places) == 1 and places.pop() % (segments * devices) == 0
    assert np.unique(np.concatenate(pieces)).tolist() == list(range(bounds[-1]))
    for piece in pieces:
        assert np.all(np.diff(piece) >= 0)
        for process, segment in enumerate(owners.segments):
            ids = owners._replace(process=process).share_of_process(piece)
            assert set(ids.tolist()) <= set(segment)


def test_clients_are_lined_up_by_segment_and_new_ones_divided_likewise():
    owners = Owners((0, 3, 6, 9), process=2)
    assert owners.line_up(np.array([0, 2, 7]), 2).tolist() == [0, 2, 3, 3, 7, 7]
    assert owners.share_of_process(np.array([0, 2, 3, 3, 7, 8])).tolist() == [7, 8]
    assert owners.segment == range(6, 9) and owners.largest == 3
    owners = Owners((0, 3, 7, 10), process=1, devices=2)
    assert owners.new_owners(5) == Owners((0, 1, 3, 5), process=1, devices=2)
    with pytest.raises(BadInput, match="^2 new clients cannot be divided among 3 processes"):
        owners.new_owners(2)
