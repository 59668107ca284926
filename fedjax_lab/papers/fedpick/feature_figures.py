"""FedPick's analyses of features (its Figs. 1, 2 and 7-10) for a finished run, with a picture each.

python -m fedjax_lab.figures fedpick FOLDER [--seed=0] [--head_layers=2] [--domain=NAME]

--seed         the seed; default: the run's first seed
--head_layers  the number of dense layers at the end of the model that form the head; the features
               are its input; default: the method's setting of this name, or else 2
--domain       the domain shown in the t-SNE; default: the last one

For the final state of any run with one client per domain:

sparsity.png        the share of features at most 1e-5 of the vector's norm, on test images
fisher_probe.png    accuracy of ten nearest neighbors on the features with the highest Fisher scores

For a run of fedpick in addition, on test images:

selection.png       the share of images for which a client selects each feature
selection_ratio.png the share of features that are selected
tsne.png            t-SNE of the relevant and irrelevant features of one domain
fisher_split.png    the mean Fisher score of relevant and irrelevant features
overlap.png         overlap between domains of the most often selected half of the features

numbers.json holds the numbers shown in the pictures.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from fedjax_lab import tree
from fedjax_lab.analysis import finished
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.methods.fedper import head
from fedjax_lab.models.task import inputs_of
from fedjax_lab.papers.fedpick import features
from fedjax_lab.papers.fedpick.selection import Picked, pick
from fedjax_lab.running import plots
from fedjax_lab.simulation.client_work import client_federation, fetch
from fedjax_lab.types import Batch

RATIOS = np.arange(1, 11) / 10  # the shares of features kept
TSNE_ROWS = 500  # the most examples in a t-SNE
BATCH = 500  # examples at a time


def draw(
    workdir: Path, *, seed: int | None = None, head_layers: int = 0, domain: str = ""
) -> Drawn:
    """The analyses of a run's features, and of FedPick's selection if the run has one."""
    clients = load(workdir, seed, head_layers)
    by_domain = {client.name: client for client in clients}
    domain = domain or clients[-1].name
    if domain not in by_domain:
        raise BadInput(f"no domain {domain!r}; {nearest(domain, by_domain)}")
    numbers, pictures = analyze(clients)
    if clients[0].picked is not None:
        more, drawn = analyze_selection(clients, by_domain[domain])
        numbers, pictures = numbers | more, pictures | drawn
    return Drawn(pictures, numbers)


class Client(NamedTuple):
    """One client of a finished run, with NumPy arrays."""

    name: str
    train: Batch
    test: Batch
    z_train: np.ndarray  # [R, d]
    z_test: np.ndarray
    classes: tuple[str, ...]
    picked: Any  # a Picked of the test examples; None if the method selects no features


def load(workdir: Path, seed: int | None, head_layers: int = 0) -> list[Client]:
    """Loads the clients of a finished run. Raises BadInput if they have no test examples."""
    run = finished.load(workdir, seed)
    if run.federation.test is None:
        raise BadInput(f"{workdir}: the clients have no test examples of their own")
    layers = head(run.experiment.task, head_layers or run.hyper.get("head_layers", 2))
    see = jax.jit(partial(features_of, run.method, layers[0]))
    select = selector(run, layers)
    domains = run.experiment.dataset.domains
    names = domains if len(domains) == run.num_clients else range(run.num_clients)
    return [load_client(run, i, str(name), see, select) for i, name in enumerate(names)]


def selector(run: finished.Finished, layers):
    """A function that applies FedPick's mask for inputs x [B, ...]; None if there is no mask."""
    if run.hyper["name"] != "fedpick" or run.hyper["mask"] == "none":
        return None
    soft, tau = run.hyper["mask"] == "soft", run.hyper["tau"]
    return jax.jit(partial(pick, run.experiment.task, layers, tau=tau, soft=soft))


def load_client(run: finished.Finished, i: int, name: str, see, select) -> Client:
    """Loads client i: its examples, and the outputs of `see` and `select` for them."""
    client, message = run.client(i)
    assert run.federation.test is not None  # `load` has checked that
    rows = run.federation.train[i], run.federation.test[i]
    federation = client_federation(run.federation, client)
    train, test = (fetch(federation, r[r >= 0], run.plan) for r in rows)
    z_train, z_test = (
        in_batches(partial(see, message, client), batch.x) for batch in (train, test)
    )
    picked = None
    if select:
        picked = in_batches(partial(select, tree.join(message, client.private)), test.x)
    classes = run.experiment.dataset.classes
    train, test = jax.device_get((train, test))
    return Client(name, train, test, z_train, z_test, classes, picked)


