"""The rules of a config that end a run before its last round: patience, target and time limit.

The first two depend on the evaluations only, so that an interrupted and resumed run ends after the
same round as an uninterrupted one.
"""

import math
import time
from collections.abc import Mapping, Sequence

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.running.storage import metric_rows

RULES = ("patience", "target", "max_seconds")  # keys of config.run


def deadline(seconds: float) -> float:
    """The end of a time limit that begins now, for `is_past`; 0 seconds: no limit."""
    return time.monotonic() + seconds if seconds else math.inf


def is_past(end: float) -> bool:
    """Whether the time is up."""
    return time.monotonic() >= end


def rule_met(experiment: Experiment, rows: Sequence[dict]) -> str:
    """The rule that ends the run after these evaluations, "patience" or "target"; "" for none.

    A run with several seeds ends once each seed would have ended if run alone. The returned rule is
    the one that the last of these seeds has met. For a method with stages, only the last stage
    counts, because earlier stages are scored differently or not at all.
    """
    if not (experiment.config.run.patience or experiment.config.run.target):
        return ""
    last = experiment.simulation.stages[-1].name
    seeds = experiment.simulation.seed_numbers
    of_stage = [row for row in rows if row.get("stage") == last]
    ends = [_end([row for row in of_stage if row["seed"] == s], experiment.config) for s in seeds]
    ended = [end for end in ends if end is not None]
    return max(ended)[1] if len(ended) == len(seeds) else ""


def _end(rows, config) -> tuple[int, str] | None:
    """The round and the rule with which a run of one seed ends; None if it continues."""
    patience, target = config.run.patience, config.run.target
    best, without_better = float("-inf"), 0
    for row in rows:
        if target and _is_reached(target, row):
            return row["round"], "target"
        if patience and (measure := metric_rows.validation_measure(row)):
            score = metric_rows.gain(measure, row[measure])
            without_better = 0 if score > best else without_better + 1
            best = max(best, score)
            if without_better == patience:
                return row["round"], "patience"
    return None


def _is_reached(target, row):
    """Whether the headline measure of an evaluation is as good as the target."""
    measure = metric_rows.headline_measure(row)
    if measure is None:
        return False
    value = metric_rows.value_of(row, measure)
    return metric_rows.gain(measure, value) >= metric_rows.gain(measure, target)


def check_no_rule(config: Mapping) -> None:
    """Raises BadInput if runs with this config may end after different rounds."""
    for rule in RULES:
        if config["run"][rule]:
            raise BadInput(f"the runs may end after different rounds (config.run.{rule})")
