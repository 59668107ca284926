"""What an attack did to a run, and whom its aggregator left out.

python -m fedjax_lab.figures attack FOLDER [--seed=0]

--seed  the seed; default: the run's first seed

attack.png has the accuracy, the success of a backdoor and, with config.aggregator.excluded or an
aggregator that counts by itself, the precision and recall of the exclusion since the previous
evaluation: the share of attackers among those left out, and of those left out among attackers. The
rounds of the attack (config.attack.first and last) are shaded. numbers.json and the printed table
also have the accuracy of the worst honest client, if clients have test examples, and the durability
of the backdoor: how many rounds after the last attack its success was first at most half of what it
was then. The run need not be finished.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_lab import streams
from fedjax_lab.analysis import formats, runs
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import titles, transforming
from fedjax_lab.experiment.keys import DEFAULTS
from fedjax_lab.running import plots
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation import failures

SUCCESS = ("global_backdoor_success", "backdoor_success.mean")  # the first one that rows have


def draw(workdir: Path, *, seed: int | None = None) -> Drawn:
    """The picture, the numbers and the table of one seed of a run under attack."""
    run = runs.read(workdir)
    rows = [row for row in run.rows if row["seed"] == (run.seeds[0] if seed is None else seed)]
    if not rows:
        raise BadInput(f"{workdir} has no evaluation" + f" of seed {seed}" * (seed is not None))
    attack = {**DEFAULTS["attack"], **run.config.get("attack", {})}
    if attack["name"] == "none":
        raise BadInput(f"{workdir}: no client attacks in this run (config.attack.name)")
    rounds = np.array([row["round"] for row in rows])
    first, last = attack["first"], attack["last"] or run.config["run"]["rounds"]
    curves: dict[str, Any] = {"accuracy": _values(rows, ("global", "accuracy.mean"))}
    curves["success of the backdoor"] = _values(rows, SUCCESS)
    curves |= exclusion(rows)
    curves = {name: values for name, values in curves.items() if values is not None}
    numbers = {name: values.tolist() for name, values in curves.items()} | {
        "round": rounds.tolist(),
        "worst honest client": worst_honest(attack, rows),
        "durability": durability(rounds, curves.get("success of the backdoor"), last),
    }
    title = titles.run_title(run.config)
    picture = plots.draw_curves(
        [(rounds, values[None]) for values in curves.values()], "round", "%", [*curves], title
    )
    picture.axes[0].axvspan(first - 1, last, color=plots.GRID, alpha=0.4, linewidth=0)
    return Drawn({"attack": picture}, numbers, _table(numbers, title, last))


def exclusion(rows: Sequence[dict]) -> dict[str, np.ndarray]:
    """Precision and recall in percent of whom the aggregator left out; {} if it was not counted.

    They are those since the previous row, and nan where nobody was left out, or nobody attacked.
    """
    if any("excluded" not in row.get("recorded", {}) for row in rows):
        return {}
    names = ("excluded_attacks", "excluded", "attacked")
    counts = [[np.sum(row["recorded"][name]) for name in names] for row in rows]
    both, excluded, attacked = np.diff(np.array(counts, float), axis=0, prepend=0).T
    with np.errstate(invalid="ignore"):
        return {"precision": 100 * both / excluded, "recall": 100 * both / attacked}


def durability(rounds: np.ndarray, success: np.ndarray | None, last: int) -> int | None:
    """Rounds after the last attack until half of a backdoor's success is gone; None: never.

    rounds: of the evaluations. success: in percent, at these rounds. last: the last round with an
    attack.
    """
    if success is None or not np.any(rounds <= last):
        return None
    before = success[rounds <= last][-1]
    gone = rounds[(rounds > last) & (success <= before / 2)]
    return int(gone[0] - last) if len(gone) else None


def worst_honest(attack: Mapping, rows: Sequence[dict]) -> float | None:
    """The lowest accuracy in the last row of a client that never attacks; None without such."""
    each = rows[-1].get("accuracy", {}).get("per_client")
    who = transforming.attackers(attack)
    who = who if isinstance(who, failures.Attackers) else failures.Attackers(who)
    if each is None or who.per_round:
        return None
    keys = streams.make_keys(jax.random.key(rows[-1]["seed"]))
    attacks = np.asarray(failures.always(who, keys.cohort, len(each)))
    honest = [v for v, bad in zip(each, attacks, strict=True) if not bad and v is not None]
    return min(honest, default=None)


def _values(rows, measures):
    """The values of the first of the measures that all rows have; None if there is none."""
    for measure in measures:
        if all(measure.partition(".")[0] in row for row in rows):
            return np.array([metric_rows.value_of(row, measure) for row in rows], float)
    return None


def _table(numbers, title, last):
    every = [name for name, values in numbers.items() if isinstance(values, list)]
    cells = [[name, f"{numbers[name][-1]:.1f}"] for name in every if name != "round"]
    if (worst := numbers["worst honest client"]) is not None:
        cells.append(["accuracy of the worst honest client", f"{worst:.1f}"])
    if "success of the backdoor" in numbers:
        rounds, gone = numbers["durability"], numbers["round"][-1] - last
        words = f"more than {gone}" if rounds is None else str(rounds)
        cells.append(["rounds until half of the success is gone", words if gone > 0 else "-"])
    return formats.terminal(formats.Table(title, ["after the last round", "value"], cells))
