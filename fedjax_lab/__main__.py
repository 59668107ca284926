"""All commands of the package by name: `fedjax-lab NAME ...` or `python -m fedjax_lab NAME ...`.

`fedjax-lab sweep ...` runs the module fedjax_lab.sweep as `python -m fedjax_lab.sweep ...` does.
"""

import runpy
import sys
from typing import NoReturn

from fedjax_lab import __version__
from fedjax_lab.commands import command
from fedjax_lab.commands.command import COMMANDS


def main() -> NoReturn:
    """Runs the command that the first argument names, as `python -m MODULE` would."""
    if sys.argv[1:] == ["--version"]:
        print(f"fedjax_lab {__version__}")
        raise SystemExit(0)
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        module, _ = COMMANDS[sys.argv.pop(1)]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    command.begin()
    command.run(lambda argv: command.call(_refuse, argv, help_text=_help()), sys.argv[1:] or ["-h"])


def _refuse(argv):
    from fedjax_lab.errors import BadInput, nearest, quoted

    raise BadInput(f"no command {quoted(argv[0])}; {nearest(argv[0], COMMANDS)}")


def _help():
    lines = [f"  {name:12}{what}" for name, (_, what) in COMMANDS.items()]
    closing = (
        "`fedjax-lab COMMAND --help` explains a command; `fedjax-lab --version` is the version."
    )
    return "\n".join(["fedjax-lab COMMAND ...", "", *lines, "", closing])


if __name__ == "__main__":
    main()
