"""Prints a script that completes `fedjax-lab` in a shell: bash, zsh or tcsh.

fedjax-lab completion bash > ~/.local/share/bash-completion/completions/fedjax-lab
fedjax-lab completion zsh > FOLDER/_fedjax-lab

It completes commands, the flags that the help of a command lists, the names of configs, the keys
that every config has, and files. FOLDER is one of $fpath. Needs the extra `completion` (shtab).
"""

import argparse
import importlib
import re
import sys

from fedjax_lab.commands import command
from fedjax_lab.errors import BadInput, missing, nearest, quoted
from fedjax_lab.experiment import keys
from fedjax_lab.experiment.config_files import packaged


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    return command.call(_main, argv, help_text=__doc__)


def _main(argv):
    try:
        import shtab
    except ImportError as error:
        raise missing(error, "completion") from error
    (shell,) = argv[1:] if len(argv) == 2 else ("",)
    if shell not in shtab.SUPPORTED_SHELLS:
        raise BadInput(f"no shell {quoted(shell)}; {nearest(shell, shtab.SUPPORTED_SHELLS)}")
    print(shtab.complete(parser(shtab.FILE), shell))
    return 0


def parser(file: object) -> argparse.ArgumentParser:
    """All commands and flags, as far as a shell completes them; file: completes a path."""
    tree = argparse.ArgumentParser(prog="fedjax-lab", add_help=False)
    tree.add_argument("--version", action="store_true")
    commands = tree.add_subparsers()
    for name, (_, what) in command.COMMANDS.items():
        module = "fedjax_lab.main" if name == "run" else f"fedjax_lab.commands.{name}"
        help_text = importlib.import_module(module).__doc__ or ""
        part = commands.add_parser(name, help=what, add_help=False)
        for flag, takes_value in _flags(help_text).items():
            if flag == "--config":
                part.add_argument(flag, choices=[*packaged()])
            elif takes_value:
                part.add_argument(flag).complete = file  # type: ignore[attr-defined]
            else:
                part.add_argument(flag, action="store_true")
        part.add_argument("paths", nargs="*").complete = file  # type: ignore[attr-defined]
    return tree


def _flags(help_text):
    """The flags of a command's help, and whether they take a value: {"--seeds": True, ...}.

    With --config, also those of the keys of a config.
    """
    matches = re.findall(r"(?<![\w-])(--[a-z][\w-]*)(=?)", help_text)
    flags = {flag: (flag, "=") in matches for flag, _ in sorted(matches) if flag != "--noconfig"}
    of_keys = dict.fromkeys((f"--config.{key}" for key in keys.KEYS if "--config" in flags), True)
    return {**flags, "--help": False, **of_keys}


if __name__ == "__main__":
    command.begin()
    command.run(main, sys.argv, prints_result=True)
