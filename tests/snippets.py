"""The Python and shell blocks of the pages, and what their commands ask of the program.

An invisible line before a block says how it is used: `<!-- file: own.py -->`, the block is a part
of this file, which other blocks of the page use; `<!-- not run: REASON -->`, its commands and its
syntax are checked, but it is not run, for example because it needs data or takes an hour.
"""

import configparser
import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

from absl.testing import flagsaver
from commands import call

from fedjax_lab import main
from fedjax_lab.auditing import audits
from fedjax_lab.commands import audit, data, figures, generate, paper, report, sweep
from fedjax_lab.data.fetching import catalog
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.config import resolve, settings_of
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.sweeping.sweep_plan import parse_grid, plan

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "launch/README.md",
]
BLOCK = re.compile(
    r"^(?:<!-- (file|not run): ([^\n]*) -->\n)?^( *)```(bash|python)\n(.*?)^\3```", re.S | re.M
)


class Block(NamedTuple):
    """A block of a page."""

    kind: str  # bash or python
    text: str
    use: str  # file, not run or ""
    note: str  # the name of the file, or the reason
    line: int  # of its first line in the page


def blocks(page: Path) -> list[Block]:
    """The Python and shell blocks of a page."""
    text = page.read_text()
    return [
        Block(m[4], textwrap.dedent(m[5]), m[1] or "", m[2] or "", text[: m.start(5)].count("\n"))
        for m in BLOCK.finditer(text)
    ]


def write_files(page: Path, folder: Path) -> None:
    """Writes the files that a page has, and links to the folders that commands name."""
    for name in ("configs", "launch", "examples", "setup.cfg"):
        (folder / name).symlink_to(ROOT / name)
    for block in blocks(page):
        if block.use == "file":
            with open(folder / block.note, "a") as file:
                file.write(block.text + "\n\n")


def commands(block: Block) -> list[list[str]]:
    """The words of each command of a shell block, without comments."""
    lines = block.text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [_as_installed(each) for each in words if each]


def _as_installed(words):
    """`python -m fedjax_lab.NAME` as `fedjax-lab NAME`; modules of folders are not commands."""
    package, _, name = "".join(words[2:3]).partition(".")
    if words[:2] == ["python", "-m"] and package == "fedjax_lab" and "." not in name:
        return ["fedjax-lab", {"main": "run"}.get(name, name), *words[3:]]
    return words


def check(words: list[str]) -> None:
    """Raises BadInput or an AssertionError if the program refuses the command's words.

    No data are read and nothing is trained. Other programs than fedjax-lab and pip are not checked.
    """
    if words[0] == "fedjax-lab":
        CHECKS[words[1]](words[2:])
    elif words[:2] == ["pip", "install"]:
        _check_extras(words)


def is_of_config(words: list[str]) -> bool:
    """Whether the command trains a config that it names."""
    asks = {"--show_config", "--help", "--help-method"} & set(words)
    named = any(word.startswith("--config") for word in words)
    return words[:2] == ["fedjax-lab", "run"] and named and "--resume" not in words and not asks


def config_of(words: list[str]):
    """The resolved config of such a command, and its seeds."""
    with flagsaver.flagsaver():
        overrides, seeds, _ = main._parse(["main", *words[2:]])
        config = resolve(load_config(main.CONFIG.value), overrides)
    return config, seeds or [config.run.seed]


def _check_run(arguments):
    if "--resume" in arguments:
        with flagsaver.flagsaver():
            main._parse(["main", *arguments])
    elif "--help" not in arguments:
        asks = {"--help-method", "--show_config"} & set(arguments)
        assert call(*arguments, *([] if asks else ["--show_config"])) == 0


def _check_sweep(arguments):
    if not arguments[0].startswith("--status"):
        args, methods, shared, _ = sweep._parse(["sweep", *arguments])
        assert plan(shared, methods, parse_grid(args.grid))


def _check_paper(arguments):
    args, _ = paper._parse(arguments)
    if args.what != ["list"]:
        assert paper.published.find(*args.what)


def _check_audit(arguments):
    settings, others = audit._settings(arguments)
    (attack,) = (word.split("=")[1] for word in others if word.startswith("--attack="))
    settings_of("attack.", audits.look_up(attack), settings)


def _check_data(arguments):
    name, *rest = arguments
    if name not in data.COMMANDS:
        raise BadInput(f"no command {name}")
    for each in rest:
        if not each.startswith("-"):
            catalog.look_up(each)


def _check_extras(words):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for extras in re.findall(r"^\.\[(.*)\]$", "\n".join(words), re.M):
        assert set(extras.split(",")) <= set(setup["options.extras_require"]), extras


CHECKS = {
    "audit": _check_audit,
    "run": _check_run,
    "sweep": _check_sweep,
    "report": lambda arguments: report._arguments(arguments),
    "generate": lambda arguments: generate._parse(arguments),
    "figures": lambda arguments: figures._parse(arguments[0], arguments[1:]),
    "paper": _check_paper,
    "data": _check_data,
    "tensorboard": lambda arguments: None,
    "completion": lambda arguments: None,
}