def in_batches(fn, x):
    """Applies fn, which takes a batch [B, ...], to all of x [R, ...]; returns NumPy arrays."""
    parts = [jax.device_get(fn(x[i : i + BATCH])) for i in range(0, len(x), BATCH)]
    if isinstance(parts[0], tuple):
        parts = [part._replace(stats=None) for part in parts]
    return jax.tree.map(lambda *a: np.concatenate(a), *parts)


def features_of(method, layer, message, client, x):
    """The first input [B, d] of the named layer when the client's model predicts."""
    with inputs_of(layer) as seen:
        method.predict(message, client, x)
    return seen[0]


def analyze(clients: list[Client]) -> tuple[dict, dict[str, Figure]]:
    """Sparsity, and the probe on features with high Fisher scores: numbers and pictures."""
    sparsity = {c.name: features.sparsity(c.z_test) for c in clients}
    accuracy = {}
    for c in clients:
        y_train, y_test = np.asarray(c.train.y), np.asarray(c.test.y)
        score = features.fisher_score(c.z_train, y_train)
        kept = [features.top_dimensions(score, ratio) for ratio in RATIOS]
        accuracy[c.name] = [features.probe(c.z_train, y_train, c.z_test, y_test, k) for k in kept]
    numbers = {"sparsity": sparsity, "ratios": RATIOS.tolist(), "fisher_probe": accuracy}
    curves = [(100 * RATIOS, np.array([row])) for row in accuracy.values()]
    probe = plots.draw_curves(
        curves, "features kept, %", "accuracy of the probe, %", list(accuracy)
    )
    zeros = {name: {"": 100 * share} for name, share in sparsity.items()}
    return numbers, {"sparsity": bars(zeros, "features near 0, %"), "fisher_probe": probe}


def analyze_selection(clients: list[Client], shown: Client) -> tuple[dict, dict[str, Figure]]:
    """Selection ratio, Fisher scores, overlap and t-SNE of the selection: numbers and pictures.

    shown: the client shown in the t-SNE.
    """
    ratio = {c.name: features.selection_ratio(c.picked.m) for c in clients}
    scores = {
        c.name: {
            part: features.mean_fisher(z, np.asarray(c.test.y))
            for part, z in halves(c.picked).items()
        }
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
        "selection": draw_selection({c.name: c.picked.m.mean(0) for c in clients}),
        "selection_ratio": bars(selected, "features selected, %"),
        "fisher_split": bars(fisher, "mean Fisher score"),
        "overlap": plots.draw_heat_maps(square, label, domains, domains, high=1, written=True),
        "tsne": tsne(shown),
    }
    numbers = {"selection_ratio": ratio, "overlap": overlap}
    return numbers | {"fisher_split": fisher, "infinite_fisher_scores": left_out}, figures


def draw_selection(often: dict[str, np.ndarray]) -> Figure:
    """Draws how often each client selects each feature; features are ordered by the mean.

    often: shares [d] by the client's name.
    """
    share = 100 * np.stack(list(often.values()))
    order = np.argsort(-share.mean(0), kind="stable")
    rows, columns = plots.Side("domain", list(often)), plots.Side("feature", order)
    label = "test images for which it is selected, %"
    return plots.draw_heat_maps({"": share[:, order]}, label, rows, columns, high=100)


def halves(out: Picked) -> dict[str, np.ndarray]:
    """The relevant features z^p and the irrelevant features z^u."""
    z_p, z_u = out.z_g * out.m, out.z_g * (1 - out.m)
    return {"relevant": np.asarray(z_p), "irrelevant": np.asarray(z_u)}


@plots.in_style
def tsne(client: Client) -> Figure:
    """Draws t-SNE embeddings of a client's relevant and irrelevant features, by class."""
    from sklearn.manifold import TSNE

    figure = Figure((8, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, (part, z) in zip(panels, halves(client.picked).items(), strict=True):
        rows = min(len(z), TSNE_ROWS)
        near = min(30, (rows - 1) / 3)
        points = TSNE(perplexity=near, random_state=0, init="pca").fit_transform(z[:rows])
        for i in range(len(client.classes)):
            of_class = points[client.test.y[:rows] == i]
            number = {"marker": f"${i}$", "linestyle": "none", "markeredgewidth": 0.3}
            axes.plot(*of_class.T, **plots.look(i) | number, markersize=6)
        axes.set(title=f"{client.name}, {part} features", xticks=[], yticks=[])
        axes.set(xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
    plots.add_legend(figure, panels[0].lines, client.classes)
    return figure


@plots.in_style
def bars(values: dict[str, dict[str, float]], label: str) -> Figure:
    """Draws a group of bars for each name, with one bar for each of its parts."""
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
