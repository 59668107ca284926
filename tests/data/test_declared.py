"""Tests the declaration of data sources: limits of settings, and remedies in errors."""

from typing import Literal

import numpy as np
import pytest
from inputs import complaint
from small_dataset import SMALL

from fedjax_lab.data.declared import Side, source
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.safe import Fault, reading, remedied
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.registry import keyword_defaults
from fedjax_lab.ranges import Positive


@source("get it")
def toys(
    *,
    file: str = "",
    size: Side = 32,
    color: Literal["rgb", "gray"] = "rgb",
    users: Positive[int] = 1,
):
    """Toys."""
    with reading(file):
        open(file).close()

    def read(rows):
        raise Fault(f"{file} is too short")

    return SMALL._replace(x=LazyArray(read, (2, 3), np.uint8, None))


@pytest.mark.parametrize("setting", [{"size": 7}, {"color": "red"}, {"users": 0}])
def test_settings_are_checked_before_anything_is_read(setting):
    (key,) = setting
    assert f"config.data.{key}" in complaint(toys, file="/nowhere", **setting)


def test_the_remedy_is_added_once_also_when_a_lazy_array_is_read(tmp_path):
    assert complaint(toys, file="/nowhere/a") == "/nowhere/a is missing: get it"
    (tmp_path / "a").touch()
    made = toys(file=str(tmp_path / "a"))
    for read in (made.x.__getitem__, remedied("get another")(made.x.__getitem__)):
        assert complaint(read, slice(1)) == f"{tmp_path / 'a'} is too short: get it"


def test_a_declared_source_keeps_its_name_its_docstring_and_its_settings():
    assert (toys.__name__, toys.__doc__) == ("toys", "Toys.")
    assert keyword_defaults(toys) == {"file": "", "size": 32, "color": "rgb", "users": 1}


def test_complete_errors_get_no_remedy():
    with pytest.raises(BadInput, match="^complete$"), remedied("get it"):
        raise BadInput("complete")
