"""Seeds that a run does not have are a run of their own, in a folder beside that of the run.

The run in DIR keeps its seeds. Beside it, DIR-seeds-2-4 is a run of the same config whose first new
seed is 2 and whose last one is 4. In a report, the runs of one config are one row.
"""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fedjax_lab.errors import BadInput
from fedjax_lab.running.storage import cloud, files

ENDING = "-seeds-"  # in the name of a folder with additional seeds


def seeds_of(folder: Path) -> list[int] | None:
    """The seeds of the run in a folder; None if it holds no run yet."""
    saved = files.read_config(folder / "config.json")
    return None if saved is None else saved["seeds"]


def refuse(folder: Path | str, saved: list[int], today: list[int]) -> None:
    """Raises BadInput, because the folder holds a run of other seeds."""
    raise BadInput(
        f"{folder} holds another run: its config.seeds is {saved}, not {today}; a run keeps its"
        " seeds, and the command run --resume with these and more seeds trains the others beside it"
    )


def folders(folder: Path) -> list[str]:
    """The places of the folders with additional seeds for a run, such as DIR-seeds-2."""
    if cloud.is_whole(folder):
        places = cloud.beside(folder, ENDING)
    else:
        paths = glob.glob(glob.escape(_named(folder) + ENDING) + "*")
        places = sorted(path for path in paths if os.path.isdir(path))
    here = place(folder, "")
    return [each for each in places if re.fullmatch(r"-seeds-\d+(-\d+)?", each[len(here) :])]


def plan(folder: Path, seeds: Sequence[int]) -> dict[str, list[int]]:
    """The runs that together have these seeds, each with its own seeds.

    The keys are endings of the folders' names: "" for `folder`, and such as "-seeds-2" for others.
    Runs that have begun keep their seeds. Raises BadInput if one of them also has other seeds.
    """
    begun = seeds_of(folder)
    if begun is None or not set(begun) <= set(seeds):  # the latter is refused when it is resumed
        return {"": list(seeds)}
    runs, lacking = {"": begun}, set(seeds) - set(begun)
    for place in folders(folder) if lacking else []:
        with cloud.staged(place, writes=False) as beside:
            try:
                there = seeds_of(beside) or []
            except files.Damaged:  # the command that trains in this folder reports it
                there = []
        if lacking & set(there):
            runs[place[place.rindex(ENDING) :]] = there
            if not set(there) <= set(seeds):
                refuse(place, there, list(seeds))
            lacking -= set(there)
    if lacking:
        ends = dict.fromkeys([min(lacking), max(lacking)])
        runs[ENDING + "-".join(map(str, ends))] = sorted(lacking)
    return runs


def place(folder: Path, ending: str) -> str:
    """The place of a folder beside this one, whose name has an ending of `plan`."""
    return (cloud.address(folder) if cloud.is_whole(folder) else _named(folder)) + ending


def _named(folder):
    """The path with a last part that is a name, unlike `.` and `..`."""
    return os.path.abspath(folder) if folder.name in ("", "..") else str(folder)
