"""FedPick's analyses of features (its Figs. 1, 2 and 7-10) for a finished run, with a picture each.

python launch/fedpick_analysis.py WORKDIR --out=DIR [--seed=0] [--head_layers=2]

Of the last state of any run with one client per domain, on the features z^g that enter the last
head_layers dense layers (without the flag those of the method's own setting, else two):

sparsity.png        share of features at most 1e-5 of their length, on test images
fisher_probe.png    accuracy of ten nearest neighbours on the features of highest Fisher score

Of a run of fedpick also, on test images:

selection_ratio.png share of features that are selected
tsne.png            t-SNE of relevant and irrelevant features of one domain (--domain)
fisher_split.png    mean Fisher score of both
overlap.png         overlap of the most often selected half of the features between domains

numbers.json holds what the pictures show.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

import finished
import jax
import numpy as np
from matplotlib.figure import Figure

from fedjax_lab import features, plots, tree
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.local import fetch
from fedjax_lab.methods.fedper import head
from fedjax_lab.methods.selection import Picked, pick
from fedjax_lab.models.task import inputs_of
from fedjax_lab.types import Batch

RATIOS = np.arange(1, 11) / 10  # of features kept
TSNE_ROWS = 500
BATCH = 500  # examples at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=None, help="the run's first by default")
    parser.add_argument("--head_layers", type=int, default=None)
    parser.add_argument("--domain", default="", help="of the t-SNE; the last by default")
    args = parser.parse_args()
    try:
        clients = load(args.workdir, args.seed, args.head_layers)
        by_name = {client.name: client for client in clients}
        domain = args.domain or clients[-1].name
        if domain not in by_name:
            raise BadInput(f"no domain {domain!r}; {nearest(domain, by_name)}")
    except BadInput as error:
        parser.error(str(error))
    args.out.mkdir(parents=True, exist_ok=True)
    numbers, figures = analyse(clients)
    if clients[0].picked is not None:
        more, drawn = analyse_selection(clients, by_name[domain])
        numbers, figures = numbers | more, figures | drawn
    (args.out / "numbers.json").write_text(json.dumps(numbers, indent=2) + "\n")
    for name, figure in figures.items():
        print(plots.save(figure, args.out / f"{name}.png"))


class Client(NamedTuple):
    """One client of a finished run; arrays of NumPy."""

    name: str
    train: Batch
    test: Batch
    z_train: np.ndarray  # [R, d]
    z_test: np.ndarray
    classes: tuple[str, ...]
    picked: Picked | None  # of the test examples; None where the method picks nothing


def load(workdir: Path, seed: int | None, head_layers: int | None) -> list[Client]:
    """The clients of a finished run. BadInput where they have no test examples."""
    run = finished.load(workdir, seed)
    task, plan, federation = run.experiment.task, run.experiment.simulation.plan, run.federation
    if federation.test is None:
        raise BadInput(f"{workdir}: the clients have no test examples of their own")
    layers = head(task, head_layers or run.hyper.get("head_layers", 2))
    see = jax.jit(partial(features_of, run.method, layers[0]))
    choose = None
    if run.hyper["name"] == "fedpick" and run.hyper["mask"] != "none":
        soft = run.hyper["mask"] == "soft"
        choose = jax.jit(partial(pick, task, layers, tau=run.hyper["tau"], soft=soft))
    count, names = len(federation.train), run.experiment.dataset.domains
    clients = []
    for i in range(count):
        mine, message = run.client(i)
        rows = federation.train[i], federation.test[i]
        train, test = (fetch(federation, r[r >= 0], plan) for r in rows)
        w = tree.join(message, mine.private) if choose else None
        seen = (in_batches(partial(see, message, mine), batch.x) for batch in (train, test))
        picked = in_batches(partial(choose, w), test.x) if choose else None
        found = *jax.device_get((train, test)), *seen, run.experiment.dataset.classes, picked
        clients.append(Client(names[i] if len(names) == count else str(i), *found))
    return clients


def in_batches(fn, x):
    """fn of a batch [B, ...] for all of x [R, ...], as NumPy arrays [R, ...]."""
    parts = [jax.device_get(fn(x[i : i + BATCH])) for i in range(0, len(x), BATCH)]
    if isinstance(parts[0], tuple):
        parts = [part._replace(stats=None) for part in parts]
    return jax.tree.map(lambda *a: np.concatenate(a), *parts)


def features_of(method, layer, message, client, x):
    """What the named layer is given first when the client's model predicts: [B, d]."""
    with inputs_of(layer) as seen:
        method.predict(message, client, x)
    return seen[0]


