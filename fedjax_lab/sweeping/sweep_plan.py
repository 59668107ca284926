"""Plans the cells of a sweep from the methods and the grid of a command line."""

import itertools
import re
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import ml_collections

from fedjax_lab.errors import BadInput, cut, nearest, quoted
from fedjax_lab.experiment import references
from fedjax_lab.experiment.aliases import ALIASES
from fedjax_lab.experiment.config import Override, resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import growth

LONGEST_NAME = 255  # characters of a folder's name, a limit of file systems


class Shared(NamedTuple):
    """The settings that all cells of a sweep have in common."""

    path: str  # the config file
    overrides: Sequence[Override] = ()
    seeds: list[int] | None = None  # None: config.run.seed
    compilation_cache: bool = True  # whether to keep compiled programs on disk
    log: str = ""  # loggers, separated by commas
    trust: bool = False  # whether code that the folder of run.start_from names is executed


class Cell(NamedTuple):
    """A cell of a sweep: one run."""

    name: str  # the name of its folder
    method: str  # the method for the config file; empty: the file's default
    grid: dict[str, str]  # the values of grid keys as text, by dotted key
    config: ml_collections.ConfigDict
    seeds: list[int]
    note: dict[str, Any] = {}  # additional entries of the cell in sweep.json

    @property
    def saved(self) -> dict:
        """The content of its config.json."""
        return growth.saved_config(self.config, self.seeds)


def parse_grid(texts: Iterable[str]) -> dict[str, list[str]]:
    """Parses KEY=VALUE,VALUE texts to {key: values as text}; commas in brackets do not separate."""
    grid: dict[str, list[str]] = {}
    for text in texts:
        key, _, listed = text.removeprefix("config.").partition("=")
        values = re.split(r",(?![^(\[]*[)\]])", listed)
        key = ALIASES.get(key, key)
        if "." not in key or not all(values):
            example = "--grid=local.lr=0.01,0.1"
            raise BadInput(
                f"--grid={cut(text, 80)} is not SECTION.KEY=VALUE,VALUE; for example {example}"
            )
        if key in grid:
            raise BadInput(f"--grid={cut(key, 80)} is given twice; list all its values in one flag")
        grid[key] = values
    return grid


def plan(shared: Shared, methods: list[str], grid: dict[str, list[str]]) -> dict[str, Cell]:
    """All cells of a sweep by name, in the order of the methods, with checked configs."""
    _check_keys(grid, shared.overrides)
    cells: dict[str, Cell] = {}
    keys: set[str] = set()
    for method in methods:
        for texts in itertools.product(*grid.values()):
            point = dict(zip(grid, texts, strict=True))
            of_method = _method_keys(shared, method, point)
            keys |= of_method
            point = {
                k: text for k, text in point.items() if not _is_method_key(k) or k in of_method
            }
            cell = make_cell(shared, method, point)
            cells.setdefault(cell.name, cell)
    for key in grid:
        if not any(key in cell.grid for cell in cells.values()):
            setting = f"--grid={cut(key, 80)}"
            raise BadInput(f"{setting}: no method of the sweep has it; {nearest(key, keys)}")
    return cells


def share_of(cells: dict[str, Cell], text: str) -> dict[str, Cell]:
    """The cells of the share I/N: every N-th cell, beginning with cell I.

    The shares with I = 0, ..., N - 1 together are all cells.
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise BadInput(f"--share={cut(text, 80)} is not I/N with I below N, such as --share=0/4")
    first, step = map(int, match.groups())
    return dict(list(cells.items())[first::step])


def make_cell(shared: Shared, method: str, point: dict[str, str]) -> Cell:
    """The cell of a method at a grid point, all of whose keys the method must have."""
    _check_keys(point, shared.overrides)
    loaded = load_config(f"{shared.path}:{method}")
    config = resolve(loaded, [*shared.overrides, *point.items()])
    for key, _, part in references.parts_of(config):
        if not references.lasts(part):
            raise BadInput(
                f"config.{key}={part} is a lambda or a local function, which the processes of a"
                " sweep cannot import; define it at the top of a file"
            )
    parts = [_in_name(config.method.name)]
    for key, text in point.items():
        section, _, rest = key.partition(".")
        value = config[section][rest]
        value = text if isinstance(value, str) else str(value)  # keeps earlier names of values
        parts.append(f"{rest if _is_method_key(key) else key}={_in_name(value.replace(' ', ''))}")
    name = ",".join(parts)
    if len(name) > LONGEST_NAME:
        raise BadInput(f"the values of --grid make the folder name too long: {quoted(name)}")
    seeds = [config.run.seed] if shared.seeds is None else shared.seeds
    return Cell(name=name, method=method, grid=point, config=config, seeds=seeds)


def _in_name(text):
    """The text with escapes for characters that cannot be in the name of a folder."""
    return urllib.parse.quote(text, safe="+()[],:")


def _check_keys(grid, overrides):
    given = {key for key, _ in overrides}
    flags = {"method.name": "--methods=fedavg,fedprox", "run.seed": "--seeds=0,1,2"}
    for key in grid:
        if key in flags:
            raise BadInput(f"--grid cannot vary {key}; use {flags[key]}")
        if key in given:
            raise BadInput(f"config.{key} is both in the grid and set by --config.{key}; drop one")
    if "method.name" in given:
        raise BadInput(f"a sweep does not take --config.method.name; use {flags['method.name']}")


def _is_method_key(key):
    return key.startswith("method.")


def _method_keys(shared, method, point):
    """The method's config keys at a grid point, including those of its base method."""
    loaded = load_config(f"{shared.path}:{method}")
    pairs = [*shared.overrides, *((k, text) for k, text in point.items() if not _is_method_key(k))]
    settings = resolve(loaded, pairs).method
    if "base" in settings and "method.base" in point:
        pairs.append(("method.base", point["method.base"]))
        settings = resolve(loaded, pairs).method
    return {f"method.{key}" for key in settings if key != "name"}
