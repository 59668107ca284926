"""Folders of cells of a sweep as finished runs leave them, made without training."""

import toys

from fedjax_lab.running import growth, metrics


def finish(cell, out, accuracies, validation=None, **more):
    """A finished run of the cell: accuracies by seed, and those on validation examples."""
    folder = out / cell.name
    metrics.make_folder(folder)
    seeds = list(accuracies)
    metrics.write_json(folder / "config.json", cell._replace(seeds=seeds).saved)
    rounds = cell.config.run.rounds
    rows = {seed: {**toys.SCORES, "accuracy": {"mean": accuracies[seed]}} for seed in seeds}
    summary = {**toys.SUMMARY, "seeds": seeds, "rounds": rounds, "last": _way(rows)}
    if validation is not None:
        summary["best_by_validation"] = _way({seed: {"id": validation} for seed in seeds})
    metrics.write_json(folder / "summary.json", {**summary, **more})


def _way(rows):
    return {"per_seed": {str(seed): row for seed, row in rows.items()}, "mean": rows[min(rows)]}


def begin_more(cell, out, seeds):
    """What a command leaves that was killed while it trained more seeds of a finished run."""
    inner = out / cell.name / growth.ADDED
    metrics.make_folder(inner)
    metrics.write_json(inner / "config.json", cell._replace(seeds=seeds).saved)
