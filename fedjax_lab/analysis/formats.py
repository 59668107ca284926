"""Writes tables of text for a terminal, in Markdown and in LaTeX."""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from fedjax_lab.errors import printable

FORMULA = tuple("=+-@＝＋－＠")  # the first characters of a formula in a spreadsheet
NONE = "-"  # a cell without a number
BETTER, WORSE = "*", "†"  # the marks of cells that differ significantly from the baseline
LATEX_NEEDS = r"\usepackage{booktabs,graphicx}"


class Table(NamedTuple):
    """A table of text. Numbers are written as a +- b, and the first column has the names of rows.

    `bold`, `underlined` and `marks` refer to cells by (row, column). `groups` is a line above the
    header: names, each with the number of columns that it spans, from the second column on.
    """

    title: str
    header: list[str]
    cells: list[list[str]]
    bold: Collection[tuple[int, int]] = ()  # ignored in the terminal
    underlined: Collection[tuple[int, int]] = ()  # ignored in the terminal
    marks: Mapping[tuple[int, int], str] = {}
    groups: Sequence[tuple[str, int]] = ()
    label: str = ""  # for \label in LaTeX


def number(value: float | None, form: str) -> str:
    """The number in a format such as ".2f", or NONE if there is none."""
    return NONE if value is None else format(value, form)


def mean_std(mean: float | None, std: float | None, places: int = 2) -> str:
    """Mean +- standard deviation with this number of decimal places, as far as they exist."""
    text = number(mean, f".{places}f")
    return text if mean is None or std is None else f"{text} +- {std:.{places}f}"


def flat_header(table: Table) -> list[str]:
    """The header with each column's group before its name, for formats with one header line."""
    over = ["", *(name for name, columns in table.groups for _ in range(columns))]
    if not table.groups:
        return table.header
    pairs = zip(over, table.header, strict=True)
    return [", ".join(filter(None, pair)) for pair in pairs]


def csv_text(lines: Iterable[Sequence], ending: str = "\n") -> str:
    """Lines of cells as CSV. A spreadsheet shows each text as it is, and never as a formula."""
    out = io.StringIO()
    csv.writer(out, lineterminator=ending).writerows([_cell(v) for v in line] for line in lines)
    return out.getvalue()


def csv_of_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows {column: cell} as CSV with a header; the cell of a column that a row lacks is empty."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for name in header] for row in rows]
    return csv_text([header, *cells]).rstrip("\n")


def _cell(value):
    """The value; a text that a spreadsheet would take for a formula gets a leading apostrophe."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    if text.lstrip()[:1] not in FORMULA:
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def terminal(table: Table) -> str:
    """The table as plain text, with columns aligned by spaces."""
    lines = [flat_header(table)]
    for i, row in enumerate(table.cells):
        lines.append([_marked(table, i, j, cell) for j, cell in enumerate(row)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for name, *cells in lines:
        rest = [f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)]
        text.append("  ".join([f"{name:{widths[0]}}", *rest]).rstrip())
    text.insert(1, "-" * max(map(len, text)))
    return _lines(table.title, *text)


def _lines(*lines):
    return "\n".join(map(printable, lines))


def _marked(table, i, j, cell):
    """The cell with its mark, or a space of the same width, so that numbers are aligned."""
    return f"{cell} {table.marks.get((i, j), ' ')}" if table.marks and j else cell


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown, with row names as code."""
    lines = ["| " + " | ".join(map(escape_markdown, flat_header(table))) + " |"]
    lines.append("|---" + "|---:" * (len(table.header) - 1) + "|")
    for i, (name, *cells) in enumerate(table.cells):
        code = "`" + name.replace("`", "'").replace("|", r"\|") + "`"
        written = []
        for j, cell in enumerate(cells, 1):
            text = set_off(table, i, j, escape_markdown(cell), ("**{}**", "<ins>{}</ins>"))
            mark = escape_markdown(table.marks.get((i, j), ""))
            written.append(f"{text} {mark}".rstrip())
        lines.append("| " + " | ".join([code, *written]) + " |")
    return _lines(escape_markdown(table.title), "", *lines)


def set_off(table: Table, i: int, j: int, text: str, how: tuple[str, str]) -> str:
    """The text of cell (i, j), set in bold or underlined if the table says so.

    how: the format strings for bold and for underlined text.
    """
    bold, underlined = how
    if (i, j) in table.bold:
        return bold.format(text)
    return underlined.format(text) if (i, j) in table.underlined else text


_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|"})


def escape_markdown(text: str) -> str:
    """Escapes a text so that Markdown shows it literally."""
    return text.translate(_MARKDOWN)


def latex(table: Table) -> str:
    """The table in LaTeX, at most as wide as the text. It needs the packages in LATEX_NEEDS."""
    lines = [_row(list(map(_latex, table.header)))]
    if table.groups:
        lines.insert(0, _group_row(table.groups))
    body = [
        _row([_latex_cell(table, i, j, cell) for j, cell in enumerate(row)])
        for i, row in enumerate(table.cells)
    ]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(table.title)}}}",
            *([rf"\label{{{table.label}}}"] if table.label else []),
            FIT,
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"\toprule",
            *lines,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
        ]
    )


FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"  # opens a brace


def _row(cells):
    return " & ".join(cells) + r" \\"


def _group_row(groups):
    """A header line with each group's name centered over its columns, and a rule below it."""
    cells, rules, first = [""], [], 2
    for name, columns in groups:
        cells.append(rf"\multicolumn{{{columns}}}{{c}}{{{_latex(name)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + columns - 1}}}")
        first += columns
    return _row(cells) + "\n" + " ".join(rules)


def _latex_cell(table, i, j, cell):
    text = set_off(table, i, j, _latex(cell), (r"\textbf{{{}}}", r"\underline{{{}}}"))
    mark = table.marks.get((i, j))
    return text + (rf"\rlap{{$^{{{_MARKS[mark]}}}$}}" if mark else "")  # beside the column


_MARKS = {BETTER: "*", WORSE: r"\dagger"}
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}"}
    | {WORSE: r"$\dagger$"}
)


def _latex(text):
    if text == NONE:
        return "--"
    text = printable(text).translate(_LATEX).replace("+-", r"$\pm$").replace(" to -", " to $-$")
    return "$-$" + text[1:] if text.startswith("-") else text
