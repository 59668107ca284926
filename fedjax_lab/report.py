"""What a run shows a person: the closing table, the learning curve, a partition's picture."""

from pathlib import Path

import numpy as np

LABELS = {
    "last": "last round",
    "best_by_validation": "best by validation",
    "max_over_rounds": "max over rounds",
    "max_per_domain": "max per domain",
}


def closing_table(summary: dict) -> str:
    """Accuracy in percent, by the ways to choose a round."""
    ways = [way for way in LABELS if way in summary]
    lines = [_line("accuracy, %", [LABELS[way] for way in ways])]
    lines.append("-" * len(lines[0]))
    for name, path in _measures(summary["last"]["mean"]):
        cells = [_cell(summary[way], path) for way in ways]
        lines.append(_line(name, cells))
    seeds = summary["seeds"]
    if len(seeds) > 1:
        lines.append(f"mean +- sample standard deviation over {len(seeds)} seeds")
    lines.append("maxima are chosen on the test set itself")
    return "\n".join(lines)


def _measures(numbers):
    """(label, path) of each accuracy that was measured."""
    out = []
    for key, label in (("domains", None), ("accuracy", None), ("global", "global test set")):
        if key not in numbers:
            continue
        if key == "domains":
            out += [(name, (key, name)) for name in numbers[key]]
        elif key == "accuracy":
            kinds = {"mean": "mean over clients", "worst10": "worst 10 % of clients"}
            out += [(text, (key, kind)) for kind, text in kinds.items()]
        else:
            out.append((label, (key,)))
    extra = {"id": "validation (id)", "ood": "unseen domain (ood)"}
    return out + [(text, (key,)) for key, text in extra.items() if key in numbers]


def _cell(chosen, path):
    mean = _at(chosen["mean"], path)
    if mean is None:
        return ""
    std = _at(chosen.get("std", {}), path)
    return f"{mean:.2f}" if std is None else f"{mean:.2f} +- {std:.2f}"


def _at(numbers, path):
    for key in path:
        numbers = numbers.get(key) if numbers else None
    return numbers


def _line(name, cells):
    return (f"{name:22}" + "".join(f"{cell:>19}" for cell in cells)).rstrip()


def plot_curves(rows: list[dict], title: str, folder: Path) -> None:
    """learning_curve.png: accuracy (by domain where there are several) and training loss."""
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    rounds = sorted({row["round"] for row in rows})
    for name, values in _curves(rows).items():
        strong = name in ("mean over clients", "global", "unseen domain")
        mean, low, high = ([f(v) for v in values.values()] for f in (np.mean, np.min, np.max))
        left.plot(list(values), mean, label=name, linewidth=2.2 if strong else 1.2, marker=".")
        left.fill_between(list(values), low, high, alpha=0.12)
    left.set(xlabel="round", ylabel="accuracy, %", title=title)
    if left.lines:
        left.legend(fontsize="small")
    loss = [np.mean([row["train_loss"] for row in rows if row["round"] == r]) for r in rounds]
    right.plot(rounds, loss, marker=".", color="black")
    right.set(xlabel="round", ylabel="training loss", title="loss of local training")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(folder / "learning_curve.png", dpi=120)


def _curves(rows):
    """{name: {round: [value per seed]}}"""
    curves = {}
    for row in rows:
        points = dict(row.get("domains", {}))
        if "accuracy" in row:
            points["mean over clients"] = row["accuracy"]["mean"]
        points |= {"global": row["global"]} if "global" in row else {}
        points |= {"unseen domain": row["ood"]} if "ood" in row else {}
        if not points and "id" in row:
            points["validation"] = row["id"]
        for name, value in points.items():
            curves.setdefault(name, {}).setdefault(row["round"], []).append(value)
    return curves
