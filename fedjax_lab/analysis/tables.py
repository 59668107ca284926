"""Writes a comparison as tables and as CSV."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fedjax_lab.analysis import formats, runs
from fedjax_lab.analysis.compare import Cost, Entry, Privacy, Spread
from fedjax_lab.analysis.formats import NONE, Table
from fedjax_lab.analysis.runs import Block, shown
from fedjax_lab.simulation.units import LOWER_IS_BETTER, ONE_NUMBER, is_percent, metric_of

WAYS = {
    "last": "last round",
    "best_by_validation": "best by validation",
    "max_over_rounds": "max over rounds",
    "max_per_domain": "max per domain",
}
MEASURES = {
    "accuracy.mean": "mean over clients",
    "accuracy.worst10": "worst 10 % of clients",
    "global": "global test set",
    "id": "validation (id)",
    "ood": "unseen domain (ood)",
    "new": "new clients",
    "new_tuned": "new clients, tuned",
}
_SHORT = {
    "accuracy.mean": "accuracy",
    "accuracy.worst10": "worst 10 %",
    "global": "global",
    "id": "id",
    "ood": "ood",
    "new": "new",
    "new_tuned": "new, tuned",
}


class Choice(NamedTuple):
    """What a comparison shows, and how."""

    way: str  # of choosing a round, one of WAYS
    measure: str
    target: float | None  # the value of the measure for time-to-target numbers
    ddof: int  # of standard deviations
    bold: bool = False  # whether the best mean of each column is bold, except in the terminal
    lower_is_better: Collection[str] = LOWER_IS_BETTER  # the metrics for which lower is better


class Section(NamedTuple):
    """A block with its numbers."""

    block: Block
    baseline: str | None
    entries: list[Entry]


def subtitle(sections: Sequence[Section], choice: Choice) -> str:
    """A line that explains the numbers of the tables."""
    entries = [entry for section in sections for entry in section.entries]
    peeks = any(runs.peeks(choice.way, entry.measures) for entry in entries)
    peek = " (chosen on the test set itself)" if peeks else ""
    kind = "sample" if choice.ddof else "population"
    metric = metric_of(choice.measure)
    what = "" if metric == "accuracy" else f", {choice.measure}"
    if metric in choice.lower_is_better:
        what += " (lower is better)"
    return (
        f"accuracies in percent{what}, {WAYS[choice.way]}{peek}; mean +- {kind} standard deviation"
        f" (ddof {choice.ddof}) over n seeds; 95 % intervals by Student's t"
    )


def tables(section: Section, choice: Choice) -> list[Table]:
    """The tables of a section: the comparison, and if available the differences to the baseline,
    the domains, other metrics and costs. `label` identifies each; it is empty for the first."""
    metric = metric_of(choice.measure)
    prefix = "domains." if metric == "accuracy" else f"domains_{metric}."
    made = {"": _compared(section, choice, metric)}
    if section.baseline:
        made["differences"] = _paired(section, choice)
    if _shared(section, prefix):
        made["domains"] = _domains(section, choice, metric, prefix)
    if others := [m for name, m in runs.headlines(_shared(section)).items() if name != metric]:
        made["metrics"] = _others(section, choice, others)
    made["costs"] = _costs(section, choice)
    return [table._replace(label=label) for label, table in made.items()]


def _compared(section, choice, metric):
    forms = _SHORT
    if metric != "accuracy":
        measured = [f"{metric}.mean", f"{metric}.worst10"]
        measured += [f"{form}_{metric}" for form in ONE_NUMBER]
        forms = dict(zip(measured, [metric, *list(_SHORT.values())[1:]], strict=True))
    others = [m for m in forms if m in _shared(section) and m != choice.measure]
    head = forms.get(choice.measure, choice.measure)
    header = ["", "n", head, "95 % interval", *(forms[m] for m in others)]
    cells = []
    for entry in section.entries:
        main = entry.measures.get(
            choice.measure, Spread(n=0, mean=None, std=None, low=None, high=None)
        )
        places = digits(choice.measure)
        rest = [spread_text(entry.measures.get(m), places) for m in others]
        numbers = [spread_text(main, places), _interval(main, places)]
        cells.append([entry.row.name, str(main.n), *numbers, *rest])
    if any(entry.privacy for entry in section.entries):
        header.append("epsilon (delta)")
        cells = [[*c, privacy_text(e.privacy)] for c, e in zip(cells, section.entries, strict=True)]
    measures = dict(enumerate([choice.measure, None, *others], 2))
    return Table(
        f"{with_unit(metric)}, {WAYS[choice.way]}", header, cells, _bold(section, choice, measures)
    )


def _bold(section, choice, measures):
    return best(section.entries, measures, choice.lower_is_better) if choice.bold else ()


def with_unit(measure: str) -> str:
    """The name of a measure or metric, followed by "%" if it is in percent."""
    return f"{measure}, %" if is_percent(measure) else measure


def digits(measure: str) -> int:
    """The number of decimal places with which a measure is shown."""
    return 2 if is_percent(measure) else 4


def _paired(section, choice):
    header = ["", "pairs", "difference", "95 % interval", "p (t)", "Holm", "p (Wilcoxon)", "Holm"]
    cells = []
    for entry in section.entries:
        if entry.paired is None:
            continue
        d, p = entry.paired.difference, entry.paired
        tests = [_p(x) for x in (p.t, p.t_holm, p.wilcoxon, p.wilcoxon_holm)]
        places = digits(choice.measure)
        numbers = [spread_text(d, places), _interval(d, places)]
        cells.append([entry.row.name, str(d.n), *numbers, *tests])
    title = f"{choice.measure}, {WAYS[choice.way]}: row minus {section.baseline}, seed by seed"
    return Table(title, header, cells)


def _domains(section, choice, metric, prefix):
    names = _shared(section, prefix)
    header = ["", *(shown(m.removeprefix(prefix)) for m in names)]
    unit = ", %" if is_percent(metric) else ""
    title = f"{metric} by domain{unit}, {WAYS[choice.way]}"
    return _columns(section, choice, names, title, header)


def _others(section, choice, names):
    header = ["", *(with_unit(shown(m)) for m in names)]
    return _columns(section, choice, names, f"other metrics, {WAYS[choice.way]}", header)


def _columns(section, choice, names, title, header):
    """A table with one measure in each column."""
    cells = [
        [entry.row.name, *(spread_text(entry.measures.get(m), digits(m)) for m in names)]
        for entry in section.entries
    ]
    return Table(title, header, cells, _bold(section, choice, dict(enumerate(names, 1))))


def best(
    entries: Sequence[Entry],
    measures: dict[int, str | None],
    lower_is_better: Collection[str] = LOWER_IS_BETTER,
) -> set[tuple[int, int]]:
    """The cells (row, column) with the best mean of each column.

    Args:
      entries: the rows.
      measures: the measure of each column; None for a column without one.
      lower_is_better: the metrics for which lower is better.
    """
    bold = set()
    for column, measure in measures.items():
        spreads = [entry.measures.get(measure or "") for entry in entries]
        means = {i: s.mean for i, s in enumerate(spreads) if s is not None and s.mean is not None}
        for first in ranked(means, measure or "", lower_is_better)[:1]:
            bold |= {(i, column) for i in first}
    return bold


def ranked(
    means: Mapping[int, float], measure: str, lower_is_better: Collection[str]
) -> list[set[int]]:
    """The keys of the best means, of the second best, and so on; equal if they print the same."""
    printed = {key: round(mean, digits(measure)) for key, mean in means.items()}
    order = sorted(set(printed.values()), reverse=metric_of(measure) not in lower_is_better)
    return [{key for key, mean in printed.items() if mean == value} for value in order]


def _costs(section, choice):
    header = ["", "rounds", "MB", "s", "ms a round"]
    title = (
        "cost of a seed: MB that all clients sent and received, seconds of training; ms a round:"
        " median and quartiles after a warm-up"
    )
    counted = any(entry.pace.flops is not None for entry in section.entries)
    if counted:
        header.append("TFLOP")
        title += "; TFLOP of training as XLA counts them"
    if choice.target is not None:
        header += ["reached", "rounds to", "MB to", "s to"]
        unit = " %" if is_percent(choice.measure) else ""
        title += f"; until {choice.measure} is {choice.target:g}{unit} in the last stage"
    cells = []
    for entry in section.entries:
        goal = entry.goal
        to = [f"{goal.reached} of {goal.n}", *_cost(goal.cost)] if goal else []
        pace = [_milliseconds(entry.pace), *([_tera(entry.pace.flops)] if counted else [])]
        cells.append([entry.row.name, *_cost(entry.cost), *pace, *to])
    return Table(title, header, cells)


def _shared(section, prefix=""):
    """The names of all measures that at least one row has."""
    names = dict.fromkeys(name for entry in section.entries for name in entry.measures)
    return [name for name in names if name.startswith(prefix)]


def spread_text(s: Spread | None, places: int) -> str:
    """Mean and standard deviation with this number of decimal places, as far as they exist."""
    if s is None or s.mean is None:
        return NONE
    mean = f"{s.mean:.{places}f}"
    return mean if s.std is None else f"{mean} +- {s.std:.{places}f}"


def privacy_text(promise: Privacy | None) -> str:
    """Epsilon, followed by delta in parentheses."""
    if promise is None:
        return NONE
    return f"{promise.epsilon:.3g}" + (f" ({promise.delta:.3g})" if promise.delta else "")


def privacy_notes(sections: Sequence[Section]) -> list[str]:
    """One line for each row of a private method, for a table without a column of epsilon."""
    return [
        f"{section.block.name}: {entry.row.name} has epsilon (delta) {privacy_text(entry.privacy)}"
        for section in sections
        for entry in section.entries
        if entry.privacy
    ]


def _interval(s, places):
    return NONE if s.low is None else f"{s.low:.{places}f} to {s.high:.{places}f}"


def _p(p):
    if p is None:
        return NONE
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def _cost(cost: Cost | None):
    if cost is None:
        return [NONE] * 3
    return [f"{cost.rounds:.4g}", f"{cost.bytes / 1e6:.4g}", f"{cost.seconds:.1f}"]


def _milliseconds(pace):
    median, low, high = (f"{1000 * s:.3g}" for s in (pace.seconds, pace.low, pace.high))
    return f"{median} ({low} to {high})"


def _tera(flops):
    return NONE if flops is None else f"{flops / 1e12:.4g}"


def to_csv(sections: Sequence[Section], choice: Choice) -> str:
    """The comparison as CSV: one line per row, every number unrounded; missing ones are empty."""
    lines = [_flat(section, entry, choice) for section in sections for entry in section.entries]
    return formats.csv_of_rows(lines)


def _flat(section, entry, choice):
    cost, goal, pair = entry.cost, entry.goal, entry.paired
    line = {"federation": section.block.name, "row": entry.row.name}
    line |= {"seeds": " ".join(map(str, entry.row.seeds)), "way": choice.way}
    line |= {"measure": choice.measure, "ddof": choice.ddof}
    empty = Spread(n=0, mean=None, std=None, low=None, high=None)
    line |= entry.measures.get(choice.measure, empty)._asdict()
    line |= {"baseline": section.baseline}
    if section.baseline:
        d = pair.difference if pair else empty._replace(n=None)
        line |= {f"difference {key}": value for key, value in d._asdict().items()}
        for test in ("t", "t_holm", "wilcoxon", "wilcoxon_holm"):
            line[f"p {test}"] = getattr(pair, test) if pair else None
    line |= cost._asdict()
    line |= {"seconds of a round": entry.pace.seconds, "flops": entry.pace.flops}
    if entry.privacy:
        line |= entry.privacy._asdict()
    if goal:
        line |= {"target": choice.target, "reached": goal.reached}
        line |= {f"{key} to target": getattr(goal.cost, key, None) for key in Cost._fields}
    for name, spread in entry.measures.items():
        line |= {f"{name} mean": spread.mean, f"{name} std": spread.std}
    return line
