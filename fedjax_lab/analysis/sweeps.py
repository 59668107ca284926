"""Notes about the sweeps from which the runs of a comparison come."""

from collections.abc import Iterable, Mapping

from fedjax_lab.analysis.runs import Run, shown
from fedjax_lab.running.storage import files


def notes(runs: Iterable[Run]) -> list[str]:
    """Notes on the cost of each search for settings."""
    runs = list(runs)
    plans = {folder: _plan(folder) for folder in {run.folder.parent for run in runs}}
    cells = [(run.folder.name, plans[run.folder.parent].get(run.folder.name, {})) for run in runs]
    return [
        f"{shown(name)}: the best of {told(cell['tuned'])}"
        for name, cell in cells
        if "tuned" in cell
    ]


def _plan(folder):
    """The cells of a sweep.json; {} if the file does not exist or is damaged."""
    try:
        return files.read_plan(folder / "sweep.json") if (folder / "sweep.json").exists() else {}
    except files.Damaged:
        return {}


def told(tuned: Mapping) -> str:
    """The cost of a search for settings, in words."""
    lost = f", {tuned['diverged']} of them diverged" if tuned["diverged"] else ""
    return (
        f"{tuned['draws']} draws ({tuned['by']}) chosen on {tuned['on']} examples{lost};"
        f" {tuned['rounds']} rounds in {tuned['seconds']:.1f} s of training"
    )
