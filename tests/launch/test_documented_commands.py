"""The commands with which the documentation's tables were measured are still valid."""

import importlib
import shlex
from pathlib import Path

import measure
import pytest
from documented import ROOT, all_documented

from fedjax_lab.errors import BadInput

FIRST = {  # {script: the function that is called when all flags have been checked}
    "compare": "python",
}


class Accepted(Exception):
    """The command's flags are valid."""


def check(line: str, monkeypatch) -> None:
    """Raises BadInput unless the command's script exists and accepts its flags."""
    script, *argv = shlex.split(line, comments=True)[1:]
    if not (ROOT / script).is_file():
        raise BadInput(f"{script} does not exist")
    name = Path(script).stem
    if name == "measure" and "NAME" not in argv:
        args = measure._parse(argv)
        measure.load(args.name)  # test_measure.py checks the cells
    if name not in FIRST:
        return
    with monkeypatch.context() as patch, pytest.raises(Accepted):
        patch.setattr(f"{name}.{FIRST[name]}", accept)
        importlib.import_module(name)._main(argv)


def accept(*args, **kwargs):
    raise Accepted


def test_documented_commands_are_valid(monkeypatch):
    for line in all_documented():
        check(line, monkeypatch)


def test_an_outdated_command_is_noticed(monkeypatch):
    for line in (
        "python launch/attack_table.py",
        "python launch/measure.py attack",
        "python launch/measure.py leaderboard --methods=fedavg",
        "python launch/speed/compare.py --torch=PYTHON",
    ):
        with pytest.raises(BadInput):
            check(line, monkeypatch)
