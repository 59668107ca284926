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

from fedjax_lab import features, tree
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
        figure.savefig(args.out / f"{name}.png", dpi=120)
        print(args.out / f"{name}.png")


class Client(NamedTuple):
    """One client of a finished run; arrays of NumPy."""

    name: str
    train: Batch
    test: Batch
    z_train: np.ndarray  # [R, d]
    z_test: np.ndarray
    picked: Picked | None  # of the test examples; None where the method picks nothing


def load(workdir: Path, seed: int | None, head_layers: int | None) -> list[Client]:
    """The clients of a finished run. BadInput where they have no test examples."""
    run = finished.load(workdir, seed)
    task, plan, federation = run.experiment.task, run.experiment.plan, run.federation
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
        found = *jax.device_get((train, test)), *seen, picked
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
    probe = curves(accuracy, 100 * RATIOS, "features kept, %", "accuracy of the probe, %")
    return numbers, {"sparsity": bars(sparsity, "sparsity ratio"), "fisher_probe": probe}


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
    figures = {
        "selection_ratio": bars(ratio, "share of selected features"),
        "fisher_split": bars(fisher, "mean Fisher score"),
        "overlap": heat_map(overlap, list(ratio), "overlap of selected features"),
        "tsne": tsne(shown),
    }
    numbers = {"selection_ratio": ratio, "overlap": overlap}
    return numbers | {"fisher_split": fisher, "infinite_fisher_scores": left_out}, figures


def halves(out: Picked) -> dict[str, np.ndarray]:
    """z^p and z^u."""
    return {"relevant": out.z_g * out.m, "irrelevant": out.z_g * (1 - out.m)}


def tsne(client: Client) -> Figure:
    """Relevant and irrelevant features in the plane, by class."""
    from sklearn.manifold import TSNE

    figure = Figure(figsize=(8, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, (part, z) in zip(panels, halves(client.picked).items(), strict=True):
        rows = min(len(z), TSNE_ROWS)
        near = min(30, (rows - 1) / 3)
        points = TSNE(perplexity=near, random_state=0, init="pca").fit_transform(z[:rows])
        axes.scatter(*points.T, c=client.test.y[:rows], cmap="tab10", s=8)
        axes.set(title=f"{client.name}, {part}", xticks=[], yticks=[])
    return figure


def bars(values: dict, label: str) -> Figure:
    """One bar for each name, or one for each of its parts."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    rows = {n: v if isinstance(v, dict) else {"": v} for n, v in values.items()}
    parts = list(next(iter(rows.values())))
    for i, part in enumerate(parts):
        places = np.arange(len(rows)) + 0.8 * (i - (len(parts) - 1) / 2) / len(parts)
        heights = [row[part] for row in rows.values()]
        axes.bar(places, heights, width=0.75 / len(parts), label=part)
    axes.set_xticks(range(len(rows)), list(rows), rotation=30)
    axes.set_ylabel(label)
    if len(parts) > 1:
        axes.legend()
    return figure


def curves(values: dict[str, list[float]], x, xlabel: str, ylabel: str) -> Figure:
    """One line for each name."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, y in values.items():
        axes.plot(x, y, marker=".", label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    return figure


def heat_map(values, names: list[str], title: str) -> Figure:
    """A square of numbers between 0 and 1, written into its fields."""
    figure = Figure(figsize=(4.8, 4.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="cividis", vmin=0, vmax=1)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            ink = "black" if value > 0.5 else "white"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=ink, fontsize="small")
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set_title(title)
    figure.colorbar(image)
    return figure


if __name__ == "__main__":
    main()
