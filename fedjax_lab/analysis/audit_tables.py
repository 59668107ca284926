"""The results of audits as a table, and as lines for reports."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedjax_lab.analysis.formats import Table
from fedjax_lab.analysis.runs import Run
from fedjax_lab.auditing import findings
from fedjax_lab.auditing.findings import ROW
from fedjax_lab.errors import shown


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """The measures of the rows of one audit; lists are left out."""
    keys = list(dict.fromkeys(key for row in rows for key in _measures(row)))
    title = f"{rows[0]['attack']}, after {rows[0]['round']} rounds" if rows else "no rows"
    cells = [
        [str(i), *(_cell(_measures(row).get(key)) for key in keys)] for i, row in enumerate(rows)
    ]
    return Table(title, ["", *(key.replace("_", " ") for key in keys)], cells)


def notes(runs: Iterable[Run]) -> list[str]:
    """One line for each row of the audits of runs."""
    return [
        f"{shown(run.folder.name)}: audit with {shown(row['attack'])} after {row['round']} rounds: "
        + ", ".join(f"{shown(k)} {_cell(v)}" for k, v in _measures(row).items())
        for run in runs
        for row in findings.read(run.folder)
    ]


def _measures(row):
    kinds = (int, float, str, type(None))
    return {k: value for k, value in row.items() if k not in ROW and isinstance(value, kinds)}


def _cell(value):
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else shown(str(value))
