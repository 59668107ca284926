"""Files with the facts that the stages of a run begin with, since they cannot be recomputed."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_lab.engine import processes
from fedjax_lab.errors import BadInput
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.types import Stage


def write(path: Path, stage: Stage, facts: list[dict]) -> None:
    """Writes the facts with which a stage begins, for each lane."""
    if not processes.is_first() or stage.prepare is None:
        return
    metric_rows.make_folder(path / "stages")
    for i, arrays in enumerate(facts):
        write_arrays(_file(path, stage, i), arrays)


def read(path: Path, stage: Stage, lanes: int) -> list[dict]:
    """The facts with which a stage of the run began, for each lane.

    Raises BadInput if a file is damaged or lost.
    """
    if stage.prepare is None:
        return [{} for _ in range(lanes)]
    return processes.call_in_first(
        lambda: [read_arrays(_file(path, stage, i)) for i in range(lanes)]
    )


def _file(path, stage, lane):
    return path / f"stages/{stage.name}-{lane}.npz"


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Writes arrays to an .npz file, and its checksum to a second file in sha256sum's format."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    metric_rows.replace(path, content.getvalue())
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    metric_rows.write_text(_checksum_of(path), f"{digest}  {path.name}\n")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads a file written by `write_arrays`. Raises BadInput if it is damaged or lost."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != _checksum_of(path).read_text().split()[0]:
            raise ValueError("its checksum does not match")
    except (OSError, ValueError, IndexError) as error:
        reason = f"is damaged or lost, and its stage needs it to resume: {error}"
        raise BadInput(f"{path} {reason}") from error
    return dict(np.load(io.BytesIO(content)))


def _checksum_of(path):
    return path.with_name(f"{path.name}.sha256")
