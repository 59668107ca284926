"""What a reader of a comparison has to know about the sweeps that its runs come from."""

from collections.abc import Iterable, Mapping

from fedjax_lab.analysis.runs import Run, shown
from fedjax_lab.running import files


def notes(runs: Iterable[Run]) -> list[str]:
    """What each search for settings has cost, and whether seeds were added until it was clear."""
    runs = list(runs)
    plans = {folder: _plan(folder) for folder in {run.folder.parent for run in runs}}
    cells = [(run.folder.name, plans[run.folder.parent].get(run.folder.name, {})) for run in runs]
    out = [
        f"{shown(name)}: the best of {told(cell['tuned'])}"
        for name, cell in cells
        if "tuned" in cell
    ]
    for until in sorted({cell["until"] for _, cell in cells if "until" in cell}):
        out.append(
            f"seeds were added until differences were clear (--until={shown(until)}): the sweep's"
            " interval allows for that, while intervals and p-values here are those of a number of"
            " seeds that is fixed beforehand"
        )
    return out


def _plan(folder):
    """The cells of a sweep.json; empty where there is none that can be read."""
    try:
        return files.read_plan(folder / "sweep.json") if (folder / "sweep.json").exists() else {}
    except files.Damaged:
        return {}


def told(tuned: Mapping) -> str:
    """What a search for settings has cost, in words."""
    lost = f", {tuned['diverged']} of them diverged" if tuned["diverged"] else ""
    return (
        f"{tuned['draws']} draws ({tuned['by']}) chosen on {tuned['on']} examples{lost};"
        f" {tuned['rounds']} rounds in {tuned['seconds']:.1f} s of training"
    )