def analyse(clients: list[Client]) -> tuple[dict, dict[str, Figure]]:
    """Sparsity, and the probe on features chosen by Fisher score: numbers and pictures."""
    sparsity = {c.name: features.sparsity(c.z_test) for c in clients}
    accuracy = {}
    for c in clients:
        score = features.fisher_score(c.z_train, c.train.y)
        kept = [features.top_dimensions(score, ratio) for ratio in RATIOS]
        examples = c.z_train, c.train.y, c.z_test, c.test.y
        accuracy[c.name] = [features.probe(*examples, k) for k in kept]
    numbers = {"sparsity": sparsity, "ratios": RATIOS.tolist(), "fisher_probe": accuracy}
    curves = [(100 * RATIOS, np.array([row])) for row in accuracy.values()]
    labels = "features kept, %", "accuracy of the probe, %"
    probe = plots.draw_curves(curves, *labels, list(accuracy))
    zeros = {name: {"": 100 * share} for name, share in sparsity.items()}
    return numbers, {"sparsity": bars(zeros, "features near 0, %"), "fisher_probe": probe}


def analyse_selection(clients: list[Client], shown: Client) -> tuple[dict, dict[str, Figure]]:
    """Selection ratio, Fisher scores of both parts, overlap, t-SNE: numbers and pictures."""
    ratio = {c.name: features.selection_ratio(c.picked.m) for c in clients}
    scores = {
        c.name: {part: features.mean_fisher(z, c.test.y) for part, z in halves(c.picked).items()}
        for c in clients
    }
    fisher = {name: {part: mean for part, (mean, _) in row.items()} for name, row in scores.items()}
    left_out = {name: {part: n for part, (_, n) in row.items()} for name, row in scores.items()}
    often = [(c.picked.m.mean(0), c.picked.z_l.mean(0)) for c in clients]
    overlap = [[features.overlap(a, b, c, d) for b, d in often] for a, c in often]
    selected = {name: {"": 100 * share} for name, share in ratio.items()}
    domains, label = plots.Side("domain", list(ratio)), "overlap of selected features"
    square = {"": np.array(overlap)}
    figures = {
        "selection_ratio": bars(selected, "features selected, %"),
        "fisher_split": bars(fisher, "mean Fisher score"),
        "overlap": plots.draw_heat_maps(square, label, domains, domains, high=1, written=True),
        "tsne": tsne(shown),
    }
    numbers = {"selection_ratio": ratio, "overlap": overlap}
    return numbers | {"fisher_split": fisher, "infinite_fisher_scores": left_out}, figures


def halves(out: Picked) -> dict[str, np.ndarray]:
    """z^p and z^u."""
    return {"relevant": out.z_g * out.m, "irrelevant": out.z_g * (1 - out.m)}


@plots.in_style
def tsne(client: Client) -> Figure:
    """Relevant and irrelevant features in the plane, by class."""
    from sklearn.manifold import TSNE

    figure = Figure((8, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, (part, z) in zip(panels, halves(client.picked).items(), strict=True):
        rows = min(len(z), TSNE_ROWS)
        near = min(30, (rows - 1) / 3)
        points = TSNE(perplexity=near, random_state=0, init="pca").fit_transform(z[:rows])
        for i in range(len(client.classes)):
            mine = points[client.test.y[:rows] == i]
            number = {"marker": f"${i}$", "linestyle": "none", "markeredgewidth": 0.3}
            axes.plot(*mine.T, **plots.look(i) | number, markersize=6)
        axes.set(title=f"{client.name}, {part} features", xticks=[], yticks=[])
        axes.set(xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
    plots.add_legend(figure, panels[0].lines, client.classes)
    return figure


@plots.in_style
def bars(values: dict[str, dict[str, float]], label: str) -> Figure:
    """For each name one bar of each of its parts."""
    parts = list(next(iter(values.values())))
    figure = Figure((6.0 if len(parts) > 1 else 4.2, 3.0), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(values))
    for i, part in enumerate(parts):
        shift = 0.8 * (i - (len(parts) - 1) / 2) / len(parts)
        heights = [row[part] for row in values.values()]
        axes.bar(places + shift, heights, 0.75 / len(parts), color=plots.CONTRAST[i])
    axes.set_xticks(places, list(values), rotation=30)
    axes.set_ylabel(label)
    axes.grid(visible=False, axis="x")
    plots.add_legend(figure, axes.containers, parts if len(parts) > 1 else ())
    return figure


if __name__ == "__main__":
    main()
