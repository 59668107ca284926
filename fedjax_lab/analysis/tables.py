"""Writes a comparison as tables and as CSV."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from fedjax_lab.analysis import compare, formats, runs
from fedjax_lab.analysis.compare import Cost, Entry, Privacy, Spread
from fedjax_lab.analysis.formats import NONE, Table, mean_std, number
from fedjax_lab.analysis.runs import Block, shown
from fedjax_lab.simulation.units import (
    LOWER_IS_BETTER,
    ONE_NUMBER,
    WORDS,
    falls,
    in_words,
    is_inequality,
    is_percent,
    measure_of,
    metric_of,
)

WAYS = {
    "last": "last round",
    "best_by_validation": "best by validation",
    "max_over_rounds": "best over rounds",
    "max_per_domain": "best per domain",
}
MEASURES = {  # of the accuracy: in words, and in a header
    "accuracy.mean": ("mean over clients", "accuracy"),
    "accuracy.worst10": ("worst 10 % of clients", "worst 10 %"),
    "global": ("global test set", "global"),
    "id": ("validation (id)", "id"),
    "ood": ("unseen domain (ood)", "ood"),
    "new": ("new clients", "new"),
    "new_tuned": ("new clients, tuned", "new, tuned"),
}
BY = {"domains": "domain", "levels": "capacity of clients", "kinds": "net of clients"}
CLIENTS = 8  # the most clients in a table by client
Key = TypeVar("Key", bound=Hashable)


class Choice(NamedTuple):
    """What a comparison shows, and how."""

    way: str  # of choosing a round, one of WAYS
    measure: str
    target: float | None  # the value of the measure for time-to-target numbers
    ddof: int  # of standard deviations
    bold: bool = False  # whether the best mean of each column is bold, except in the terminal
    lower_is_better: Collection[str] = LOWER_IS_BETTER  # the metrics for which lower is better

    @property
    def descends(self) -> bool:
        """Whether lower values of the measure are better."""
        return falls(self.measure, self.lower_is_better)


class Section(NamedTuple):
    """A block with its numbers."""

    block: Block
    baseline: str | None
    entries: list[Entry]

    @property
    def baseline_title(self) -> str:
        """The display name of the baseline; empty if there is none."""
        rows = (row.title for row in self.block.rows if row.name == self.baseline)
        return next(rows, "")


class Column(NamedTuple):
    """A column of a table whose rows are entries."""

    header: str
    text: Callable[[Entry], str]  # of a cell
    measure: str = ""  # the best mean of this measure may be bold


def subtitle(sections: Sequence[Section], choice: Choice) -> str:
    """A line that explains the numbers of the tables."""
    entries = [entry for section in sections for entry in section.entries]
    what = "" if metric_of(choice.measure) == "accuracy" else f", {choice.measure}"
    unit = "accuracies in percent" * is_percent(choice.measure)
    what = what if unit else what.removeprefix(", ")
    return (
        f"{unit}{what}{chosen_how(entries, choice)}; {deviation(choice)}"
        f" (ddof {choice.ddof}) over n seeds; 95 % intervals by Student's t"
    )


def chosen_how(entries: Sequence[Entry], choice: Choice) -> str:
    """The end of a measure's description: which values are better, and the chosen round."""
    lower = " (lower is better)" if choice.descends else ""
    peeks = any(runs.peeks(choice.way, entry.measures) for entry in entries)
    return f"{lower}, {WAYS[choice.way]}{' (chosen on the test set itself)' * peeks}"


def deviation(choice: Choice) -> str:
    """The statistics of a cell, in words."""
    return f"mean +- {'sample' if choice.ddof else 'population'} standard deviation"


def tables(section: Section, choice: Choice) -> list[Table]:
    """The tables of a section: the comparison, and if available the differences to the baseline,
    the groups of `BY`, other metrics and costs. `label` identifies each; it is empty for the
    first."""
    metric, way = metric_of(choice.measure), WAYS[choice.way]
    made = {"": _compared(section, choice, metric)}
    if section.baseline:
        made["differences"] = _paired(section, choice)
    named: set[str] = set()
    for form, words in BY.items():
        prefix = f"{measure_of(metric, form)}."
        if measures := _shared(section, prefix):
            title = f"{metric} by {words}{', %' * is_percent(metric)}, {way}"
            columns = [_measure_column(m, shown(m.removeprefix(prefix))) for m in measures]
            made[form] = _table(section, choice, title, columns)
            named |= {m.removeprefix(prefix) for m in measures}
    if columns := _client_columns(section, choice, named):
        title = f"{in_words(metric)}, by client, {way}"
        made["clients"] = _table(section, choice, title, columns)
    if others := [m for name, m in runs.headlines(_shared(section)).items() if name != metric]:
        columns = [_measure_column(m, with_unit(shown(m))) for m in others]
        made["metrics"] = _table(section, choice, f"other metrics, {way}", columns)
    made["costs"] = _costs(section, choice)
    return [table._replace(label=label) for label, table in made.items()]


