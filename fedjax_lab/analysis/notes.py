"""Notes about the runs of a comparison: their searches for settings, and their data."""

from collections.abc import Iterable, Mapping

from fedjax_lab.analysis.runs import Run, planned_cells, shown


def sweep_notes(runs: Iterable[Run]) -> list[str]:
    """One line on the cost of each search for settings."""
    runs = list(runs)
    plans = {folder: planned_cells(folder) for folder in {run.folder.parent for run in runs}}
    cells = [(run.folder.name, plans[run.folder.parent].get(run.folder.name, {})) for run in runs]
    return [
        f"{shown(name)}: the best of {search_cost(cell['tuned'])}"
        for name, cell in cells
        if "tuned" in cell
    ]


def search_cost(tuned: Mapping) -> str:
    """The cost of a search for settings, in words."""
    lost = f", {tuned['diverged']} of them diverged" if tuned["diverged"] else ""
    return (
        f"{tuned['draws']} draws ({tuned['by']}) chosen on {tuned['on']} examples{lost};"
        f" {tuned['rounds']} rounds in {tuned['seconds']:.1f} s of training"
    )


def data_notes(runs: Iterable[Run]) -> list[str]:
    """One line for each data set: its name, fingerprint and license, and what to cite.

    Runs that have not ended, or were made by an earlier version, are left out.
    """
    used = [run.summary["data"] for run in runs if "data" in run.summary]
    return [shown(line) for line in dict.fromkeys(map(_credit, used))]


def _credit(data):
    parts = [
        f"data {data.get('name', '')}",
        f"(fingerprint {data['fingerprint']})" if data.get("fingerprint") else "",
        f"license: {data['license']};" if data.get("license") else "",
        f"cite: {data['citation']}" if data.get("citation") else "no citation available",
    ]
    return " ".join(filter(None, parts))
