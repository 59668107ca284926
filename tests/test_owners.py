"""Which process keeps which clients."""

import numpy as np
import pytest

from fedjax_lab.owners import Owners


@pytest.mark.parametrize(("bounds", "length"), [((0, 7), 3), ((0, 2), 5), ((0, 3, 7, 10), 2)])
@pytest.mark.parametrize("devices", [1, 2])
def test_pieces_leave_nobody_out(bounds, length, devices):
    owners = Owners(bounds, devices=devices)
    pieces = owners.pieces(length)
    segments = len(bounds) - 1
    places = {len(piece) for piece in pieces}
    assert len(places) == 1 and places.pop() % (segments * devices) == 0
    assert np.unique(np.concatenate(pieces)).tolist() == list(range(bounds[-1]))
    for piece in pieces:
        assert np.all(np.diff(piece) >= 0)
        for process, segment in enumerate(owners.segments):
            own = owners._replace(process=process).own(piece)
            assert set(own.tolist()) <= set(segment)


def test_clients_are_lined_up_by_segment():
    owners = Owners((0, 3, 6, 9), process=2)
    assert owners.line_up(np.array([0, 2, 7]), 2).tolist() == [0, 2, 3, 3, 7, 7]
    assert owners.own(np.array([0, 2, 3, 3, 7, 8])).tolist() == [7, 8]
    assert owners.segment == range(6, 9) and owners.largest == 3