def _shared(section, prefix=""):
    """The names of all measures that at least one row has."""
    names = dict.fromkeys(name for entry in section.entries for name in entry.measures)
    return [name for name in names if name.startswith(prefix)]


def _table(section, choice, title, columns, entries=None):
    """A table with these columns; entries: its rows, by default all of the section."""
    entries = section.entries if entries is None else entries
    bold = set()
    for j, column in enumerate(columns, 1):
        if choice.bold and column.measure:
            of_rows = means(dict(enumerate(entries)), column.measure)
            best = ranked(of_rows, column.measure, choice.lower_is_better)[:1]
            bold |= {(i, j) for rows in best for i in rows}
    cells = [[entry.row.title, *(column.text(entry) for column in columns)] for entry in entries]
    return Table(title, ["", *(column.header for column in columns)], cells, bold)


def _client_columns(section, choice, domains):
    """Columns of clients with names, unless these are many, or the domains' names."""
    if not any(run.clients for row in section.block.rows for run in row.runs):
        return []
    of_rows: dict[str, dict[str, list[float]]] = {}
    for row in section.block.rows:
        of_row = of_rows.setdefault(row.name, {})
        for name, value in runs.named_clients(row, choice.way, choice.measure):
            of_row.setdefault(name, []).append(value)
    names = dict.fromkeys(name for of_row in of_rows.values() for name in of_row)
    if len(names) > CLIENTS or domains.issuperset(names):
        return []

    def column(name):
        def text(entry):
            values = of_rows[entry.row.name].get(name, [])
            return spread_text(compare.spread(values, choice.ddof), choice.measure)

        return Column(shown(name), text)

    return [column(name) for name in names]


def _measure_column(measure, header):
    return Column(header, lambda entry: spread_text(entry.spread(measure), measure), measure)


def forms_of(metric: str) -> dict[str, tuple[str, str]]:
    """The measures of a metric: in words, and in a header."""
    if metric == "accuracy":
        return MEASURES
    names = [f"{metric}.mean", f"{metric}.worst10", *(f"{form}_{metric}" for form in ONE_NUMBER)]
    (words, _), *others = MEASURES.values()
    return dict(zip(names, [(words, WORDS.get(metric, metric)), *others], strict=True))


def described(measure: str) -> str:
    """A measure in words, such as "accuracy, %, global test set"."""
    metric = metric_of(measure)
    if is_inequality(measure):
        return f"{measure.rpartition('.')[2]} over clients of the {shown(metric)}"
    form = forms_of(metric).get(measure, ("", ""))[0] or shown(measure.partition(".")[2])
    return ", ".join(filter(None, (in_words(shown(metric)), form)))


def axis_label(measure: str) -> str:
    """The label of a measure's axis: a mean over clients is not mentioned."""
    metric = metric_of(measure)
    return in_words(shown(metric)) if measure == f"{metric}.mean" else described(measure)


def _compared(section, choice, metric):
    forms = {measure: header for measure, (_, header) in forms_of(metric).items()}
    measure, names = choice.measure, _shared(section)
    columns = [
        Column("n", lambda entry: str(entry.spread(measure).n)),
        _measure_column(measure, forms.get(measure, measure)),
        Column("95 % interval", lambda entry: _interval(entry.spread(measure), measure)),
        *(_measure_column(m, forms[m]) for m in forms if m in names and m != measure),
    ]
    if any(entry.privacy for entry in section.entries):
        columns.append(Column("epsilon (delta)", lambda entry: privacy_text(entry.privacy)))
    return _table(section, choice, f"{in_words(metric)}, {WAYS[choice.way]}", columns)


def _paired(section, choice):
    measure = choice.measure
    columns = [
        Column("pairs", lambda entry: str(entry.paired.difference.n)),
        Column("difference", lambda entry: spread_text(entry.paired.difference, measure)),
        Column("95 % interval", lambda entry: _interval(entry.paired.difference, measure)),
        Column("p (t)", lambda entry: _p(entry.paired.t)),
        Column("Holm", lambda entry: _p(entry.paired.t_holm)),
        Column("p (Wilcoxon)", lambda entry: _p(entry.paired.wilcoxon)),
        Column("Holm", lambda entry: _p(entry.paired.wilcoxon_holm)),
    ]
    what = f"{described(measure)}, {WAYS[choice.way]}"
    title = f"{what}: row minus {section.baseline_title}, seed by seed"
    others = [entry for entry in section.entries if entry.paired]
    return _table(section, choice, title, columns, others)


