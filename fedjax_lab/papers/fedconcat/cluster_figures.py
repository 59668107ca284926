"""FedConcat's pictures of finished runs: the clusters, the elbow, and Fig. 7.

python -m fedjax_lab.figures fedconcat FOLDER...

accuracy_by_megabytes.png shows, for all runs, the accuracy on the global test set against the
megabytes that one client has sent and received, as means over seeds. For each run with clusters,
two pictures show its first seed. NAME-clusters.png has the label distributions that the server has
received, by cluster. NAME-elbow.png has the within-cluster inertia against the number of clusters,
if the run has the setting num_clusters=elbow.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedjax_lab.analysis.figures.drawn import Drawn, by_name
from fedjax_lab.data.partitions.partitioning import count_new
from fedjax_lab.errors import BadInput
from fedjax_lab.running import plots
from fedjax_lab.running.storage import files, metric_rows


def draw(*workdirs: Path) -> Drawn:
    """The accuracy by megabytes of all runs, and the clusters of those that have clusters."""
    named = by_name(workdirs)
    curves = [accuracy_by_megabytes(workdir) for workdir in named.values()]
    points = [(megabytes, accuracy[None]) for megabytes, accuracy in curves]
    pictures = {
        "accuracy_by_megabytes": plots.draw_curves(
            points, "sent and received by a client, MB", "accuracy, %", list(named)
        )
    }
    for name, workdir in named.items():
        for file in sorted((workdir / "stages").glob("*-0.npz")):
            facts = first_seed(dict(np.load(file)))
            pictures[f"{name}-clusters"] = draw_clusters(facts["p"], facts["member"])
            if "inertia" in facts:
                K = len(facts["member"])
                pictures[f"{name}-elbow"] = draw_elbow(facts["inertia"], K)
    return Drawn(pictures)


def first_seed(facts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The facts of the first seed, if the facts have a leading axis of seeds trained together."""
    together = facts["member"].ndim == 3
    return {name: fact[0] for name, fact in facts.items()} if together else facts


def accuracy_by_megabytes(workdir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Megabytes that one client sent and received, and accuracy in percent: [evaluations] each."""
    shape = {"partition": {"num_clients": files.COUNT}}
    config = files.read_json(workdir / "config.json", shape)
    rows = metric_rows.read_metrics(workdir / "metrics.jsonl")
    if config is None or not rows:
        raise BadInput(f"{workdir} holds no evaluated run: config.json or metrics.jsonl is missing")
    partition = config["partition"]
    clients = partition["num_clients"]
    clients -= count_new(clients, partition.get("new_clients", 0.0))
    points = defaultdict(list)
    for row in rows:
        megabytes = (row["bytes_up"] + row["bytes_down"]) / clients / 1e6
        accuracy: Any = row.get("global", metric_rows.headline(row))
        points[row["round"]].append((megabytes, accuracy))
    means = np.array([np.mean(points[r], 0) for r in sorted(points)])
    return means[:, 0], means[:, 1]


def draw_clusters(p: np.ndarray, member: np.ndarray) -> Figure:
    """A heat map of label distributions p [C, classes], sorted by cluster (member [K, C])."""
    cluster = member.argmax(0)
    order = np.argsort(cluster, kind="stable")
    rows = plots.Side("client, by cluster", order, np.flatnonzero(np.diff(cluster[order])) + 1)
    columns = plots.Side("class", range(p.shape[1]))
    share = {"": 100 * p[order]}
    return plots.draw_heat_maps(share, "share of the client's examples, %", rows, columns)


@plots.in_style
def draw_elbow(inertia: np.ndarray, K: int) -> Figure:
    """Draws the inertia of 1, 2, ... clusters, the chord, and the chosen number of clusters K."""
    figure = Figure((6.0, 3.0), layout="constrained")
    axes = figure.subplots()
    numbers = np.arange(1, len(inertia) + 1)
    axes.plot(numbers, inertia, **plots.look(0))
    axes.plot(numbers[[0, -1]], inertia[[0, -1]], linestyle="--", color="gray")
    axes.plot(K, inertia[K - 1], "o", color=plots.COLORS[1], markersize=12, fillstyle="none")
    axes.set(xlabel="Number of clusters", ylabel="Inertia, squared distance", xticks=numbers)
    plots.add_legend(figure, axes.lines, ["inertia", "chord", f"chosen: {K}"])
    return figure
