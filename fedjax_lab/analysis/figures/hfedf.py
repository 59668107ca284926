"""hFedF's analyses of finished runs (its Figs. 3-7), with a picture each.

python -m fedjax_lab.figures hfedf FOLDER [FOLDER...] [--seed=0]

--seed  each run's first seed by default

Of the first run, one of hfedf: weights.png, GradAlign's weight of every client in each evaluated
round; and embeddings.png, the first two numbers of every embedding through the rounds. Of all runs,
in which every client has one model, side by side: spread.png, the standard deviation of a weight
over the models, averaged over a layer; and confidence.png, the largest probability of right and
wrong answers on validation rows (id) and on the unseen domain (ood), with the expected calibration
error. numbers.json has it all.
"""

import textwrap
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from fedjax_lab import tree
from fedjax_lab.analysis import finished, plots
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.analysis.finished import Finished
from fedjax_lab.local import fetch, of_client
from fedjax_lab.running import metrics

BINS = 15  # of the calibration error


def draw(workdir: Path, *compared: Path, seed: int | None = None) -> Drawn:
    """What the run recorded, and its models beside those of other runs."""
    runs = {str(path): finished.load(path, seed) for path in (workdir, *compared)}
    rounds = recorded(workdir, seed)
    spread = {name: layer_spread(run) for name, run in runs.items()}
    answers = {name: {m: confidence(run, m) for m in rows_of(run)} for name, run in runs.items()}
    pictures = {"spread": draw_spread(spread)}
    if any(answers.values()):
        pictures["confidence"] = draw_confidence(answers)
    if rounds:
        pictures |= {"weights": draw_weights(rounds), "embeddings": draw_embeddings(rounds)}
    errors = {
        name: {m: calibration_error(*pair) for m, pair in measured.items()}
        for name, measured in answers.items()
    }
    numbers = {"spread": spread, "calibration_error": errors, "rounds": rounds}
    return Drawn(pictures, numbers)


def recorded(workdir: Path, seed: int | None) -> dict[int, dict]:
    """{round: what hfedf recorded} of one seed; empty for other methods."""
    rows = metrics.read_metrics(workdir / "metrics.jsonl")
    seed = rows[0]["seed"] if seed is None else seed
    return {
        row["round"]: row["recorded"]
        for row in rows
        if row["seed"] == seed and "embedding" in row.get("recorded", {})
    }


def layer_spread(run: Finished) -> dict[str, float]:
    """By layer: the deviation over clients of each of its weights, averaged. 0 for one model."""
    models = [run.model(i).params for i in range(run.num_clients)]
    deviation = jax.tree.map(lambda *a: np.std(np.stack(a), axis=0), *jax.device_get(models))
    sums: dict[str, list] = {}
    for name, a in zip(tree.names(deviation), jax.tree.leaves(deviation), strict=True):
        sums.setdefault(name.rpartition("/")[0], []).append(a.ravel())
    return {layer: float(np.concatenate(parts).mean()) for layer, parts in sums.items()}


def rows_of(run: Finished) -> dict[str, list]:
    """The rows of each client that `id` and `ood` are measured on, where there are any."""
    rows = {}
    if run.federation.validation is not None:
        rows["id"] = list(run.federation.validation)
    if run.federation.unseen is not None:
        rows["ood"] = [run.federation.unseen] * run.num_clients
    return rows


def confidence(run: Finished, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Largest probability, and whether the answer is right, of all clients' rows: [rows] each."""
    predict = jax.jit(partial(answers_of, run.method.predict))
    answers = []
    for i, rows in enumerate(rows_of(run)[measure]):
        client, message = run.client(i)
        federation = of_client(run.federation, client) if measure != "ood" else run.federation
        batch = fetch(federation, rows[rows >= 0], run.plan)
        answers.append(jax.device_get(predict(message, client, batch.x, batch.y)))
    probability, right = (np.concatenate(part) for part in zip(*answers, strict=True))
    return probability, right


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
    longest = max(map(list, spread.values()), key=len)
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
            if m in measured:
                draw_answers(axes, f"{name}, {m}", *measured[m])
            else:
                axes.set_axis_off()
        row[0].set_ylabel("answers")
    for axes in panels[-1]:
        axes.set_xlabel("confidence")
    shown = next(axes for axes in panels.flat if axes.containers)
    plots.add_legend(figure, shown.containers, ["right", "wrong"])
    return figure


def draw_answers(axes, name: str, largest: np.ndarray, right: np.ndarray) -> None:
    """The histogram of the confidence of right and of wrong answers."""
    parts = [largest[right], largest[~right]]
    axes.hist(parts, np.linspace(0, 1, 21), color=plots.CONTRAST, stacked=True)
    title = f"{name}: calibration error {calibration_error(largest, right):.3f}"
    axes.set_title("\n".join(textwrap.wrap(title, 40)))


def short(runs: dict) -> list[str]:
    """The names of folders of runs without what leads to them, where that tells them apart."""
    names = [Path(name).name for name in runs]
    return names if len(set(names)) == len(names) else list(runs)