def _costs(section, choice):
    title = (
        "cost of a seed: MB that all clients sent and received, seconds of training; ms a round:"
        " median and quartiles after a warm-up"
    )
    timed = any(entry.cost.virtual_seconds is not None for entry in section.entries)
    title += "; virtual s by the clock of the run" if timed else ""
    columns = _cost_columns(lambda entry: entry.cost, timed)
    columns.append(Column("ms a round", lambda entry: _milliseconds(entry.pace)))
    if any(entry.pace.flops is not None for entry in section.entries):
        columns.append(Column("TFLOP", lambda entry: _tera(entry.pace.flops)))
        title += "; TFLOP of training as XLA counts them"
    if choice.target is not None:
        reached = Column("reached", lambda entry: f"{entry.goal.reached} of {entry.goal.n}")
        columns += [reached, *_cost_columns(lambda entry: entry.goal.cost, timed, " to")]
        unit = " %" if is_percent(choice.measure) else ""
        title += f"; until {choice.measure} is {choice.target:g}{unit} in the last stage"
    return _table(section, choice, title, columns)


def _cost_columns(cost_of, timed, to=""):
    """Columns with the costs of each entry; `-` for a cost that is None.

    timed: whether there is a column for the clock of a run.
    """

    def column(header, field, form):
        return Column(header + to, lambda entry: number(getattr(cost_of(entry), field, None), form))

    return [
        column("rounds", "rounds", ".4g"),
        column("MB", "megabytes", ".4g"),
        column("s", "seconds", ".1f"),
        *([column("virtual s", "virtual_seconds", ".4g")] if timed else []),
    ]


def with_unit(measure: str) -> str:
    """The name of a measure or metric, followed by "%" if it is in percent."""
    return f"{measure}, %" if is_percent(measure) else measure


def digits(measure: str) -> int:
    """The number of decimal places with which a measure is shown."""
    return 2 if is_percent(measure) else 4


def means(entries: Mapping[Key, Entry], measure: str) -> dict[Key, float]:
    """The mean of a measure in each entry that has it."""
    each = {key: entry.spread(measure).mean for key, entry in entries.items()}
    return {key: mean for key, mean in each.items() if mean is not None}


def ranked(
    means: Mapping[Key, float], measure: str, lower_is_better: Collection[str]
) -> list[set[Key]]:
    """The keys of the best means, of the second best, and so on; equal if they print the same."""
    printed = {key: round(mean, digits(measure)) for key, mean in means.items()}
    order = sorted(set(printed.values()), reverse=not falls(measure, lower_is_better))
    return [{key for key, mean in printed.items() if mean == value} for value in order]


def spread_text(spread: Spread, measure: str) -> str:
    """Mean and standard deviation of values of a measure, as far as they exist."""
    return mean_std(spread.mean, spread.std, digits(measure))


def privacy_text(promise: Privacy | None) -> str:
    """Epsilon, followed by delta in parentheses."""
    if promise is None:
        return NONE
    return f"{promise.epsilon:.3g}" + (f" ({promise.delta:.3g})" if promise.delta else "")


def privacy_notes(sections: Sequence[Section]) -> list[str]:
    """One line for each row of a private method, for a table without a column of epsilon."""
    return [
        f"{section.block.title}: {entry.row.title} has epsilon (delta)"
        f" {privacy_text(entry.privacy)}"
        for section in sections
        for entry in section.entries
        if entry.privacy
    ]


def _interval(spread, measure):
    places = digits(measure)
    return NONE if spread.low is None else f"{spread.low:.{places}f} to {spread.high:.{places}f}"


def _p(p):
    return "<0.001" if p is not None and p < 0.001 else number(p, ".3f")


def _milliseconds(pace):
    each = [1000 * s for s in (pace.seconds, pace.low, pace.high)]
    median, low, high = (f"{ms:.3g}" if ms < 1000 else f"{ms:.0f}" for ms in each)
    return f"{median} ({low} to {high})"


def _tera(flops):
    return number(flops and flops / 1e12, ".4g")


def to_csv(sections: Sequence[Section], choice: Choice) -> str:
    """The comparison as CSV: one line per row, every number unrounded; missing ones are empty."""
    lines = [_flat(section, entry, choice) for section in sections for entry in section.entries]
    return formats.csv_of_rows(lines)


def _flat(section, entry, choice):
    goal, pair = entry.goal, entry.paired
    line = {"federation": section.block.name, "row": entry.row.name}
    line |= {"seeds": " ".join(map(str, entry.row.seeds)), "way": choice.way}
    line |= {"measure": choice.measure, "ddof": choice.ddof}
    line |= entry.spread(choice.measure)._asdict() | {"baseline": section.baseline}
    if section.baseline:
        difference = pair and pair.difference
        line |= {f"difference {key}": getattr(difference, key, None) for key in Spread._fields}
        tests = ("t", "t_holm", "wilcoxon", "wilcoxon_holm")
        line |= {f"p {test}": getattr(pair, test, None) for test in tests}
    line |= entry.cost._asdict()
    line |= {"seconds of a round": entry.pace.seconds, "flops": entry.pace.flops}
    if entry.privacy:
        line |= entry.privacy._asdict()
    if goal:
        line |= {"target": choice.target, "reached": goal.reached}
        line |= {f"{key} to target": getattr(goal.cost, key, None) for key in Cost._fields}
    for name, spread in entry.measures.items():
        line |= {f"{name} mean": spread.mean, f"{name} std": spread.std}
    return line
