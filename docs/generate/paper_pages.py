"""Generates the parts of the five papers' pages that list accuracy tables and results."""

from collections.abc import Sequence
from pathlib import Path

import result_tables

from fedjax_lab.papers import published
from fedjax_lab.papers.published import Recipe, Result


def accuracies(paper: str) -> str:
    """A Markdown table of a paper's accuracy tables, and notes on how the runs differ."""
    rows = ["| table | data (model) | cells | runs | seeds | config |", "|---|---|---|---|---|---|"]
    noted: dict[str, list[str]] = {}
    for (of_paper, table), results in published.tables().items():
        if of_paper == paper:
            recipes = [published.recipe(result) for result in results]
            rows.append(_row(table, results, recipes))
            for note in dict.fromkeys(note for recipe in recipes for note in _notes(recipe)):
                noted.setdefault(note, []).append(table)
    notes = [f"- {_listed(where)}: {note}." for note, where in noted.items()]
    heading = "\n\nDetails that the paper leaves open, or that differ in the runs here:\n\n"
    return "\n".join(rows) + (heading + "\n".join(notes) if notes else "") + "\n"


def _row(table: str, results: Sequence[Result], recipes: Sequence[Recipe]) -> str:
    data = ", ".join(dict.fromkeys(f"{r.dataset} ({r.model})" for r in results))
    specs = {spec.name: spec.config for recipe in recipes for spec in recipe.specs}
    links = [f"[{file}](../../configs/{file})" for file in dict.fromkeys(specs.values())]
    counts = f"{len(recipes)} | {len(specs)} | {max(recipe.seeds for recipe in recipes)}"
    return f"| {table} | {data} | {counts} | {', '.join(links) or 'not run'} |"


def _notes(recipe: Recipe) -> list[str]:
    return [*recipe.notes, *([f"not run: {recipe.lacks}"] if recipe.lacks else [])]


def _listed(tables: Sequence[str]) -> str:
    if len(tables) == 1:
        return f"Table {tables[0]}"
    return f"Tables {', '.join(tables[:-1])} and {tables[-1]}"


def measured(title: str, docs: Path) -> str:
    """Links to the headings of the results pages that contain `title`, the name of the paper."""
    links = []
    for path in result_tables.files(docs):
        for heading, _ in result_tables.sections(path.read_text(encoding="utf-8")):
            if title.lower() in heading.lower():
                address = f"../{path.name}#{result_tables.anchor(heading)}"
                links.append(f"- [{heading}]({address})")
    return "\n".join(links) or "No results page has measured numbers for this paper yet."
