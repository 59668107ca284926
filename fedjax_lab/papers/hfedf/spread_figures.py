"""hFedF's analyses of finished runs (its Figs. 3-7), with a picture each.

python -m fedjax_lab.figures hfedf FOLDER [FOLDER...] [--seed=0]

--seed  the seed; default: the first seed of each run

For the first run, which should be a run of hfedf: weights.png shows GradAlign's weight of every
client in each evaluated round, and embeddings.png the first two numbers of every embedding over the
rounds. For all runs, whose clients must have one model each: spread.png shows the standard
deviation of a weight over the clients' models, averaged over each layer. confidence.png shows the
largest probability of right and wrong predictions on validation examples (id) and on the unseen
domain (ood), with the expected calibration error. numbers.json has all these numbers.
"""

import textwrap
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from fedjax_lab import tree
from fedjax_lab.analysis import finished
from fedjax_lab.analysis.figures.drawn import Drawn, recorded, rows_of
from fedjax_lab.analysis.finished import Finished
from fedjax_lab.running import plots
from fedjax_lab.simulation.client_work import client_federation, fetch

BINS = 15  # the number of bins of the calibration error


def draw(workdir: Path, *compared: Path, seed: int | None = None) -> Drawn:
    """The weights and embeddings that a run recorded, and its models beside those of other runs."""
    runs = {str(path): finished.load(path, seed) for path in (workdir, *compared)}
    rounds = recorded(rows_of(workdir, seed), "embedding")
    spread = {name: layer_spread(run) for name, run in runs.items()}
    answers = {name: {m: confidence(run, m) for m in tested(run)} for name, run in runs.items()}
    pictures = {"spread": draw_spread(spread)}
    if any(answers.values()):
        pictures["confidence"] = draw_confidence(answers)
    if rounds:
        weights = np.array([row["weight"] for row in rounds.values()])
        label = "weight of the client's gradient"
        pictures["weights"] = draw_clients(list(rounds), weights, label)
        pictures["embeddings"] = draw_embeddings(rounds)
    errors = {
        name: {m: calibration_error(*pair) for m, pair in measured.items()}
        for name, measured in answers.items()
    }
    numbers = {"spread": spread, "calibration_error": errors, "rounds": rounds}
    return Drawn(pictures, numbers)


def layer_spread(run: Finished) -> dict[str, float]:
    """The standard deviation over clients of a weight, averaged by layer; 0 for a shared model."""
    models = [run.model(i).params for i in range(run.num_clients)]
    deviation = jax.tree.map(lambda *a: np.std(np.stack(a), axis=0), *jax.device_get(models))
    sums: dict[str, list] = {}
    for name, a in zip(tree.names(deviation), jax.tree.leaves(deviation), strict=True):
        sums.setdefault(name.rpartition("/")[0], []).append(a.ravel())
    return {layer: float(np.concatenate(parts).mean()) for layer, parts in sums.items()}


def tested(run: Finished) -> dict[str, list]:
    """The example rows of each client on which `id` and `ood` are measured, if there are any."""
    rows = {}
    if run.federation.validation is not None:
        rows["id"] = list(run.federation.validation)
    if run.federation.unseen is not None:
        rows["ood"] = [run.federation.unseen] * run.num_clients
    return rows


def confidence(run: Finished, measure: str) -> tuple[np.ndarray, np.ndarray]:
    """The largest probability and whether the prediction is right, for all rows: [rows] each."""
    predict = jax.jit(partial(answers_of, run.method.predict))
    answers = []
    for i, rows in enumerate(tested(run)[measure]):
        client, message = run.client(i)
        federation = (
            client_federation(run.federation, client) if measure != "ood" else run.federation
        )
        batch = fetch(federation, rows[rows >= 0], run.plan)
        answers.append(jax.device_get(predict(message, client, batch.x, batch.y)))
    probability, right = (np.concatenate(part) for part in zip(*answers, strict=True))
    return probability, right


def answers_of(predict, message, client, x, y):
    """The largest probability [B], and whether it is that of the label [B]."""
    p = jax.nn.softmax(predict(message, client, x))
    return jnp.max(p, -1), jnp.argmax(p, -1) == y


def calibration_error(largest: np.ndarray, right: np.ndarray) -> float:
    """The expected calibration error: |accuracy - confidence| per bin, weighted by its size."""
    place = np.clip(np.ceil(np.asarray(largest) * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = [abs(right[place == b].mean() - largest[place == b].mean()) for b in np.unique(place)]
    return float(np.dot(gaps, [np.mean(place == b) for b in np.unique(place)]))


def draw_clients(rounds: list[int], values: np.ndarray, ylabel: str) -> Figure:
    """Draws values [rounds, C], with one line for each client."""
    curves = [(np.array(rounds), line[None]) for line in values.T]
    names = [f"client {i}" for i in range(len(curves))]
    return plots.draw_curves(curves, "round", ylabel, names)


@plots.in_style
def draw_embeddings(rounds: dict[int, dict]) -> Figure:
    """Draws the paths of the embeddings' first two numbers; a single number against the round."""
    nu = np.array([row["embedding"] for row in rounds.values()])  # [rounds, C, e]
    if nu.shape[2] == 1:
        return draw_clients(list(rounds), nu[:, :, 0], "embedding (no unit)")
    figure = Figure((6.0, 3.6), layout="constrained")
    axes = figure.subplots()
    lines = []
    for i, path in enumerate(nu.swapaxes(0, 1)):
        lines += axes.plot(path[:, 0], path[:, 1], linewidth=1.2, markersize=3, **plots.look(i))
        axes.plot(*path[-1, :2], markersize=9, **plots.look(i))
    axes.set(xlabel="First number of the embedding", ylabel="Second number of the embedding")
    plots.add_legend(figure, lines, [f"client {i}" for i in range(len(lines))])
    return figure


@plots.in_style
def draw_spread(spread: dict[str, dict[str, float]]) -> Figure:
    """Draws a row for each layer, with a point for each run."""
    longest = max(map(list, spread.values()), key=len)
    figure = Figure((6.0, 0.9 + 0.25 * len(longest)), layout="constrained")
    axes = figure.subplots()
    for i, layers in enumerate(spread.values()):
        axes.plot(list(layers.values()), range(len(layers)), linewidth=0.8, **plots.look(i))
    axes.set_yticks(range(len(longest)), longest, fontsize="small")
    axes.set_ylim(len(longest) - 0.5, -0.5)
    axes.set(xlabel="Standard deviation of a weight over clients", ylabel="Layer")
    plots.add_legend(figure, axes.lines, short(spread))
    return figure


@plots.in_style
def draw_confidence(answers: dict) -> Figure:
    """Draws histograms of the confidence: a row for each run, with id and ood side by side."""
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
    """Draws a histogram of the confidence of right and of wrong predictions."""
    parts = [largest[right], largest[~right]]
    axes.hist(parts, np.linspace(0, 1, 21), color=plots.CONTRAST, stacked=True)
    title = f"{name}: calibration error {calibration_error(largest, right):.3f}"
    axes.set_title("\n".join(textwrap.wrap(title, 40)))


def short(runs: dict) -> list[str]:
    """The last parts of the folders' paths if these are unique, else the full paths."""
    names = [Path(name).name for name in runs]
    return names if len(set(names)) == len(names) else list(runs)
