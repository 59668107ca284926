"""Settings of the config's section `local` that differ between clients: config.local.per_client.

The key names a CSV file. Its first column says to whom a row applies; the others are settings:

  client,epochs,lr          examples,epochs,batch_size
  0,2,0.1                   0,4,16
  3,1,0.05                  500,1,64

A row applies to the client of this number, or to all clients with at least so many training
examples. Clients without a row, and empty cells, have the numbers of the config.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.errors import BadInput, cut, nearest, quoted
from fedjax_lab.experiment.speeds import number, rows_of
from fedjax_lab.types import Federation, LocalSettings, Plan, Stage

KEY = "local.per_client"
WHOM = ("client", "examples")  # the first column
SETTINGS = ("epochs", "steps", "lr", "batch_size")


class Table(NamedTuple):
    """The content of a file."""

    path: str
    whom: str  # of WHOM
    rows: np.ndarray  # [R] numbers of clients, or least numbers of examples; ascending
    settings: dict[str, np.ndarray]  # [R] by name; NaN where the file has no number


def read(local: Mapping) -> Table | None:
    """The file that a config's section `local` names; None: it names none, or changes nothing.

    Raises BadInput if a column or a number is invalid.
    """
    path = local["per_client"]
    if not path:
        return None
    names, lines = rows_of(KEY, path)
    _check_columns(path, names, local)
    rows = [_row(path, line, names, row) for line, row in lines]
    numbers = np.array(sorted(rows)).reshape(-1, len(names))
    repeated = numbers[1:, 0][np.diff(numbers[:, 0]) == 0]
    if len(repeated):
        raise BadInput(f"config.{KEY}: {names[0]} {repeated[0]:.0f} is repeated in {path}")
    each = zip(names[1:], numbers.T[1:], strict=True)
    others = {name: a for name, a in each if not (np.isnan(a) | (a == local[name])).all()}
    return Table(path, names[0], numbers[:, 0], others) if others else None


def _check_columns(path, names, local):
    """Raises BadInput unless the header has settings of this run, each once."""
    of_work, other = ("steps", "epochs") if local["steps"] else ("epochs", "steps")
    valid = [name for name in SETTINGS if name != other]
    if names[:1] not in [[name] for name in WHOM]:
        raise BadInput(f"config.{KEY}: the first column of {path} must be {' or '.join(WHOM)}")
    for name in names[1:]:
        if name == other:
            raise BadInput(
                f"config.{KEY}: the column {other} of {path} must be {of_work}, because"
                f" config.local.{of_work} decides how long clients train"
            )
        if name not in valid:
            raise BadInput(
                f"config.{KEY}: unknown column {quoted(name)} in {path}; {nearest(name, valid)}"
            )
    if len(names) < 2 or len(set(names)) < len(names):
        raise BadInput(f"config.{KEY}: {path} must have one column for each setting")


def _row(path, line, names, row):
    """The numbers of a row; NaN for an empty cell."""
    try:
        if len(row) != len(names):
            raise ValueError
        return [_number(*each) for each in zip(names, row, strict=True)]
    except ValueError:
        raise BadInput(
            f"config.{KEY}: line {line} of {path} must have a whole number, and a number above 0"
            f" (lr) or a whole number of at least 1 for each setting, not {cut(','.join(row), 80)}"
        ) from None


def _number(name, text):
    """The number of a cell. Raises ValueError if it is invalid."""
    if name not in WHOM and not text:
        return np.nan
    made = number(text, float if name == "lr" else int)
    if name not in WHOM and made < np.finfo(np.float32).tiny:
        raise ValueError
    return made


def check(
    local: Mapping, federations: Sequence[Federation], stages: Sequence[Stage], plan: Plan
) -> None:
    """Raises BadInput if clients have batch sizes that the run would ignore."""
    settings = [each.traits["settings"] for each in federations if "settings" in each.traits]
    if all(each.batch_size is None for each in settings):
        return
    reason = ""
    if local["accumulate"] > 1:
        reason = f"config.local.accumulate={local['accumulate']}"
    if any(each.plan(plan).batch_size != plan.batch_size for each in stages):
        reason = "this method, which trains a stage in batches of another size"
    if reason:
        raise BadInput(f"config.{KEY}: the column batch_size cannot be combined with {reason}")


def client_settings(table: Table, local: Mapping, clients: Any) -> LocalSettings:
    """The numbers of all clients, [C + N] in the order of their ids.

    clients: `traits.Dealt`.
    """
    order = clients.order
    if table.whom == "examples":
        row = np.searchsorted(table.rows, clients.sizes, side="right") - 1
    else:
        unknown = table.rows[table.rows >= len(order)]
        if len(unknown):
            raise BadInput(
                f"config.{KEY}: client {unknown[0]:.0f} does not exist in {table.path}; the clients"
                f" of this run are 0 .. {len(order) - 1}"
            )
        place = np.full(len(order), -1)
        place[table.rows.astype(int)] = np.arange(len(table.rows))
        row = place[order]

    def values(name, default):
        if name not in table.settings:
            return None
        chosen = np.append(table.settings[name], np.nan)[row]  # row -1: the client has none
        return np.where(np.isnan(chosen), default, chosen)

    work, lr, size = (values(name, local[name]) for name in (_work(local), "lr", "batch_size"))
    return LocalSettings(
        work=None if work is None else work.astype(np.int32),
        rate=None if lr is None else (lr / local["lr"]).astype(np.float32),
        batch_size=None if size is None else size.astype(np.int32),
    )


def _work(local):
    return "steps" if local["steps"] else "epochs"
