"""Puts several federations into one table, as in papers: a row for each method, a column for each
partition of each data set."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

from fedjax_lab.analysis import compare, formats, runs
from fedjax_lab.analysis.compare import Entry
from fedjax_lab.analysis.formats import BETTER, NONE, WORSE, Table
from fedjax_lab.analysis.published import Result
from fedjax_lab.analysis.tables import (
    MEASURES,
    WAYS,
    Choice,
    Section,
    digits,
    ranked,
    spread_text,
)
from fedjax_lab.simulation.units import is_percent, metric_of

LEVEL = 0.05  # the significance level
BOUNDS = ("central",)  # non-federated methods, which are shown as bounds and not ranked


class Column(NamedTuple):
    """A column of the table: the numbers of one federation."""

    data: str
    partition: str
    section: Section
    entries: dict[str, Entry]  # by the row's name
    printed: Mapping[str, Result]  # published numbers to show beside them, by the row's name


def columns(sections: Sequence[Section], printed: Sequence[Mapping[str, Result]]) -> list[Column]:
    """The columns of the table, grouped by data set.

    Args:
      sections: sections whose rows have matching names, see `runs.named_alike`.
      printed: for each section, the published numbers by the row's name.
    """
    blocks = [section.block for section in sections]
    names = [runs.section_names(blocks, part) for part in ("data", "partition")]
    made = [
        Column(data, partition, section, {e.row.name: e for e in section.entries}, beside)
        for data, partition, section, beside in zip(*names, sections, printed, strict=True)
    ]
    return sorted(made, key=lambda column: names[0].index(column.data))


def table(columns: Sequence[Column], choice: Choice, sets_off: bool) -> Table:
    """The table; its title is a caption that explains the numbers and marks.

    sets_off: whether the output format can show bold and underlined text.
    """
    names, tests = _names(columns), _tests(columns)
    places = [*accumulate((_width(column) for column in columns), initial=1)]
    ranks = [_best_two(column, names, choice) for column in columns]
    bold, underlined = (
        {(i, j) for two, j in zip(ranks, places, strict=False) for i in two[rank]}
        for rank in (0, 1)
    )
    marks = {
        (names.index(name), places[k]): mark
        for (name, k), p in tests.items()
        if (mark := _mark(columns[k], name, p, choice))
    }
    written = [pair for column in columns for pair in _written(column, names, choice)]
    headers, cells = zip(*written, strict=True)
    return Table(
        title=caption(columns, choice, len(tests), sets_off),
        header=["", *headers],
        cells=[list(row) for row in zip(names, *cells, strict=True)],
        bold=bold if sets_off else (),
        underlined=underlined if sets_off else (),
        marks=marks,
        groups=_groups(columns),
    )


def _width(column):
    return 2 if column.printed else 1


def _written(column, names, choice):
    """Yields the header and the cells of a column, and those of its published numbers if any."""
    entries = [column.entries.get(name) for name in names]
    spreads = [entry.measures.get(choice.measure) if entry else None for entry in entries]
    places = digits(choice.measure)
    yield column.partition, [spread_text(spread, places) for spread in spreads]
    if column.printed:
        yield "published", [_published(column.printed.get(name), places) for name in names]


def _names(columns):
    """The names of the rows: the baseline first, bounds last."""
    baselines = [c.section.baseline for c in columns if c.section.baseline]
    bounds = {name: _is_bound(entry) for c in columns for name, entry in c.entries.items()}
    return sorted(dict.fromkeys([*baselines, *bounds]), key=lambda name: bounds[name])


def _groups(columns):
    """The data sets, each with the number of table columns that it spans."""
    by_data = groupby(columns, key=lambda column: column.data)
    return [(data, sum(map(_width, group))) for data, group in by_data]


def _published(result, places):
    if result is None:
        return NONE
    std = "" if result.std is None else f" +- {result.std:.{places}f}"
    return f"{result.mean:.{places}f}{std}"


def _is_bound(entry):
    return entry.row.runs[0].config["method"]["name"] in BOUNDS


def _best_two(column, names, choice):
    """The positions in `names` of the best and of the second best mean of a column."""
    spreads = {
        name: entry.measures.get(choice.measure)
        for name, entry in column.entries.items()
        if not _is_bound(entry)
    }
    means = {names.index(n): s.mean for n, s in spreads.items() if s and s.mean is not None}
    return [*ranked(means, choice.measure, choice.lower_is_better), set(), set()][:2]


def _tests(columns):
    """{(name, column): p} of all comparisons with the baseline, with Holm's correction.

    The tests are paired t-tests over seeds. A comparison without a test (one seed, or the
    same non-zero difference for each seed) has no entry.
    """
    p = {
        (name, k): entry.paired.t
        for k, column in enumerate(columns)
        for name, entry in column.entries.items()
        if entry.paired and entry.paired.t is not None and not _is_bound(entry)
    }
    return dict(zip(p, compare.holm(list(p.values())), strict=True))


def _mark(column, name, p, choice):
    if p >= LEVEL:
        return ""
    above = column.entries[name].paired.difference.mean > 0
    return BETTER if above != (metric_of(choice.measure) in choice.lower_is_better) else WORSE


def caption(columns: Sequence[Column], choice: Choice, comparisons: int, sets_off: bool) -> str:
    """The caption: what the table compares, and how its numbers and marks were computed.

    comparisons: the number of tests against the baseline. sets_off: see `table`.
    """
    entries = [entry for column in columns for entry in column.entries.values()]
    sentences = [_numbers_sentence(entries, choice), *_clients_sentence(columns)]
    if sets_off:
        sentences.append("The best mean of a column is bold, the second best is underlined.")
    sentences += _marks_sentence(columns, comparisons)
    bounds = dict.fromkeys(entry.row.name for entry in entries if _is_bound(entry))
    if bounds:
        pooled = f"{' and '.join(bounds)}, which trains on the pooled examples of all clients"
        sentences.append(f"No rank or mark is given to {pooled}.")
    if any(runs.unequal_rounds(column.section.block) for column in columns):
        sentences.append("In some columns, the runs ended after different numbers of rounds.")
    results = [result for column in columns for result in column.printed.values()]
    if results:
        named = " and ".join(dict.fromkeys(f"{r.paper}, Table {r.table}" for r in results))
        sentences.append(f"Published numbers are those of {named}.")
    return " ".join(sentences)


def _numbers_sentence(entries, choice):
    """The sentence about the measure, the chosen round and the number of seeds."""
    measure = choice.measure
    if measure in MEASURES:
        what = f"Accuracy in percent, {MEASURES[measure]}"
    else:
        what = f"{measure}{' in percent' * is_percent(measure)}"
    lower = " (lower is better)" if metric_of(measure) in choice.lower_is_better else ""
    peeks = any(runs.peeks(choice.way, entry.measures) for entry in entries)
    peek = " (chosen on the test set itself)" if peeks else ""
    counts = sorted({s.n for e in entries if (s := e.measures.get(measure))})
    seeds = " to ".join(str(n) for n in (counts[:1] + counts[1:][-1:]))
    kind = "sample" if choice.ddof else "population"
    over = f"mean +- {kind} standard deviation over {seeds} seeds"
    return f"{what}{lower}, {WAYS[choice.way]}{peek}: {'one seed' if counts == [1] else over}."


def _clients_sentence(columns):
    """The number of clients, if it is the same in all configs and thus not in the headers."""
    partitions = [c.section.block.rows[0].runs[0].config["partition"] for c in columns]
    counts = {partition.get("num_clients") for partition in partitions}
    return [f"{counts.pop()} clients."] if len(counts) == 1 and not counts & {None, 0} else []


def _marks_sentence(columns, comparisons):
    if not comparisons:
        return []
    baseline = " or ".join(dict.fromkeys(c.section.baseline for c in columns if c.section.baseline))
    times = f"the {comparisons} comparisons" if comparisons > 1 else "the one comparison"
    return [
        f"{BETTER} means better and {WORSE} worse than {baseline} with p < {LEVEL}, by two-sided"
        f" paired t-tests over seeds with Holm's correction for {times} of this table."
    ]


def to_csv(columns: Sequence[Column], choice: Choice) -> str:
    """The table as CSV: one line per row, with every number unrounded; missing ones are empty."""
    tests = _tests(columns)
    lines = [{"row": name} | _line(columns, name, choice, tests) for name in _names(columns)]
    return formats.csv_of_rows(lines)


def _line(columns, name, choice, tests):
    line: dict[str, object] = {}
    for k, column in enumerate(columns):
        entry, result = column.entries.get(name), column.printed.get(name)
        spread = entry.measures.get(choice.measure) if entry else None
        pair = entry.paired if entry else None
        numbers = {key: getattr(spread, key, None) for key in ("mean", "std", "n")}
        numbers["difference"] = pair.difference.mean if pair else None
        numbers["p t_holm"] = tests.get((name, k))
        if column.printed:
            numbers["published mean"] = result.mean if result else None
            numbers["published std"] = result.std if result else None
        line |= {f"{column.data}, {column.partition}: {key}": n for key, n in numbers.items()}
    return line
