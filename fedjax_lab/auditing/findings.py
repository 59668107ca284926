"""What an attack has found, and the files of a run that keep it.

RUN/audit.jsonl has the rows of all audits of a run, one JSON object per line; an audit replaces the
rows of an earlier one with the same attack, settings, seed and round. RUN/audit/ATTACK.npz has the
arrays of the latest audit with that attack, for its pictures.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.errors import BadInput
from fedjax_lab.running.storage import files, metric_rows

ROW = {  # a line of audit.jsonl; other keys are what the attack measured
    "attack": files.TEXT,
    "settings": files.OBJECT,
    "seed": files.COUNT,
    "round": files.COUNT,
}


class Findings(NamedTuple):
    """What an attack has found."""

    rows: list[dict[str, Any]]  # measures by name: numbers, texts, or lists of these
    arrays: Mapping[str, np.ndarray] = {}  # for the attack's pictures
    remarks: Sequence[str] = ()  # what was assumed about the run, in full sentences


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of all audits of a run; [] if there are none. Raises files.Damaged."""
    return files.read_rows(folder / "audit.jsonl", ROW)


def read_arrays(folder: Path, attack: str) -> dict[str, np.ndarray]:
    """The arrays of the latest audit with an attack. Raises BadInput if there are none."""
    path = folder / f"audit/{attack}.npz"
    content = files.read_bytes(path)
    if content is None:
        raise BadInput(f"{folder} has no audit with {attack}; run `fedjax-lab audit` first")
    try:
        return dict(np.load(io.BytesIO(content)))
    except (ValueError, OSError, EOFError) as error:
        raise files.Damaged(f"{path} cannot be used: {error}") from error


def write(folder: Path, attack: str, result: Findings) -> None:
    """Adds what an attack has found to the files of a run."""
    new = json.loads(json.dumps(result.rows))  # with lists for tuples, as they are read
    same = [_audit(row) for row in new]
    rows = [row for row in read(folder) if _audit(row) not in same] + new
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if result.arrays:
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **result.arrays)
        metric_rows.make_folder(folder / "audit")
        metric_rows.replace(folder / f"audit/{attack}.npz", content.getvalue())
    metric_rows.write_text(folder / "audit.jsonl", text)


def _audit(row):
    return [row[key] for key in ROW]
