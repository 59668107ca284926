"""Computes the numbers of a comparison: means, confidence intervals, paired tests and costs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_lab.analysis.runs import Block, Row, measured, measures, picked
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation.units import HEADLINES, is_percent

LEVEL = 0.05  # the significance level
EXACT_PAIRS = 12  # up to this many pairs, all signs of the differences are enumerated


class Spread(NamedTuple):
    """Statistics of n values; None for a statistic that needs more values."""

    n: int = 0
    mean: float | None = None
    std: float | None = None
    low: float | None = None  # bounds of the 95 % interval of the mean, by Student's t
    high: float | None = None


class Paired(NamedTuple):
    """A row minus the baseline, paired by seed; p-values are two-sided, None if undefined."""

    difference: Spread
    t: float | None  # p-value of the t-test
    wilcoxon: float | None  # p-value of Wilcoxon's signed-rank test
    t_holm: float | None = None  # with Holm's correction for the rows of the block
    wilcoxon_holm: float | None = None


class Cost(NamedTuple):
    """Mean costs over seeds: bytes that all clients sent and received; seconds of training."""

    rounds: float
    bytes: float
    seconds: float
    virtual_seconds: float | None = None  # None: the run has no clock

    @property
    def megabytes(self) -> float:
        """The bytes in units of 10^6."""
        return self.bytes / 1e6


class Pace(NamedTuple):
    """Seconds per round of one seed between evaluations; see `metric_rows.pace`.

    `flops` is the mean over seeds of the operations of a whole run; None if a run has no count.
    """

    seconds: float  # the median
    low: float  # the lower quartile
    high: float  # the upper quartile
    flops: float | None


class Goal(NamedTuple):
    """The seeds that reached a target, and the mean cost until then."""

    reached: int  # the number of seeds that reached it
    n: int  # the number of seeds
    cost: Cost | None  # None unless every seed has reached it


class Privacy(NamedTuple):
    """The privacy guarantee of a row in the chosen round: the weakest one of its seeds."""

    epsilon: float  # may be infinite
    delta: float | None  # None if epsilon is infinite


class Entry(NamedTuple):
    """The numbers of a row."""

    row: Row
    measures: dict[str, Spread]
    values: dict[int, float]  # the chosen measure, by seed
    paired: Paired | None  # None for the baseline, and if there is no baseline
    cost: Cost
    pace: Pace
    goal: Goal | None  # None if there is no target
    privacy: Privacy | None = None  # None: its runs are not private

    def spread(self, measure: str) -> Spread:
        """The statistics of a measure; those of no values if the row does not have it."""
        return self.measures.get(measure, Spread())


def choose(blocks: Sequence[Block], way: str, wanted: str | None) -> str:
    """The measure to compare by: `wanted`, or else the first of HEADLINES that a run has.

    way: the way of choosing a round. Raises BadInput if no run has the measure or supports the way.
    """
    names = _measured_by(blocks, way)
    if not names:
        raise BadInput(f"no run supports --way={way}; choose another --way")
    if wanted is None:
        return next(name for name in HEADLINES if name in names)
    if wanted not in names:
        raise BadInput(f"no run has a measure {wanted!r}; {nearest(wanted, names)}")
    return wanted


def _measured_by(blocks, way):
    rows = [row for block in blocks for row in block.rows]
    return {name for row in rows for seed in measured(row, way).values() for name in seed}


def without(blocks: Sequence[Block], way: str, measure: str) -> list[str]:
    """Notes on blocks, such as those of another task, none of whose runs has the measure."""
    named = ((block.title, _measured_by([block], way)) for block in blocks)
    return [
        f"{name}: no run has {measure}; compare its runs with --measure={headline}"
        for name, names in named
        if measure not in names
        and (headline := next((each for each in HEADLINES if each in names), None))
    ]


def entries(
    block: Block,
    way: str,
    measure: str,
    baseline: str | None,
    target: float | None,
    ddof: int = 1,
    lower_is_better: bool = False,
) -> list[Entry]:
    """The numbers of each row of a block.

    Args:
      block: the block.
      way: the way of choosing a round, see `metric_rows.pick_rounds`.
      measure: the measure that is compared.
      baseline: the name of the row that others are compared with; None: no tests.
      target: the value of the measure to reach; None: no target.
      ddof: the delta degrees of freedom of every standard deviation.
      lower_is_better: whether lower values of the measure are better.
    """
    scores = {row.name: measured(row, way) for row in block.rows}
    values = {
        name: {seed: m[measure] for seed, m in seeds.items() if measure in m}
        for name, seeds in scores.items()
    }
    pairs = {} if baseline is None else _pairs(values, baseline, ddof)
    return [
        Entry(
            row=row,
            measures=_spreads(scores[row.name], ddof),
            values=values[row.name],
            paired=pairs.get(row.name),
            cost=_cost([rows[-1] for rows in row.seeds.values()]),
            pace=_pace(row),
            goal=None if target is None else goal(row, measure, target, lower_is_better),
            privacy=privacy(list(picked(row, way).values())),
        )
        for row in block.rows
    ]


def _pairs(values: dict[str, dict[int, float]], baseline: str, ddof: int) -> dict[str, Paired]:
    """Every other row compared with the baseline, with p-values corrected by Holm's method."""
    others = [name for name in values if name != baseline]
    pairs = [paired(values[name], values[baseline], ddof) for name in others]
    t = holm([pair.t for pair in pairs])
    wilcoxon = holm([pair.wilcoxon for pair in pairs])
    return {
        name: pair._replace(t_holm=p, wilcoxon_holm=q)
        for name, pair, p, q in zip(others, pairs, t, wilcoxon, strict=True)
    }


