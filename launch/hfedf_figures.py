"""hFedF's analyses of finished runs (its Figs. 3-7), with a picture each.

python launch/hfedf_figures.py WORKDIR --out=DIR [--compare=WORKDIR ...] [--seed=0]

Of a run of hfedf: weights.png, GradAlign's weight of every client in each evaluated round; and
embeddings.png, the first two numbers of every embedding through the rounds. Of runs in which every
client has one model, side by side: spread.png, the standard deviation of a weight over the models,
averaged over a layer; and confidence.png, the largest probability of right and wrong answers on
validation rows (id) and on the unseen domain (ood), with the expected calibration error.
numbers.json has it all.
"""

import argparse
import json
import textwrap
from functools import partial
from pathlib import Path

import finished
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from fedjax_lab import metrics, plots, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.local import fetch
from fedjax_lab.types import Weights

BINS = 15  # of the calibration error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compare", type=Path, nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=None, help="the run's first by default")
    args = parser.parse_args()
    try:
        runs = {}
        for workdir in (args.workdir, *args.compare):
            run = finished.load(workdir, args.seed)
            runs[str(workdir)] = run
        rounds = recorded(args.workdir, args.seed)
        spread = {name: layer_spread(run) for name, run in runs.items()}
    except BadInput as error:
        parser.error(str(error))
    args.out.mkdir(parents=True, exist_ok=True)
    answers = {name: {m: confidence(run, m) for m in rows_of(run)} for name, run in runs.items()}
    figures = {"spread": draw_spread(spread)}
    if any(answers.values()):
        figures["confidence"] = draw_confidence(answers)
    if rounds:
        figures["weights"] = draw_weights(rounds)
        figures["embeddings"] = draw_embeddings(rounds)
    numbers = {
        "spread": spread,
        "calibration_error": {
            name: {m: calibration_error(*pair) for m, pair in measured.items()}
            for name, measured in answers.items()
        },
        "rounds": rounds,
    }
    (args.out / "numbers.json").write_text(json.dumps(numbers, indent=2) + "\n")
    for name, figure in figures.items():
        print(plots.save(figure, args.out / f"{name}.png"))


def recorded(workdir: Path, seed: int | None) -> dict[int, dict]:
    """{round: what hfedf recorded} of one seed; empty for other methods."""
    rows = metrics.read_metrics(workdir / "metrics.jsonl")
    seed = rows[0]["seed"] if seed is None else seed
    return {
        row["round"]: row["recorded"]
        for row in rows
        if row["seed"] == seed and "embedding" in row.get("recorded", {})
    }


def layer_spread(run) -> dict[str, float]:
    """By layer: the deviation over clients of each of its weights, averaged. 0 for one model."""
    models = []
    for i in range(len(run.federation.train)):
        models.append(model_of(run, i).params)
    deviation = jax.tree.map(lambda *a: np.std(np.stack(a), axis=0), *jax.device_get(models))
    sums = {}
    for name, a in zip(tree.names(deviation), jax.tree.leaves(deviation), strict=True):
        sums.setdefault(name.rpartition("/")[0], []).append(a.ravel())
    return {layer: float(np.concatenate(parts).mean()) for layer, parts in sums.items()}


def model_of(run, i: int) -> Weights:
    """The model of client i: what it is sent, what it keeps, or both together."""
    client, message = run.client(i)
    parts = [part for part in (message, client.private) if jax.tree.leaves(part)]
    if not parts or not all(isinstance(part, Weights) for part in parts):
        raise BadInput(f"a client of {run.hyper['name']} has more or less than a model")
    return parts[0] if len(parts) == 1 else tree.join(*parts)


def rows_of(run) -> dict[str, list]:
    """The rows of each client that `id` and `ood` are measured on, where there are any."""
    count, federation = len(run.federation.train), run.federation
    rows = {"id": federation.validation, "ood": federation.unseen}
    each = {m: r if m == "id" else [r] * count for m, r in rows.items() if r is not None}
    return {m: list(r) for m, r in each.items()}


