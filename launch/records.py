"""The records that measured tables are made of: one for each cell and seed, kept in docs/results.

docs/results/NAME.csv has a line for each record of a table; an empty column means that the record
does not have that measure. docs/results/NAME.json has the settings of the runs by their digests.
"""

import csv
import fnmatch
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cells
import numpy as np

from fedjax_lab.analysis import formats, runs
from fedjax_lab.config import DEFAULTS, resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.running import metrics, workdir
from fedjax_lab.running.sweep_plan import Cell

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
DIVERGED = "diverged"  # the measure of a run that diverged: the round, 0 where it is not known
PLACES = "data.folder", "data.path"  # where the same data lie is not a setting of the experiment

Settings = dict[str, Any]  # by dotted key
Measured = dict[int, dict[str, float]]  # by seed and measure


class Record(NamedTuple):
    """What one seed of one cell has measured."""

    cell: str
    seed: int
    settings: str  # the digest of the cell's settings
    commit: str  # of the code; a + says that the code had been changed since
    version: str  # of the package
    device: str
    values: dict[str, float]  # by measure


FACTS = Record._fields[:-1]


# Helpers for table files.


def cell(name: str, config: str, seeds: Sequence[int], **overrides: str) -> Cell:
    """One run: its name, `configs/FILE.py:METHOD`, seeds, and overrides such as
    **{"run.rounds": "30"}."""
    path = str(ROOT / config)
    resolved = resolve(load_config(path), list(overrides.items()))
    return Cell(name, resolved.method.name, dict(overrides), resolved, list(seeds))


def in_rounds(*ways: str, measures: Sequence[str] = ("*",)) -> Callable[[runs.Row], Measured]:
    """A table's `measured`: "WAY/MEASURE" for ways to choose a round and patterns of measures.

    fedjax_lab.report describes both, for example in_rounds("last", measures=("domains.*",)).
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
    """The measure of each seed of a cell."""
    return [r.values[measure] for r in records if r.cell == cell and measure in r.values]


def spread(records: Sequence[Record], cell: str, measure: str, places: int = 1) -> str:
    """Mean over seeds, and the population standard deviation in brackets where there are several.

    It says how many seeds diverged, and is "-" where there is no number.
    """
    of_cell, diverged = values(records, cell, measure), len(values(records, cell, DIVERGED))
    if not of_cell:
        return DIVERGED if diverged else formats.NONE
    lost = f", {diverged} {DIVERGED}" if diverged else ""
    return cells.spread(of_cell, places) + lost


def table(
    title: str,
    cells: Sequence[str],
    columns: dict[str, str],
    records: Sequence[Record],
    by_mean: str = "",
) -> formats.Table:
    """A row of each cell, and a column of each measure under its name; the best means in bold.

    by_mean: the measure whose means sort the rows, the highest first; empty: as they are given.
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


# Reading and writing records.


def settings_of(config, out: Path) -> Settings:
    """The settings that decide a run's numbers, without the places of data on this machine."""
    saved = runs.flatten(runs.comparable(workdir.saved_config(config, [])))
    kept = {key: _named(value, out) for key, value in saved.items() if key not in PLACES}
    return json.loads(json.dumps(kept, sort_keys=True))


def _named(value, out):
    """The value; the folder of another cell by its name alone."""
    inside = isinstance(value, str) and Path(value).is_relative_to(out)
    return f"OUT/{Path(value).relative_to(out)}" if inside else value


def digest(settings: Settings) -> str:
    """Twelve hexadecimal digits."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def same(old: Settings, today: Settings) -> bool:
    """Whether a run with the old settings gives the same numbers as one with today's.

    A setting that has been added since, other than a method's own, has to be at its default.
    """
    if any(key not in today or today[key] != value for key, value in old.items()):
        return False
    for key in today.keys() - old.keys():
        section, _, rest = key.partition(".")
        if section == "method" or DEFAULTS.get(section, {}).get(rest, DEFAULTS) != today[key]:
            return False
    return True


def current(
    records: Iterable[Record], settings: dict[str, Settings], cells: Sequence[Cell], out: Path
) -> list[Record]:
    """The records of today's cells, seeds and settings; the others are stale."""
    today = {each.name: (each.seeds, settings_of(each.config, out)) for each in cells}
    return [
        record
        for record in records
        if record.cell in today
        and record.seed in today[record.cell][0]
        and same(settings[record.settings], today[record.cell][1])
    ]


def read(name: str) -> tuple[list[Record], dict[str, Settings]]:
    """The records of a table, and the settings by digest; nothing where none was measured."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return [], {}
    with path.open(newline="") as file:
        records = [_record(line) for line in csv.DictReader(file)]
    return records, json.loads(path.with_suffix(".json").read_text())


def _record(line):
    facts = {key: line.pop(key) for key in FACTS}
    facts["seed"] = int(facts["seed"])
    return Record(**facts, values={key: float(text) for key, text in line.items() if text})


def add(name: str, new: Sequence[Record], settings: Settings) -> None:
    """Adds records of one cell; those that it had of the same seeds are replaced."""
    records, known = read(name)
    replaced = {(record.cell, record.seed) for record in new}
    records = [record for record in records if (record.cell, record.seed) not in replaced]
    records += new
    known[digest(settings)] = settings
    used = {record.settings for record in records}
    metrics.make_folder(RESULTS)
    _write_settings(name, known)  # before the records, which are never without their settings
    metrics.write_text(RESULTS / f"{name}.csv", _csv(records))
    _write_settings(name, {key: value for key, value in known.items() if key in used})


def _write_settings(name, known):
    lines = [f'"{key}": {json.dumps(value, sort_keys=True)}' for key, value in known.items()]
    metrics.write_text(RESULTS / f"{name}.json", "{\n" + ",\n".join(lines) + "\n}\n")


def _csv(records):
    columns = [*FACTS, *dict.fromkeys(key for record in records for key in record.values)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for record in records:
        facts = dict(zip(FACTS, record, strict=False))
        writer.writerow(facts | {key: f"{v:.6g}" for key, v in record.values.items()})
    return text.getvalue()