def _spreads(scores, ddof):
    names = dict.fromkeys(name for seed in scores.values() for name in seed)
    each = {n: spread([m[n] for m in scores.values() if n in m], ddof) for n in names}
    return {n: _within_percent(of) if is_percent(n) else of for n, of in each.items()}


def _within_percent(spread):
    """The statistics of a percentage, whose interval ends at 0 and at 100."""
    ends = (end and min(max(end, 0.0), 100.0) for end in (spread.low, spread.high))
    return spread._replace(**dict(zip(("low", "high"), ends, strict=True)))


def spread(values: Sequence[float], ddof: int = 1) -> Spread:
    """Mean, standard deviation and Student's 95 % interval of values.

    ddof: for the standard deviation; the interval always uses that of the sample (ddof=1).
    """
    from scipy import stats

    n = len(values)
    mean = float(np.mean(values)) if n else None
    if mean is None or n == 1:
        return Spread(n, mean)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
    return Spread(n, mean, float(np.std(values, ddof=ddof)), mean - half, mean + half)


def paired(ours: dict[int, float], theirs: dict[int, float], ddof: int = 1) -> Paired:
    """Paired differences `ours` - `theirs` over the seeds that both have, with tests.

    Wilcoxon's test is exact for up to EXACT_PAIRS pairs, also with ties. If all of two or more
    differences are zero, both p-values are 1, so that Holm's correction counts the comparison.
    """
    from scipy import stats

    shared = sorted(ours.keys() & theirs.keys())
    d = np.round([ours[seed] - theirs[seed] for seed in shared], 9)  # so that ties stay ties
    difference = spread(d.tolist(), ddof)
    if len(d) < 2:
        return Paired(difference, None, None)
    if not d.any():
        return Paired(difference, 1.0, 1.0)
    t = float(stats.ttest_1samp(d, 0.0).pvalue) if np.ptp(d) else None
    other = d[d != 0]
    every = stats.PermutationMethod(n_resamples=np.inf)
    method = every if 1 < len(other) <= EXACT_PAIRS else "auto"
    return Paired(difference, t, float(stats.wilcoxon(other, method=method).pvalue))


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Corrects p-values by Holm's step-down method (1979); None values are ignored."""
    ascending = sorted((value, i) for i, value in enumerate(p) if value is not None)
    out: list[float | None] = [None] * len(p)
    largest = 0.0
    for rank, (value, i) in enumerate(ascending):
        largest = max(largest, min(1.0, (len(ascending) - rank) * value))
        out[i] = largest
    return out


def goal(row: Row, measure: str, target: float, lower_is_better: bool = False) -> Goal:
    """The seeds of a row that reached `target` in their last stage, and the cost until then."""
    sign = -1 if lower_is_better else 1
    reached = []
    for rows in row.seeds.values():
        last = [r for r in rows if r.get("stage") == rows[-1].get("stage")]
        values = [sign * measures(r).get(measure, -sign * np.inf) for r in last]
        reached += [r for r, value in zip(last, values, strict=True) if value >= sign * target][:1]
    every = len(reached) == len(row.seeds)
    return Goal(len(reached), len(row.seeds), _cost(reached) if every else None)


def privacy(evaluations: Sequence[dict]) -> Privacy | None:
    """The weakest privacy guarantee of these evaluations; None if they have none."""
    promises = [
        Privacy(np.inf if row["epsilon"] is None else row["epsilon"], row.get("delta"))
        for row in evaluations
        if "epsilon" in row
    ]
    return max(promises, key=lambda promise: promise.epsilon, default=None)


def _cost(rows):
    sums = [(r["round"], r["bytes_up"] + r["bytes_down"], r["seconds"]) for r in rows]
    virtual = [r.get("virtual_seconds") for r in rows]
    of_clock = [] if None in virtual else [float(np.mean(virtual))]
    return Cost(*np.mean(sums, 0).tolist(), *of_clock)


def _pace(row):
    of_runs = ([r for r in run.rows if r["seed"] == run.seeds[0]] for run in row.runs)
    pairs = [pair for rows in of_runs if rows for pair in metric_rows.intervals(rows)]
    seconds = [metric_rows.seconds_of_round(*pair) for pair in pairs]
    low, median, high = np.percentile(seconds, (25, 50, 75)).tolist()
    made = [rows[-1].get("flops") for rows in row.seeds.values()]
    flops = None if None in made else float(np.mean(made))
    return Pace(median, low, high, flops)


def find_baseline(blocks: Sequence[Block], wanted: str | None) -> list[str | None]:
    """The name of the baseline row in each block; None in a block without a unique one.

    wanted: the name or title of a row, or a method that only one row of a block has; None: fedavg.

    Raises BadInput if no block has a wanted row, or if several rows of a block match it.
    """
    out = []
    for block in blocks:
        name = wanted or "fedavg"
        of_method = [row.name for row in block.rows if row.method == name]
        exact = [row.name for row in block.rows if name in (row.name, row.title)]
        if wanted and not exact and len(of_method) > 1:
            raise BadInput(f"--baseline={wanted} could be {' or '.join(map(repr, of_method))}")
        matches = exact[:1] or of_method
        out.append(matches[0] if len(matches) == 1 else None)
    if wanted and not any(out):
        names = {row.name for block in blocks for row in block.rows}
        raise BadInput(f"no row {wanted!r} for --baseline; {nearest(wanted, names)}")
    return out
