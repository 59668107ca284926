"""Notes about the data that the runs of a comparison used."""

from collections.abc import Iterable

from fedjax_lab.analysis.runs import Run, shown


def notes(runs: Iterable[Run]) -> list[str]:
    """One line for each data set: its name, fingerprint and license, and what to cite.

    Runs that have not ended, or were made by an earlier version, are left out.
    """
    used = [run.summary["data"] for run in runs if "data" in run.summary]
    lines = dict.fromkeys(map(_line, used))
    return [shown(line) for line in lines]


def _line(data):
    parts = [
        f"data {data.get('name', '')}",
        f"(fingerprint {data['fingerprint']})" if data.get("fingerprint") else "",
        f"license: {data['license']};" if data.get("license") else "",
        f"cite: {data['citation']}" if data.get("citation") else "no citation available",
    ]
    return " ".join(filter(None, parts))
