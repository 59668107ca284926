"""Writes what `--help` of every command prints to docs/commands.md.

python docs/generate/command_help.py
"""

import contextlib
import importlib
import io
from pathlib import Path

from fedjax_lab.commands.command import COMMANDS

PAGE = Path(__file__).parents[1] / "commands.md"
HEADING = "## The help of each command\n"


def written(page: str) -> str:
    """The page with the help of every command as its last section."""
    sections = (f"\n### fedjax-lab {name}\n\n```text\n{_help(name)}\n```\n" for name in COMMANDS)
    return page.partition(HEADING)[0] + HEADING + "".join(sections)


def _help(name):
    module = "fedjax_lab.main" if name == "run" else f"fedjax_lab.commands.{name}"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        importlib.import_module(module).main([name, "--help"][name in ("figures", "report") :])
    return printed.getvalue().strip()


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
