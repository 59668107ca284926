"""Puts several federations into one table, as in papers: a row for each method, a column for each
partition of each data set."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fedjax_lab.analysis import compare, formats, runs
from fedjax_lab.analysis.compare import LEVEL, Entry
from fedjax_lab.analysis.formats import BETTER, NONE, WORSE, Table, mean_std
from fedjax_lab.analysis.tables import (
    Choice,
    Section,
    chosen_how,
    described,
    deviation,
    digits,
    means,
    ranked,
    spread_text,
)
from fedjax_lab.papers.published import Result
from fedjax_lab.simulation.units import sentence

BOUNDS = ("central",)  # non-federated methods, which are shown as bounds and not ranked


class Column(NamedTuple):
    """A column of the table: the numbers of one federation."""

    data: str  # its display name
    partition: str  # its display name
    name: str  # the names of both as in the configs
    section: Section
    entries: dict[str, Entry]  # by the row's name
    printed: Mapping[str, Result]  # published numbers to show beside them, by the row's name


def columns(
    sections: Sequence[Section],
    printed: Sequence[Mapping[str, Result]],
    names: Mapping[str, str] | None = None,
) -> list[Column]:
    """The columns of the table, grouped by data set.

    Args:
      sections: sections whose rows have matching names, see `runs.named_alike`.
      printed: for each section, the published numbers by the row's name.
      names: display names, see `runs.arrange`.
    """
    blocks = [section.block for section in sections]
    each = [runs.section_names(blocks, part, names) for part in ("data", "partition")]
    made = []
    for data, partition, section, beside in zip(*each, sections, printed, strict=True):
        (data_name, data_title), (partition_name, title) = data, partition
        name, entries = f"{data_name}, {partition_name}", {e.row.name: e for e in section.entries}
        made.append(Column(data_title, title, name, section, entries, beside))
    order = [title for _, title in each[0]]
    return sorted(made, key=lambda column: order.index(column.data))


def table(columns: Sequence[Column], choice: Choice, sets_off: bool) -> Table:
    """The table; its title is a caption that explains the numbers and marks.

    sets_off: whether the output format can show bold and underlined text.
    """
    names, p_values = _names(columns), tests(columns)
    header, written = [""], [[_titles(columns)[name] for name in names]]
    ranks: tuple[set, set] = set(), set()
    marks = {}
    for k, column in enumerate(columns):
        for cells, best in zip(ranks, _ranks(column, choice), strict=False):
            cells.update((names.index(name), len(header)) for name in best)
        for (name, of), p in p_values.items():
            if of == k and p < LEVEL:
                marks[names.index(name), len(header)] = _mark(column.entries[name], choice)
        header.append(column.partition)
        written.append([_measured(column.entries.get(name), choice.measure) for name in names])
        if column.printed:
            header.append("published")
            written.append([_published(column.printed.get(name), choice.measure) for name in names])
    bold, underlined = ranks if sets_off else ((), ())
    rows = [list(row) for row in zip(*written, strict=True)]
    title = caption(columns, choice, len(p_values), sets_off)
    return Table(title, header, rows, bold, underlined, marks, _groups(columns))


def _measured(entry, measure):
    return spread_text(entry.spread(measure), measure) if entry else NONE


def _published(result, measure):
    return mean_std(result.mean, result.std, digits(measure)) if result else NONE


def _names(columns):
    """The names of the rows: the baseline first, bounds last."""
    baselines = [c.section.baseline for c in columns if c.section.baseline]
    bounds = {name: _is_bound(entry) for c in columns for name, entry in c.entries.items()}
    return sorted(dict.fromkeys([*baselines, *bounds]), key=lambda name: bounds[name])


def _titles(columns):
    """The display names of the rows by their names."""
    return {name: entry.row.title for c in columns for name, entry in c.entries.items()}


def _groups(columns):
    """The data sets, each with the number of table columns that it spans."""
    by_data = groupby(columns, key=lambda column: column.data)
    return [(data, sum(1 + bool(c.printed) for c in group)) for data, group in by_data]


def _is_bound(entry):
    return entry.row.method in BOUNDS


def _ranks(column, choice):
    """The names of the rows with the best mean of a column, with the second best, and so on."""
    rows = {name: entry for name, entry in column.entries.items() if not _is_bound(entry)}
    return ranked(means(rows, choice.measure), choice.measure, choice.lower_is_better)


def tests(columns: Sequence[Column]) -> dict[tuple[str, int], float]:
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
    corrected = zip(p, compare.holm(list(p.values())), strict=True)
    return {key: value for key, value in corrected if value is not None}


def _mark(entry, choice):
    return BETTER if (entry.paired.difference.mean > 0) != choice.descends else WORSE


def caption(columns: Sequence[Column], choice: Choice, comparisons: int, sets_off: bool) -> str:
    """The caption: what the table compares, and how its numbers and marks were computed.

    comparisons: the number of tests against the baseline. sets_off: see `table`.
    """
    entries = [entry for column in columns for entry in column.entries.values()]
    sentences = [_numbers_sentence(entries, choice), *_clients_sentence(columns)]
    sentences += _settings_sentence(columns)
    if sets_off:
        sentences.append("The best mean of a column is bold, the second best is underlined.")
    sentences += _marks_sentence(columns, comparisons)
    bounds = dict.fromkeys(entry.row.title for entry in entries if _is_bound(entry))
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
    what = sentence(described(measure).replace(", %", " in percent"))
    counts = sorted({s.n for e in entries if (s := e.measures.get(measure))})
    seeds = " to ".join(str(n) for n in (counts[:1] + counts[1:][-1:]))
    over = "one seed" if counts == [1] else f"{deviation(choice)} over {seeds} seeds"
    return f"{what}{chosen_how(entries, choice)}: {over}."


def _clients_sentence(columns):
    """The number of clients, if it is the same in all configs and thus not in the headers."""
    partitions = [c.section.block.rows[0].config["partition"] for c in columns]
    counts = {partition.get("num_clients") for partition in partitions}
    return [f"{counts.pop()} clients."] if len(counts) == 1 and not counts & {None, 0} else []


def _settings_sentence(columns):
    """The settings outside of data and partition in which the columns differ, if there are some."""
    blocks = [column.section.block for column in columns]
    settings = [f"{block.title}: {block.settings}" for block in blocks if block.settings]
    return [f"Settings that differ: {'; '.join(settings)}."] if settings else []


def _marks_sentence(columns, comparisons):
    if not comparisons:
        return []
    titles = (c.section.baseline_title for c in columns)
    baseline = " or ".join(dict.fromkeys(filter(None, titles)))
    times = f"the {comparisons} comparisons" if comparisons > 1 else "the one comparison"
    return [
        f"{BETTER} means better and {WORSE} worse than {baseline} with p < {LEVEL}, by two-sided"
        f" paired t-tests over seeds with Holm's correction for {times} of this table."
    ]


def to_csv(columns: Sequence[Column], choice: Choice) -> str:
    """The table as CSV: one line per row, with every number unrounded; missing ones are empty."""
    p_values = tests(columns)
    lines = [{"row": name} | _line(columns, name, choice, p_values) for name in _names(columns)]
    return formats.csv_of_rows(lines)


def _line(columns, name, choice, p_values):
    line: dict[str, object] = {}
    for k, column in enumerate(columns):
        entry, result = column.entries.get(name), column.printed.get(name)
        spread = entry and entry.measures.get(choice.measure)
        difference = entry and entry.paired and entry.paired.difference
        numbers = {key: getattr(spread, key, None) for key in ("mean", "std", "n")}
        numbers["difference"] = getattr(difference, "mean", None)
        numbers["p t_holm"] = p_values.get((name, k))
        if column.printed:
            numbers |= {f"published {key}": getattr(result, key, None) for key in ("mean", "std")}
        line |= {f"{column.name}: {key}": n for key, n in numbers.items()}
    return line
