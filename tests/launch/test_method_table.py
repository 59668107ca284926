"""The table of all methods."""

import method_table
import pytest

from fedjax_lab.registry import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_row(name):
    row = method_table.row(name, (3e6, 1.5e6, 71.23), (1e6, 1e6, 60.0))
    assert len(row) == len(method_table.HEADER)
    assert row[1] and int(row[3]) > 5
    assert row[4:] == ["3", "1.5", "71.2"]


def test_settings_stand_with_their_defaults():
    _, paper, settings, _, *measured = method_table.row("fedprox", None, None)
    assert paper == "Li et al., MLSys 2020, arXiv:1812.06127"
    assert settings == "mu=0.01" and measured == ["-", "-", "-"]
