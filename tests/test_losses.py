"""Losses count only real rows."""

import naive
import pytest
import toys

from fedjax_lab import losses

KEYS = naive.KEYS


@pytest.mark.slow
def test_padding_does_not_change_the_risk():
    """The risk and the statistics of a padded batch are those of its real rows alone."""
    from fedjax_lab.local import fetch

    rows = toys.FEDERATION.train[0]
    real = rows[rows >= 0]
    w, risk = toys.NORM.init(KEYS.init), losses.risk(toys.NORM)
    value, padded = risk(w, fetch(toys.FEDERATION, rows, toys.PLAN), KEYS.local)
    expected, alone = risk(w, fetch(toys.FEDERATION, real, toys.PLAN), KEYS.local)
    assert len(real) < len(rows)
    toys.close((value, padded.stats), (expected, alone.stats), rtol=1e-5, atol=1e-6)
