"""Records of measured runs, one for each cell and seed of a table, kept in docs/results.

docs/results/NAME.csv has a line for each record of a table; an empty column means that the record
does not have that measure. docs/results/NAME.json maps digests to the settings of the runs.
"""

import csv
import fnmatch
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.analysis import formats, runs
from fedjax_lab.experiment import registry
from fedjax_lab.experiment.aliases import REMOVED
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.experiment.keys import DEFAULTS
from fedjax_lab.running import growth
from fedjax_lab.running.storage import files, metric_rows
from fedjax_lab.sweeping.sweep_plan import Cell

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
NOTHING = object()  # no default
DIVERGED = "diverged"  # the only measure of a run that diverged: in which round, 0 if unknown
PLACES = "data.folder", "data.path"  # the location of the data does not change the numbers
NEEDED = dict.fromkeys(("ds_fl", "feddf", "fedmd"), {"partition.public": "0.1"})
# {method: settings without which it cannot run}

Settings = dict[str, Any]  # by dotted key
Measured = dict[int, dict[str, float]]  # by seed and measure


class Record(NamedTuple):
    """The measures of one seed of one cell, and how they were obtained."""

    cell: str
    seed: int
    settings: str  # the digest of the cell's settings
    commit: str  # of the code; a trailing + marks uncommitted changes
    version: str  # of the package
    device: str
    values: dict[str, float]  # by measure
    data: str = ""  # the digest of the examples and of who holds them; "": not recorded


FACTS = Record._fields[:-2]


# Helpers for table files.


def cell(name: str, config: str, seeds: Sequence[int], **overrides: str) -> Cell:
    """Make a cell of a table.

    config: `configs/FILE.py:METHOD`. overrides: config keys, such as **{"run.rounds": "30"}.
    """
    path = str(ROOT / config)
    resolved = resolve(load_config(path), list(overrides.items()))
    return Cell(name, resolved.method.name, dict(overrides), resolved, list(seeds))


def cells_of_rows(
    config: str, rows: Mapping[str, tuple[str, dict[str, str]]], seeds: Sequence[int]
) -> list[Cell]:
    """Make a cell for each row of a table, {label: (method, overrides)}, from one config file."""
    return [
        cell(label, f"{config}:{method}", seeds, **overrides)
        for label, (method, overrides) in rows.items()
    ]


def in_rounds(*ways: str, measures: Sequence[str] = ("*",)) -> Callable[[runs.Row], Measured]:
    """Make a table's `measured`, which records each measure under the name "WAY/MEASURE".

    ways: rules that choose the reported round, such as "last". measures: patterns of the names of
    measures, such as "domains.*". Both are those of fedjax_lab.report.
    """

    def measured(row):
        out: Measured = {seed: {} for seed in row.seeds}
        for way in ways:
            for seed, values in runs.measured(row, way).items():
                for name, value in values.items():
                    if any(fnmatch.fnmatchcase(name, pattern) for pattern in measures):
                        out[seed][f"{way}/{name}"] = value
        return out

    return measured


def values(records: Iterable[Record], cell: str, measure: str) -> list[float]:
    """The measure of a cell, one value for each seed that has it."""
    return [r.values[measure] for r in records if r.cell == cell and measure in r.values]


def spread(records: Sequence[Record], cell: str, measure: str, places: int = 1) -> str:
    """Format the mean over seeds, and the population standard deviation if there are several.

    The number of diverged seeds is appended. The text is "-" if there is no number, and "diverged"
    if all seeds diverged.
    """
    of_cell, diverged = values(records, cell, measure), len(values(records, cell, DIVERGED))
    if not of_cell:
        return DIVERGED if diverged else formats.NONE
    std = f" ({np.std(of_cell):.{places}f})" if len(of_cell) > 1 else ""
    lost = f", {diverged} {DIVERGED}" if diverged else ""
    return f"{np.mean(of_cell):.{places}f}{std}{lost}"


def table(
    title: str,
    cells: Sequence[str],
    columns: dict[str, str],
    records: Sequence[Record],
    by_mean: str = "",
) -> formats.Table:
    """A table with a row for each cell and a column for each measure; the best means are bold.

    columns: {title of the column: measure}. by_mean: the measure by whose mean the rows are sorted,
    highest first; empty keeps the given order.
    """
    measures = list(columns.values())
    means = {m: {c: np.mean(v) for c in cells if (v := values(records, c, m))} for m in measures}
    if by_mean:
        cells = sorted(cells, key=lambda each: -means[by_mean].get(each, -np.inf))
    rows = [[c, *(spread(records, c, m) for m in measures)] for c in cells]
    best = {m: max(of.values(), default=None) for m, of in means.items()}
    places = [(i, j) for i in range(len(cells)) for j in range(len(measures))]
    bold = {
        (i, j + 1) for i, j in places if means[m := measures[j]].get(cells[i], np.nan) == best[m]
    }
    return formats.Table(title, ["", *columns], rows, bold)


class GridRow(NamedTuple):
    """A row of a grid: the names of its cells, and which mean of their measure is the best one."""

    label: str
    cells: Sequence[str]
    measure: str
    best: Callable = max  # or min


def grid(
    title: str, columns: Sequence[str], rows: Sequence[GridRow], records: Sequence[Record], **groups
) -> formats.Table:
    """A table with the measure of one cell in each place; the best mean of each row is bold."""
    texts, bold = [], set()
    for i, row in enumerate(rows):
        texts.append([row.label, *(spread(records, cell, row.measure) for cell in row.cells)])
        numbers = [values(records, cell, row.measure) for cell in row.cells]
        means = {j: np.mean(each) for j, each in enumerate(numbers, 1) if each}
        bold |= {(i, j) for j, mean in means.items() if mean == row.best(means.values())}
    return formats.Table(title, ["", *columns], texts, bold, **groups)


