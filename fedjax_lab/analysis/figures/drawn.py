"""What an analysis gives to the command `fedjax_lab.figures`, and what several of them need."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from fedjax_lab.errors import BadInput


class Drawn(NamedTuple):
    """The results of one analysis."""

    pictures: dict[str, Figure]  # by the name of the file
    numbers: dict[str, Any] | None = None  # the content of numbers.json
    text: str = ""  # to print


def by_name(workdirs: Sequence[Path]) -> dict[str, Path]:
    """The folders of runs by their last names. BadInput where two have the same one."""
    named = {workdir.name: workdir for workdir in workdirs}
    if len(named) < len(workdirs):
        raise BadInput("two of the folders have the same name")
    return named
