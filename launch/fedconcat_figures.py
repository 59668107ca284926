"""FedConcat's pictures of finished runs: who is in which cluster, the elbow, and Fig. 7.

python launch/fedconcat_figures.py --out=runs/figures runs/FEDCONCAT runs/FEDAVG

accuracy_by_megabytes.png: accuracy on the global test set against what one client has sent and
received, all runs (mean over seeds). NAME-clusters.png and NAME-elbow.png of each run that found
clusters (of its first seed): the label distributions that the server saw, by cluster, and within-
cluster inertia against the number of clusters, where the run was told num_clusters=elbow.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedjax_lab import metrics
from fedjax_lab.errors import BadInput


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("workdirs", type=Path, nargs="+", help="folders of runs")
    args = parser.parse_args()
    try:
        curves = {workdir.name: accuracy_by_megabytes(workdir) for workdir in args.workdirs}
        if len(curves) < len(args.workdirs):
            raise BadInput("two of the folders have the same name")
    except BadInput as error:
        parser.error(str(error))
    args.out.mkdir(parents=True, exist_ok=True)
    figures = {"accuracy_by_megabytes": draw_curves(curves)}
    for workdir in args.workdirs:
        for file in sorted((workdir / "stages").glob("*-0.npz")):
            facts = first_seed(dict(np.load(file)))
            figures[f"{workdir.name}-clusters"] = draw_clusters(facts["p"], facts["member"])
            if "inertia" in facts:
                K = len(facts["member"])
                figures[f"{workdir.name}-elbow"] = draw_elbow(facts["inertia"], K)
    for name, figure in figures.items():
        figure.savefig(args.out / f"{name}.png", dpi=120)
        print(args.out / f"{name}.png")


def first_seed(facts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of facts that seeds run together have on a leading axis, the first one's."""
    together = facts["member"].ndim == 3
    return {name: fact[0] for name, fact in facts.items()} if together else facts


def accuracy_by_megabytes(workdir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Megabytes of one client, both ways, and accuracy in percent: [evaluations] each."""
    if not (workdir / "metrics.jsonl").exists():
        raise BadInput(f"{workdir} holds no metrics.jsonl of a run")
    clients = json.loads((workdir / "config.json").read_text())["partition"]["num_clients"]
    points = defaultdict(list)
    for row in metrics.read_metrics(workdir / "metrics.jsonl"):
        megabytes = (row["bytes_up"] + row["bytes_down"]) / clients / 1e6
        points[row["round"]].append((megabytes, row.get("global", metrics.headline(row))))
    means = np.array([np.mean(points[r], 0) for r in sorted(points)])
    return means[:, 0], means[:, 1]


def draw_curves(curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Fig. 7: one line per run."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, (megabytes, accuracy) in curves.items():
        axes.plot(megabytes, accuracy, marker=".", label=name)
    axes.set(xlabel="megabytes sent and received by a client", ylabel="accuracy, %")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def draw_clusters(p: np.ndarray, member: np.ndarray) -> Figure:
    """Label distributions p [C, classes] as a map, clients sorted by cluster (member [K, C])."""
    cluster = member.argmax(0)
    order = np.argsort(cluster, kind="stable")
    figure = Figure(figsize=(5, 6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(p[order], aspect="auto", interpolation="nearest", cmap="cividis")
    for edge in np.flatnonzero(np.diff(cluster[order])):
        axes.axhline(edge + 0.5, color="white", linewidth=2)
    axes.set(xlabel="class", ylabel="client, by cluster", xticks=range(p.shape[1]))
    axes.set_yticks(range(len(order)), order.tolist(), fontsize="x-small")
    figure.colorbar(image, label="share of the client's examples")
    return figure


def draw_elbow(inertia: np.ndarray, K: int) -> Figure:
    """Inertia of 1, 2, ... clusters, the chord, and the bend that was taken."""
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    numbers = np.arange(1, len(inertia) + 1)
    axes.plot(numbers, inertia, marker="o", label="inertia")
    axes.plot(numbers[[0, -1]], inertia[[0, -1]], linestyle="--", color="gray", label="chord")
    axes.plot(K, inertia[K - 1], marker="o", markersize=12, fillstyle="none", label=f"K = {K}")
    axes.set(xlabel="clusters", ylabel="inertia", xticks=numbers)
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    main()
