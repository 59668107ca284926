"""Says in sentences what is compared, what the result is, and how large the federations are."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedjax_lab.analysis import pivot
from fedjax_lab.analysis.compare import LEVEL
from fedjax_lab.analysis.formats import mean_std
from fedjax_lab.analysis.runs import Block
from fedjax_lab.analysis.tables import Choice, Section, described, digits, means, ranked

NAMED = 4  # the most rows and federations that a title names
MEAN = "each client's model on its own test examples, as the mean over clients"
KEY = {  # what other columns of tables mean, by their headers
    "n": "the number of seeds",
    "worst 10 %": "the mean over the tenth of the clients with the worst values",
    "global": "the model that a new client gets, on the whole test set",
    "id": "each client's model on its validation examples, on which it does not train",
    "ood": "each client's model on the domain that no client has",
    "new": "the model that a new client gets, on the test examples of new clients",
    "new, tuned": "the same after training on the new client's own examples",
    "95 % interval": "of the mean, or of the mean difference, by Student's t",
    "pairs": "the number of seeds that both rows have",
    "p (t)": "of the two-sided paired t-test over seeds",
    "p (Wilcoxon)": "of Wilcoxon's two-sided signed-rank test over seeds",
    "Holm": "the p to its left, corrected for all comparisons of its table",
    "MB": "megabytes that all clients send and receive",
}


def subject(sections: Sequence[Section]) -> str:
    """The rows and the federations of a comparison, for a title."""
    rows = dict.fromkeys(row.title for section in sections for row in section.block.rows)
    what = _listed(rows) if len(rows) <= NAMED else f"{len(rows)} rows"
    (title, *others) = [section.block.title for section in sections]
    return f"{what} on {f'{len(sections)} federations' if others else title}"


def results(
    sections: Sequence[Section], choice: Choice, columns: Sequence[pivot.Column] = ()
) -> list[str]:
    """A sentence with the result of each section.

    columns: those of a pivot table; then Holm's correction is that of its marks.
    """
    tests = pivot.tests(columns)
    out = []
    for section in sections:
        p = {e.row.name: e.paired.t_holm for e in section.entries if e.paired}
        if columns:
            p = {name: q for (name, k), q in tests.items() if columns[k].section is section}
        known = {name: q for name, q in p.items() if q is not None}
        text = _result(section, choice, known, len(tests) if columns else len(known))
        out.append(f"{section.block.heading}: {text}" if len(sections) > 1 else text)
    return out


def _result(section, choice, p: Mapping[str, float], comparisons: int):
    """p: the corrected p-values of the rows that are compared with the baseline."""
    baseline = section.baseline_title
    measured = any(entry.values for entry in section.entries)
    if len(section.entries) == 1 or not baseline or not measured:
        return _best(section, choice)
    if not p:
        alike = any(e.paired and e.paired.difference.n > 1 for e in section.entries)
        why = "it is the same for all seeds" if alike else "a test needs two shared seeds"
        return f"No difference from {baseline} can be tested: {why}."
    how = f"after Holm's correction for {_count(comparisons, 'comparison')}"
    certain = [e for e in section.entries if p.get(e.row.name, 1.0) < LEVEL]
    if not certain:
        return f"No difference from {baseline} is significant {how}."
    groups: dict[str, list[str]] = {"better": [], "worse": []}
    for entry in certain:
        mean = entry.paired.difference.mean
        by = f"{abs(mean):.{digits(choice.measure)}f}"
        way = "better" if (mean > 0) != choice.descends else "worse"
        groups[way].append(f"{entry.row.title} by {by} ({_p(p[entry.row.name])})")
    clauses = [f"{way} than {baseline}: {_listed(rows)}" for way, rows in groups.items() if rows]
    return f"Significantly {'; '.join(clauses)}; {described(choice.measure)}, {how}."


def _best(section, choice):
    """The row with the best mean of a section without tests."""
    entries = {entry.row.title: entry for entry in section.entries}
    best = ranked(means(entries, choice.measure), choice.measure, choice.lower_is_better)[:1]
    if not best:
        return f"No row has {choice.measure}."
    titles = [title for title in entries if title in best[0]]
    spread = entries[titles[0]].spread(choice.measure)
    value = mean_std(spread.mean, spread.std, digits(choice.measure))
    what = f"{described(choice.measure)}: {value} over {_count(spread.n, 'seed')}"
    if len(entries) == 1:
        return f"{titles[0]}, {what}."
    return f"The best mean is that of {_listed(titles)}, {what}; without a baseline it is untested."


def _p(p):
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _count(number, noun):
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _listed(names: Iterable[str]):
    *others, last = names
    return " and ".join(filter(None, (", ".join(others), last)))


def size(block: Block) -> str:
    """The numbers of clients and of their training examples; empty if no run has kept them."""
    seeds = [each for row in block.rows for run in row.runs for each in run.examples.values()]
    counts = [np.array(each) for each in seeds if each]
    if not counts:
        return ""
    clients, totals = ([f(each) for each in counts] for f in (len, np.sum))
    noun = "client has" if max(clients) == 1 else "clients have"
    text = f"{_span(clients)} {noun} {_span(totals)} training examples"
    return f"{text}, {_span(np.concatenate(counts))} each." if max(clients) > 1 else f"{text}."


def _span(numbers):
    return " to ".join(f"{n:,}" for n in dict.fromkeys((min(numbers), max(numbers))))
