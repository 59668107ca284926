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
from functools import partial
from pathlib import Path

import finished
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from fedjax_lab import metrics, tree
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
        figure.savefig(args.out / f"{name}.png", dpi=120)
        print(args.out / f"{name}.png")


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
        batch = fetch(run.federation, rows[rows >= 0], run.experiment.plan)
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
    figure, axes = panel("round", "weight")
    weights = np.array([row["weight"] for row in rounds.values()])
    for i, line in enumerate(weights.T):
        axes.plot(list(rounds), line, marker=".", label=f"client {i}")
    axes.legend(fontsize="small")
    return figure


def draw_embeddings(rounds: dict[int, dict]) -> Figure:
    """Paths of the embeddings' first two numbers; of one number, against the round."""
    nu = np.array([row["embedding"] for row in rounds.values()])  # [rounds, C, e]
    plane = nu.shape[2] > 1
    figure, axes = panel("first number" if plane else "round", "second" if plane else "embedding")
    for i in range(nu.shape[1]):
        x, y = (nu[:, i, 0], nu[:, i, 1]) if plane else (list(rounds), nu[:, i, 0])
        axes.plot(x, y, marker=".", label=f"client {i}")
        axes.plot(x[-1], y[-1], marker="o", color=axes.lines[-1].get_color())
    axes.legend(fontsize="small")
    return figure


def draw_spread(spread: dict[str, dict[str, float]]) -> Figure:
    """One line for each run over its layers."""
    figure, axes = panel("layer", "deviation over clients")
    for name, layers in spread.items():
        axes.plot(range(len(layers)), list(layers.values()), marker="o", label=name)
    longest = max(spread.values(), key=len)
    axes.set_xticks(range(len(longest)), list(longest), rotation=60, ha="right", fontsize="small")
    axes.legend(fontsize="small")
    return figure


def draw_confidence(answers: dict) -> Figure:
    """Histograms: a row for each run, id and ood side by side."""
    measures = sorted({m for measured in answers.values() for m in measured})
    figure = Figure(figsize=(4 * len(measures), 2.8 * len(answers)), layout="constrained")
    panels = figure.subplots(len(answers), len(measures), squeeze=False)
    for row, (name, measured) in zip(panels, answers.items(), strict=True):
        for axes, m in zip(row, measures, strict=True):
            if m not in measured:
                continue
            largest, right = measured[m]
            parts = [largest[right], largest[~right]]
            axes.hist(parts, np.linspace(0, 1, 21), label=["right", "wrong"], stacked=True)
            error = calibration_error(largest, right)
            axes.set(title=f"{name}: {m}\ncalibration error {error:.3f}", xlabel="confidence")
            axes.legend(fontsize="small")
        row[0].set_ylabel("answers")
    return figure


def panel(xlabel: str, ylabel: str):
    """An empty picture."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


if __name__ == "__main__":
    main()
