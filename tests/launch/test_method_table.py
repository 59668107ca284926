"""The table of the costs and accuracies of all methods."""

import method_table
import pytest

from fedjax_lab.registry import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_row(name):
    row = method_table.row(name, (3e6, 1.5e6, 71.23), (1e6, 1e6, 60.0))
    assert len(row) == len(method_table.HEADER)
    assert row[0] == name and int(row[1]) > 5
    assert row[2:] == ["3", "1.5", "71.2"]


def test_the_row_of_a_failed_run_has_no_numbers():
    assert method_table.row("fedprox", None, None)[2:] == ["-", "-", "-"]
