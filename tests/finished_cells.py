"""Helpers that write the folders of finished cells of a sweep, without any training."""

import toys

from fedjax_lab.running.storage import metric_rows


def finish(cell, out, accuracies, validation=None, **more):
    """Writes a finished run of the cell; `accuracies` and `validation` are its scores.

    accuracies: {seed: mean accuracy}.
    validation: the score `id` in `best_by_validation`, for all seeds; None: no such entry.
    """
    folder = out / cell.name
    metric_rows.make_folder(folder)
    seeds = list(accuracies)
    metric_rows.write_json(folder / "config.json", cell._replace(seeds=seeds).saved)
    rounds = cell.config.run.rounds
    rows = {seed: {**toys.SCORES, "accuracy": {"mean": accuracies[seed]}} for seed in seeds}
    summary = {**toys.SUMMARY, "seeds": seeds, "rounds": rounds, "last": _way(rows)}
    if validation is not None:
        summary["best_by_validation"] = _way({seed: {"id": validation} for seed in seeds})
    metric_rows.write_json(folder / "summary.json", {**summary, **more})


def _way(rows):
    return {"per_seed": {str(seed): row for seed, row in rows.items()}, "mean": rows[min(rows)]}