def confidence(run, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Largest probability, and whether the answer is right, of all clients' rows: [rows] each."""
    predict = jax.jit(partial(answers_of, run.method.predict))
    found = []
    for i, rows in enumerate(rows_of(run)[measure]):
        client, message = run.client(i)
        batch = fetch(run.federation, rows[rows >= 0], run.experiment.simulation.plan)
        found.append(jax.device_get(predict(message, client, batch.x, batch.y)))
    return tuple(np.concatenate(part) for part in zip(*found, strict=True))


def answers_of(predict, message, client, x, y):
    """Largest probability and whether it is the label's."""
    p = jax.nn.softmax(predict(message, client, x))
    return jnp.max(p, -1), jnp.argmax(p, -1) == y


def calibration_error(largest: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error: |accuracy - confidence| by bins of confidence, weighted."""
    place = np.clip(np.ceil(np.asarray(largest) * BINS).astype(int) - 1, 0, BINS - 1)
    far = [abs(right[place == b].mean() - largest[place == b].mean()) for b in np.unique(place)]
    return float(np.dot(far, [np.mean(place == b) for b in np.unique(place)]))


def draw_weights(rounds: dict[int, dict]) -> Figure:
    """GradAlign's weights: one line for each client."""
    weights = np.array([row["weight"] for row in rounds.values()])
    return draw_clients(list(rounds), weights, "weight of the client's gradient")


def draw_clients(rounds: list[int], values: np.ndarray, ylabel: str) -> Figure:
    """Values [rounds, C], one line for each client."""
    curves = [(np.array(rounds), line[None]) for line in values.T]
    names = [f"client {i}" for i in range(len(curves))]
    return plots.draw_curves(curves, "round", ylabel, names)


@plots.in_style
def draw_embeddings(rounds: dict[int, dict]) -> Figure:
    """Paths of the embeddings' first two numbers; of one number, against the round."""
    nu = np.array([row["embedding"] for row in rounds.values()])  # [rounds, C, e]
    if nu.shape[2] == 1:
        return draw_clients(list(rounds), nu[:, :, 0], "embedding (no unit)")
    figure = Figure((6.0, 3.6), layout="constrained")
    axes = figure.subplots()
    lines = []
    for i, path in enumerate(nu.swapaxes(0, 1)):
        lines += axes.plot(path[:, 0], path[:, 1], linewidth=1.2, markersize=3, **plots.look(i))
        axes.plot(*path[-1, :2], markersize=9, **plots.look(i))
    axes.set(xlabel="first number of the embedding", ylabel="second number of it")
    plots.add_legend(figure, lines, [f"client {i}" for i in range(len(lines))])
    return figure


@plots.in_style
def draw_spread(spread: dict[str, dict[str, float]]) -> Figure:
    """A row for each layer, a point in it for each run."""
    longest = list(max(spread.values(), key=len))
    figure = Figure((6.0, 0.9 + 0.25 * len(longest)), layout="constrained")
    axes = figure.subplots()
    for i, layers in enumerate(spread.values()):
        axes.plot(list(layers.values()), range(len(layers)), linewidth=0.8, **plots.look(i))
    axes.set_yticks(range(len(longest)), longest, fontsize="small")
    axes.set_ylim(len(longest) - 0.5, -0.5)
    axes.set(xlabel="standard deviation of a weight over clients", ylabel="layer")
    plots.add_legend(figure, axes.lines, short(spread))
    return figure


@plots.in_style
def draw_confidence(answers: dict) -> Figure:
    """Histograms: a row for each run, id and ood side by side."""
    measures = sorted({m for measured in answers.values() for m in measured})
    size = 1.4 + 3 * len(measures), 0.4 + 2.2 * len(answers)
    figure = Figure(size, layout="constrained")
    panels = figure.subplots(len(answers), len(measures), squeeze=False, sharex=True)
    for row, name, measured in zip(panels, short(answers), answers.values(), strict=True):
        for axes, m in zip(row, measures, strict=True):
            if m not in measured:
                axes.set_axis_off()
                continue
            largest, right = measured[m]
            parts = [largest[right], largest[~right]]
            bins = np.linspace(0, 1, 21)
            axes.hist(parts, bins, color=plots.CONTRAST, stacked=True)
            error = calibration_error(largest, right)
            title = f"{name}, {m}: calibration error {error:.3f}"
            axes.set_title("\n".join(textwrap.wrap(title, 40)))
        row[0].set_ylabel("answers")
    for axes in panels[-1]:
        axes.set_xlabel("confidence")
    shown = next(axes for axes in panels.flat if axes.containers)
    plots.add_legend(figure, shown.containers, ["right", "wrong"])
    return figure


def short(runs: dict) -> list[str]:
    """The names of folders of runs without what leads to them, where that tells them apart."""
    names = [Path(name).name for name in runs]
    return names if len(set(names)) == len(names) else list(runs)


if __name__ == "__main__":
    main()