# Reading and writing records.


def settings_of(config, out: Path) -> Settings:
    """The settings that determine a run's numbers, without the local paths of the data."""
    saved = runs.flatten(runs.comparable(growth.saved_config(config, [])))
    kept = {key: _named(value, out) for key, value in saved.items() if key not in PLACES}
    return json.loads(json.dumps(kept, sort_keys=True))


def _named(value, out):
    """The value; a folder of another cell inside `out` becomes OUT/NAME, another path its name."""
    if not isinstance(value, str):
        return value
    if Path(value).is_relative_to(out):
        return f"OUT/{Path(value).relative_to(out)}"
    return Path(value).name if Path(value).is_absolute() else value


def digest(settings: Settings) -> str:
    """A digest of the settings: twelve hexadecimal digits of their SHA-256."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def data_digest(folder: Path, seed: int) -> str:
    """A digest of the data and of the partition of a seed in the folder of a run; "": unknown."""
    path = folder / "fingerprint.json"
    if not path.exists():
        return ""
    digests = files.read_json(path, {"*": files.TEXT})
    partition = f"partition of seed {seed}"
    return digest({k: v for k, v in digests.items() if k == partition or " of seed " not in k})


def same(old: Settings, today: Settings) -> bool:
    """Whether a run with the old settings gives the same numbers as one with today's settings.

    A setting that did not exist then must have its default value today; new settings of the
    section `method` always count as a difference. A removed setting must have the value that
    describes what every run now does.
    """
    now = {**REMOVED, **today}
    if any(key not in now or now[key] != value for key, value in old.items()):
        return False
    new = today.keys() - old.keys()
    return all(not key.startswith("method.") and _default(key, today) == today[key] for key in new)


def _default(key, settings):
    """The default value of a setting, or of one of the part that its section names; or NOTHING.

    It is as JSON gives it back: a list for a tuple.
    """
    value = _default_of(key, settings)
    return list(value) if isinstance(value, tuple) else value


def _default_of(key, settings):
    section, _, rest = key.partition(".")
    of_section = DEFAULTS.get(section, {})
    if rest in of_section or f"{section}.name" not in settings:
        return of_section.get(rest, NOTHING)
    part = registry.look_up(section, settings[f"{section}.name"])
    return registry.keyword_defaults(part).get(rest, NOTHING)


def current(
    records: Iterable[Record], settings: dict[str, Settings], cells: Sequence[Cell], out: Path
) -> list[Record]:
    """The records that match today's cells, seeds and settings; all others are stale."""
    today = {each.name: (each.seeds, settings_of(each.config, out)) for each in cells}
    return [
        record
        for record in records
        if record.cell in today
        and record.seed in today[record.cell][0]
        and same(settings[record.settings], today[record.cell][1])
    ]


def read(name: str) -> tuple[list[Record], dict[str, Settings]]:
    """The records of a table, and the settings by digest; both empty if nothing was measured."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return [], {}
    with path.open(newline="") as file:
        records = [_record(line) for line in csv.DictReader(file)]
    return records, json.loads(path.with_suffix(".json").read_text())


def _record(line):
    facts = {key: line.pop(key) for key in FACTS}
    facts["seed"] = int(facts["seed"])
    facts["data"] = line.pop("data", None) or ""
    return Record(**facts, values={key: float(text) for key, text in line.items() if text})


def add(name: str, new: Sequence[Record], settings: Settings) -> None:
    """Add records of one cell, replacing earlier ones of the same seeds.

    settings: those of the cell, which all the new records share.
    """
    records, by_digest = read(name)
    replaced = {(record.cell, record.seed) for record in new}
    records = [record for record in records if (record.cell, record.seed) not in replaced]
    records += new
    by_digest[digest(settings)] = settings
    used = {record.settings for record in records}
    metric_rows.make_folder(RESULTS)
    _write_settings(name, by_digest)  # before the records, so that none ever lacks its settings
    metric_rows.write_text(RESULTS / f"{name}.csv", _csv(records))
    _write_settings(name, {key: value for key, value in by_digest.items() if key in used})


def reasons(name: str) -> dict[str, str]:
    """Why methods of a table cannot run, by FEDERATION/METHOD."""
    path = RESULTS / f"{name}_reasons.json"
    return json.loads(path.read_text()) if path.exists() else {}


def add_reason(name: str, cell: str, reason: str) -> None:
    """Keep the reason why the method of a cell, FEDERATION/METHOD,SETTING=VALUE, cannot run."""
    every = reasons(name) | {cell.partition(",")[0]: reason}
    text = json.dumps(every, indent=1, sort_keys=True)
    metric_rows.make_folder(RESULTS)
    metric_rows.write_text(RESULTS / f"{name}_reasons.json", text + "\n")


def _write_settings(name, by_digest):
    lines = [f'"{key}": {json.dumps(value, sort_keys=True)}' for key, value in by_digest.items()]
    metric_rows.write_text(RESULTS / f"{name}.json", "{\n" + ",\n".join(lines) + "\n}\n")


def _csv(records):
    columns = [*FACTS, "data", *dict.fromkeys(key for record in records for key in record.values)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for record in records:
        facts = dict(zip(FACTS, record, strict=False)) | {"data": record.data}
        writer.writerow(facts | {key: f"{v:.6g}" for key, v in record.values.items()})
    return text.getvalue()
