"""Reading, writing and summarizing a run's config.json, metrics.jsonl and summary.json."""

import functools
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_lab.data import writing
from fedjax_lab.data.writing import replace
from fedjax_lab.errors import MACHINE, BadInput
from fedjax_lab.running.storage import cloud, files
from fedjax_lab.simulation.units import (
    FORMS,
    HEADLINE_METRICS,
    LOWER_IS_BETTER,
    NO_MEASURES,
    PER_CLIENT,
    TESTED,
    measure_of,
    metric_of,
)

TAGS = {
    "train_loss": "train/loss",
    "bytes_up": "bytes/up",
    "bytes_down": "bytes/down",
    "virtual_seconds": "time/virtual_seconds",
    "epsilon": "privacy/epsilon",
}


def make_folder(path: Path) -> None:
    """Creates a folder and its parents. Raises BadInput on failure, or for a path in the cloud."""
    cloud.check_local("the folder", path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in MACHINE:
            raise
        raise BadInput(f"cannot create the folder {path}: {error.strerror}") from error


def write_json(path: Path, content: dict) -> None:
    """Writes a JSON file, atomically (see `writing`)."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file, atomically (see `writing`)."""
    replace(path, text.encode())


def read_metrics(path: Path) -> list[dict]:
    """Reads the evaluations of a metrics.jsonl, without a last line that a kill has cut off.

    Rows that a later version of the package has added may have more measurements.

    Raises files.Damaged if a line is not an evaluation, does not come after the earlier lines of
    its seed, or lacks measurements that an earlier line of its stage and seed has.
    """
    rows = files.read_rows(path, files.EVALUATION)
    newest: dict[int, dict] = {}  # the newest row of each seed
    for number, row in enumerate(rows, 1):
        before = newest.get(row["seed"], {"round": 0})
        if row["round"] <= before["round"]:
            raise _out_of_order(path, number, row)
        newest[row["seed"]] = row
        if row.get("stage") == before.get("stage") and not _measures_as(before, row):
            raise files.Damaged(
                f"{path} cannot be used: for seed {row['seed']}, round {row['round']} does not have"
                f" the measurements of round {before['round']}, which is of the same stage"
            )
    return rows


def _out_of_order(path, number, row):
    return files.Damaged(
        f"{path} cannot be used: row {number} is of round {row['round']} and seed {row['seed']},"
        " which is a duplicate or out of order"
    )


def _measures_as(before, row):
    """Whether a row has all measurements of the row before it, of as many clients."""
    (names, clients), (names_now, clients_now) = _layout(before), _layout(row)
    return names <= names_now and clients in (0, clients_now)


def _layout(row):
    """The names of the headline metric's measurements, and the number of clients measured.

    Other metrics may change when a run is resumed.
    """
    metric = metric_of(headline_measure(row) or "accuracy")
    keys = (metric, *(measure_of(metric, form) for form in FORMS))
    scores = {key: row[key] for key in keys if key in row}
    of_clients = scores.get(metric)
    clients = len(of_clients.get("per_client", ())) if isinstance(of_clients, dict) else 0
    return flatten_dict(scores).keys(), clients


def verified(path: Path, expected: Sequence[tuple[int, int]], saved: int) -> list[dict]:
    """Reads the rows of the first `saved` rounds, checking that all rows are those of a run.

    Args:
      path: a metrics.jsonl; if it does not exist, there are no rows.
      expected: round and seed of each row that the whole run writes, in the order of the file.
      saved: the number of rounds of a checkpoint.

    Raises BadInput if a line is invalid, a duplicate or out of order, or if one is missing.
    """
    rows = read_metrics(path)
    for number, row in enumerate(rows, 1):
        if (row["round"], row["seed"]) not in expected[number - 1 : number]:
            raise _out_of_order(path, number, row)
    needed = sum(rounds <= saved for rounds, _ in expected)
    if len(rows) < needed:
        raise BadInput(
            f"{path} lacks round {expected[len(rows)][0]}, which checkpoint {saved} has; delete the"
            " folder checkpoints to restart the run from round 1"
        )
    return rows[:needed]


def keep_until(path: Path, rounds: int) -> None:
    """Removes evaluations after more than `rounds` rounds from a verified metrics.jsonl.

    The remaining lines keep every byte.
    """
    content, kept = files.read_bytes(path) or b"", []
    for line in filter(bytes.strip, content.split(b"\n")):
        try:
            if json.loads(line)["round"] > rounds:
                break
        except ValueError:  # the last line, cut off by a kill
            break
        kept.append(line + b"\n")
    if (cut := b"".join(kept)) != content:
        replace(path, cut)


def append(path: Path, rows: list[dict]) -> None:
    """Appends one JSON object per line: all of them, or none after an error."""
    writing.append(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def headline_measure(row: dict, metrics: Iterable[str] = HEADLINE_METRICS) -> str | None:
    """The headline measure of an evaluation; None in a stage that is not scored.

    It is that of the first of the metrics that exists: the accuracy or, in a task without one, the
    RMSE or the loss; the mean over clients if there is one, else the value on the global test set,
    else on the unseen domain, else on validation examples.
    """
    each = (measure_of(metric, form) for metric in metrics for form in (*TESTED, "id"))
    return next((measure for measure in each if measure.partition(".")[0] in row), None)


def value_of(row: dict, measure: str) -> float:
    """The value of a measure of an evaluation, such as "accuracy.mean" or "global"."""
    key, _, part = measure.partition(".")
    return row[key][part] if part else row[key]


def headline(row: dict) -> float | None:
    """The value of the headline measure of an evaluation, an accuracy in percent if it has one."""
    measure = headline_measure(row)
    return None if measure is None else value_of(row, measure)


def validation_measure(row: dict) -> str | None:
    """The measure on validation examples by which rounds are chosen; None if there is none."""
    each = (measure_of(metric, "id") for metric in HEADLINE_METRICS)
    return next((measure for measure in each if measure in row), None)


def gain(measure: str, value: float | None) -> float:
    """The value, negated if lower values of the measure are better; None counts as the worst."""
    if value is None:
        return -math.inf
    return -value if metric_of(measure) in LOWER_IS_BETTER else value


def pick_rounds(rows: list[dict]) -> dict[str, dict]:
    """The evaluation of one seed that each way of choosing a round selects, by the way's name.

    Only evaluations of the last stage reached are considered. The two maxima choose by test
    accuracy if there is a test set. In a task without an accuracy, the best round is the one with
    the lowest RMSE or loss.
    """
    rows = [row for row in rows if row.get("stage") == rows[-1].get("stage")]
    chosen = {"last": rows[-1]}
    for way, measure in (
        ("best_by_validation", validation_measure(rows[0])),
        ("max_over_rounds", headline_measure(rows[0])),
    ):
        scored = [row for row in rows if measure and value_of(row, measure) is not None]
        if scored:
            by = functools.partial(_gain_of, measure)
            chosen[way] = max(scored, key=by)
    if all("domains" in row and row.get("accuracy", {}).get("per_client") for row in rows):
        chosen["max_per_domain"] = _max_per_domain(rows)
    return chosen


def _gain_of(measure, row):
    return gain(measure, value_of(row, measure))


def _max_per_domain(rows):
    domains = {name: max(row["domains"][name] for row in rows) for name in rows[0]["domains"]}
    clients = zip(*(row["accuracy"]["per_client"] for row in rows), strict=True)
    best = [max(values) for values in clients if None not in values]
    mean = {"accuracy": {"mean": float(np.mean(best))}} if best else {}
    return {"domains": domains, **mean}


def summarize(rows: list[dict], seeds: list[int]) -> dict:
    """The numbers of a run by the way of choosing a round: per seed, and mean and std over seeds.

    The ways are `last`, `best_by_validation` and two maxima. `max_over_rounds` is the round whose
    headline accuracy is highest, and all its numbers are those of this round. `max_per_domain`
    takes the maximum over rounds for each domain separately; its mean averages the maximum of each
    client. The std is the sample standard deviation, stored with its ddof; both are absent for one
    seed. Where a task has an accuracy, rounds are chosen by
    it, never by the loss or another metric.
    """
    per_seed = {seed: pick_rounds([row for row in rows if row["seed"] == seed]) for seed in seeds}
    out = {}
    for way in next(iter(per_seed.values())):
        chosen = {str(seed): _numbers(per_seed[seed][way]) for seed in seeds}
        out[way] = {"per_seed": chosen, "mean": _over_seeds(chosen, np.mean)}
        if len(seeds) > 1:
            out[way]["std"] = _over_seeds(chosen, lambda a: np.std(a, ddof=1))
            out[way]["ddof"] = 1
    return out


def _numbers(row):
    out = {key: row[key] for key in ("round", "train_loss", "epsilon") if key in row}
    return out | numbers(row)


def numbers(row: dict) -> dict[str, Any]:
    """The measurements of an evaluation, without the values of single clients."""
    out = {}
    for key, value in row.items():
        if key in NO_MEASURES or key.endswith(PER_CLIENT):
            continue
        if isinstance(value, dict):
            value = {k: v for k, v in value.items() if k != "per_client"}
        out[key] = value
    return out


def tagged(row: dict) -> dict[str, float]:
    """{tag: value} of an evaluation for loggers: metrics, training loss, bytes and epsilon.

    Tags are accuracy/mean, accuracy/global, domains/a; loss/mean, loss/global, domains_loss/a; ...
    Values that are not finite numbers are omitted.
    """
    tags: dict[str, Any] = {}
    for key, value in numbers(row).items():
        metric = metric_of(key)
        if isinstance(value, dict):
            tags |= {f"{key}/{name}": each for name, each in value.items()}
        else:
            tags[f"{metric}/{key.removesuffix(f'_{metric}')}"] = value
    tags |= {tag: row[key] for key, tag in TAGS.items() if key in row}
    return {tag: value for tag, value in tags.items() if files.NUMBER.fits(value)}


def _over_seeds(chosen, statistic):
    rows = list(chosen.values())

    def merge(values):
        if isinstance(values[0], dict):
            shared = [key for key in values[0] if all(key in v for v in values)]
            return {key: merge([v[key] for v in values]) for key in shared}
        return None if None in values else float(statistic(values))

    return merge(rows)


def pace(rows: list[dict], seeds: list[int]) -> dict[str, Any]:
    """Seconds per round, number of floating-point operations, and operations per second.

    They are measured over the intervals between evaluations. The first interval of a stage is a
    warm-up, which is left out if the stage has others. `round_seconds` holds, for one seed, the
    median and the quartiles over the intervals, and the number of intervals. `flops` is the sum
    over all seeds; None if a row lacks it.
    """
    pairs = intervals([row for row in rows if row["seed"] == seeds[0]])
    paces = [seconds_of_round(a, b) for a, b in pairs]
    low, median, high = np.percentile(np.array(paces) / len(seeds), (25, 50, 75)).tolist()
    made = [row.get("flops") for row in rows if row["round"] == rows[-1]["round"]]
    rate = None
    if None not in made:
        later = sum(b["flops"] - a.get("flops", 0.0) for a, b in pairs)
        seconds = sum(b["seconds"] - a["seconds"] for a, b in pairs)
        rate = len(seeds) * later / seconds if seconds else None
    return {
        "round_seconds": {"median": median, "low": low, "high": high, "intervals": len(paces)},
        "flops": None if None in made else sum(made),
        "flops_per_second": rate,
    }


def seconds_of_round(before: dict, after: dict) -> float:
    """The mean seconds per round between two evaluations."""
    return (after["seconds"] - before["seconds"]) / (after["round"] - before["round"])


def intervals(rows: Sequence[dict]) -> list[tuple[dict, dict]]:
    """Pairs of successive evaluations of one seed; the first pair begins at the start of the run.

    The first pair of a stage is a warm-up, which is left out if the stage has others.
    """
    start = {"round": 0, "seconds": 0.0, "stage": rows[0].get("stage")}
    out = []
    pairs = list(itertools.pairwise([start, *rows]))
    for _, of_stage in itertools.groupby(pairs, lambda pair: pair[1].get("stage")):
        warm_up, *others = of_stage
        out += others or [warm_up]
    return out
