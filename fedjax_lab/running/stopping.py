"""Rules of a config that end a run before its last round: a patience, a target, a time limit.

The first two look at evaluations alone, so that a run that was interrupted ends after the same
round as one that was not.
"""

import time
from collections.abc import Mapping, Sequence

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import Experiment
from fedjax_lab.running import metrics

RULES = ("patience", "target", "max_seconds")  # keys of config.run


class Clock:
    """The time limit of a command, which begins to run when this is made."""

    def __init__(self, seconds: float):
        """0 is no limit."""
        self._end = time.monotonic() + seconds if seconds else None

    @property
    def runs(self) -> bool:
        """Whether there is a limit."""
        return self._end is not None

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end


def rule_met(experiment: Experiment, rows: Sequence[dict]) -> str:
    """The rule, "patience" or "target", by which these evaluations end the run; "" for none.

    A run of several seeds ends when each of them, if it had been run alone, would have ended. The
    rule is the one that the last of them has met. Of a method with stages only the last one counts,
    as the earlier ones are scored differently or not at all.
    """
    if not (experiment.config.run.patience or experiment.config.run.target):
        return ""
    last = experiment.simulation.stages[-1].name
    seeds = experiment.simulation.seeds
    of_stage = [row for row in rows if row.get("stage") == last]
    ends = [_end([row for row in of_stage if row["seed"] == s], experiment.config) for s in seeds]
    ended = [end for end in ends if end is not None]
    return max(ended)[1] if len(ended) == len(seeds) else ""


def _end(rows, config) -> tuple[int, str] | None:
    """After which round, and by which rule, a run of one seed ends; None if it goes on."""
    patience, target = config.run.patience, config.run.target
    best, without_better = float("-inf"), 0
    for row in rows:
        score = metrics.headline(row)
        if target and score is not None and score >= target:
            return row["round"], "target"
        if patience and "id" in row:
            without_better = 0 if row["id"] > best else without_better + 1
            best = max(best, row["id"])
            if without_better == patience:
                return row["round"], "patience"
    return None


def check_no_rule(config: Mapping) -> None:
    """BadInput where runs with this config may end after different rounds."""
    for rule in RULES:
        if config["run"][rule]:
            raise BadInput(f"each run may end after another round (config.run.{rule})")
