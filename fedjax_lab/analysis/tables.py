"""What a comparison shows as tables, and the formats of text: terminal, Markdown, LaTeX, CSV."""

import csv
import io
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedjax_lab.analysis import runs
from fedjax_lab.analysis.compare import Cost, Entry, Spread
from fedjax_lab.analysis.runs import Block, shown
from fedjax_lab.measures import LOWER_IS_BETTER, ONE_NUMBER, is_percent, metric_of

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
NONE = "-"  # a cell without a number


class Choice(NamedTuple):
    """What was asked for."""

    way: str
    measure: str
    target: float | None
    ddof: int
    bold: bool = False  # the best mean of each column, where the format can
    lower_is_better: Collection[str] = LOWER_IS_BETTER  # metrics


class Table(NamedTuple):
    """Text only: numbers are written as a+-b. The first column is a name."""

    title: str
    header: list[str]
    cells: list[list[str]]
    bold: Collection[tuple[int, int]] = ()  # (row, column) of cells that Markdown and LaTeX set off


class Section(NamedTuple):
    """A block with its numbers."""

    block: Block
    baseline: str | None
    entries: list[Entry]


def subtitle(sections: Sequence[Section], choice: Choice) -> str:
    """How every number of the tables was made."""
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
    """What is compared; differences to the baseline; domains; other metrics; costs: those that
    there are."""
    metric = metric_of(choice.measure)
    prefix = "domains." if metric == "accuracy" else f"domains_{metric}."
    made = [_compared(section, choice, metric)]
    made += [_paired(section, choice)] if section.baseline else []
    made += [_domains(section, choice, metric, prefix)] if _shared(section, prefix) else []
    others = [m for name, m in runs.headlines(_shared(section)).items() if name != metric]
    made += [_others(section, choice, others)] if others else []
    return [*made, _costs(section, choice)]


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
        rest = [_spread(entry.measures.get(m), places) for m in others]
        numbers = [_spread(main, places), _interval(main, places)]
        cells.append([entry.row.name, str(main.n), *numbers, *rest])
    measures = dict(enumerate([choice.measure, None, *others], 2))
    return Table(
        f"{with_unit(metric)}, {WAYS[choice.way]}", header, cells, _bold(section, choice, measures)
    )


def _bold(section, choice, measures):
    return best(section.entries, measures, choice.lower_is_better) if choice.bold else ()


def with_unit(measure: str) -> str:
    """The measure, or metric, and "%" where it is in percent."""
    return f"{measure}, %" if is_percent(measure) else measure


def digits(measure: str) -> int:
    """How many digits behind the point a measure is shown with."""
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
        numbers = [_spread(d, places), _interval(d, places)]
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
    """A table with a measure in each column."""
    cells = [
        [entry.row.name, *(_spread(entry.measures.get(m), digits(m)) for m in names)]
        for entry in section.entries
    ]
    return Table(title, header, cells, _bold(section, choice, dict(enumerate(names, 1))))


def best(
    entries: Sequence[Entry],
    measures: dict[int, str | None],
    lower_is_better: Collection[str] = LOWER_IS_BETTER,
) -> set[tuple[int, int]]:
    """(row, column) of the best mean of each column's measure; lower_is_better: metrics."""
    bold = set()
    for column, measure in measures.items():
        spreads = [entry.measures.get(measure or "") for entry in entries]
        means = {i: s.mean for i, s in enumerate(spreads) if s is not None and s.mean is not None}
        choose = min if metric_of(measure or "") in lower_is_better else max
        chosen = choose(means.values(), default=None)
        bold |= {(i, column) for i, mean in means.items() if mean == chosen}
    return bold


def _costs(section, choice):
    header = ["", "rounds", "MB", "s"]
    title = "cost of a seed: MB of all clients both ways, seconds of training"
    if choice.target is not None:
        header += ["reached", "rounds to", "MB to", "s to"]
        unit = " %" if is_percent(choice.measure) else ""
        title += f"; until {choice.measure} is {choice.target:g}{unit} in the last stage"
    cells = []
    for entry in section.entries:
        goal = entry.goal
        to = [f"{goal.reached} of {goal.n}", *_cost(goal.cost)] if goal else []
        cells.append([entry.row.name, *_cost(entry.cost), *to])
    return Table(title, header, cells)


def _shared(section, prefix=""):
    """Names of the measures that any row has."""
    names = dict.fromkeys(name for entry in section.entries for name in entry.measures)
    return [name for name in names if name.startswith(prefix)]


def _spread(s, places):
    if s is None or s.mean is None:
        return NONE
    mean = f"{s.mean:.{places}f}"
    return mean if s.std is None else f"{mean} +- {s.std:.{places}f}"


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


def terminal(table: Table) -> str:
    """Columns aligned by spaces."""
    lines = [table.header, *table.cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for name, *cells in lines:
        rest = [f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)]
        text.append("  ".join([f"{name:{widths[0]}}", *rest]).rstrip())
    text.insert(1, "-" * max(map(len, text)))
    return "\n".join([table.title, *text])


def markdown(table: Table) -> str:
    """A table of GitHub's Markdown, names as code."""
    lines = ["| " + " | ".join(map(escape_markdown, table.header)) + " |"]
    lines.append("|---" + "|---:" * (len(table.header) - 1) + "|")
    for i, (name, *cells) in enumerate(table.cells):
        code = "`" + name.replace("`", "'").replace("|", r"\|") + "`"
        written = [_set_off(table, i, j, escape_markdown(cell)) for j, cell in enumerate(cells, 1)]
        lines.append("| " + " | ".join([code, *written]) + " |")
    return "\n".join([escape_markdown(table.title), "", *lines])


def _set_off(table, i, j, text, mark="**{}**"):
    return mark.format(text) if (i, j) in table.bold else text


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|"})


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(_MARKDOWN)


def latex(table: Table) -> str:
    """A table for LaTeX with the package booktabs."""
    mark = r"\textbf{{{}}}"
    rows = [list(map(_latex, table.header))] + [
        [_set_off(table, i, j, _latex(cell), mark) for j, cell in enumerate(row)]
        for i, row in enumerate(table.cells)
    ]
    first, *body = [" & ".join(row) + r" \\" for row in rows]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_latex(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"\toprule",
            first,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}"}
)


def _latex(text):
    if text == NONE:
        return "--"
    text = text.translate(_LATEX).replace("+-", r"$\pm$")
    return "$-$" + text[1:] if text.startswith("-") else text.replace(" to -", " to $-$")


def to_csv(sections: Sequence[Section], choice: Choice) -> str:
    """One line per row with every number unrounded; empty where there is none."""
    lines = [_flat(section, entry, choice) for section in sections for entry in section.entries]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


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
    if goal:
        line |= {"target": choice.target, "reached": goal.reached}
        line |= {f"{key} to target": getattr(goal.cost, key, None) for key in Cost._fields}
    for name, spread in entry.measures.items():
        line |= {f"{name} mean": spread.mean, f"{name} std": spread.std}
    return line
