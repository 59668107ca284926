"""Reads the rows of tables in pages of measured numbers, by the name in their first cell."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A row of a Markdown table, with the section in which the table is."""

    file: str  # name of the page
    heading: str
    anchor: str
    header: list[str]
    cells: list[str]


def files(docs: Path) -> list[Path]:
    """The results pages, docs/results*.md."""
    return sorted(docs.glob("results*.md"))


def rows(paths: Iterable[Path]) -> dict[str, list[Row]]:
    """{name: rows whose first cell has this name, ignoring backticks and asterisks}."""
    by_name: dict[str, list[Row]] = {}
    for path in paths:
        for heading, part in sections(path.read_text(encoding="utf-8")):
            for header, cells in tables(part):
                row = Row(path.name, heading, anchor(heading), header, cells)
                by_name.setdefault(cells[0].strip("`* "), []).append(row)
    return by_name


def sections(text: str) -> list[tuple[str, str]]:
    """(heading, text below it) of each section of a page; code blocks contain no headings."""
    out, fenced = [("", [])], False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            out.append((line.lstrip("# ").strip(), []))
        out[-1][1].append(line)
    return [(heading, "\n".join(lines)) for heading, lines in out]


def tables(text: str) -> list[tuple[list[str], list[str]]]:
    """(header, cells) for each row of each table in the text."""
    out = []
    for table in re.findall(r"(?:^\|.*\n?){3,}", text, re.M):
        header, _, *body = [_cells(line) for line in table.strip().split("\n")]
        out += [(header, cells) for cells in body if len(cells) == len(header)]
    return out


def _cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def anchor(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown forms it."""
    words = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower()
    return re.sub(r"[-\s]+", "-", words)
