"""The division of clients among processes."""

import numpy as np
import pytest

from fedjax_lab.engine.host.owners import Owners
from fedjax_lab.errors import BadInput


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
            ids = owners._replace(process=process).own(piece)
            assert set(ids.tolist()) <= set(segment)


def test_clients_are_lined_up_by_segment():
    owners = Owners((0, 3, 6, 9), process=2)
    assert owners.line_up(np.array([0, 2, 7]), 2).tolist() == [0, 2, 3, 3, 7, 7]
    assert owners.own(np.array([0, 2, 3, 3, 7, 8])).tolist() == [7, 8]
    assert owners.segment == range(6, 9) and owners.largest == 3


def test_new_clients_are_divided_among_the_same_processes():
    owners = Owners((0, 3, 7, 10), process=1, devices=2)
    assert owners.of_new(5) == Owners((0, 1, 3, 5), process=1, devices=2)
    with pytest.raises(BadInput, match="^2 new clients cannot be divided among 3 processes"):
        owners.of_new(2)
