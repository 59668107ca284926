"""What the pages of the five papers have from the package: the accuracy tables and their runs."""

from collections.abc import Sequence
from pathlib import Path

import result_tables

from fedjax_lab.analysis import published
from fedjax_lab.analysis.published import Recipe, Result


def accuracies(paper: str) -> str:
    """A table of a paper's accuracy tables, by data set, and what their runs leave open."""
    rows = [
        "| table | data | model | cells | runs | seeds | config |",
        "|---|---|---|---|---|---|---|",
    ]
    noted: dict[str, list[str]] = {}
    for (of_paper, table), results in published.tables().items():
        if of_paper == paper:
            rows += [_row(results, data, table) for data in dict.fromkeys(map(_data, results))]
            for note in dict.fromkeys(n for r in results for n in _said(published.recipe(r))):
                noted.setdefault(note, []).append(table)
    notes = [f"- Table {_listed(where)}: {note}." for note, where in noted.items()]
    said = "What the paper leaves open, or what a run here has otherwise:\n\n" + "\n".join(notes)
    return "\n".join(rows) + ("\n\n" + said if notes else "") + "\n"


def _data(result: Result) -> tuple[str, str]:
    return result.dataset, result.model


def _row(results: Sequence[Result], data: tuple[str, str], table: str) -> str:
    recipes = [published.recipe(r) for r in results if _data(r) == data]
    specs = {spec.name: spec for recipe in recipes for spec in recipe.specs}
    files = dict.fromkeys(spec.config for spec in specs.values())
    configs = ", ".join(f"[`{file}`](../../configs/{file})" for file in files) or "not run"
    counts = f"{len(recipes)} | {len(specs)} | {max(recipe.seeds for recipe in recipes)}"
    return f"| {table} | `{data[0]}` | `{data[1]}` | {counts} | {configs} |"


def _said(recipe: Recipe) -> list[str]:
    return [*recipe.notes, *([f"not run: {recipe.lacks}"] if recipe.lacks else [])]


def _listed(tables: Sequence[str]) -> str:
    each = list(dict.fromkeys(tables))
    return ", ".join(each[:-1]) + " and " + each[-1] if len(each) > 1 else each[0]


def measured(title: str, docs: Path) -> str:
    """Links to the headings of the pages of results that name the paper."""
    found = []
    for path in result_tables.files(docs):
        for heading, _ in result_tables.sections(path.read_text(encoding="utf-8")):
            if title.lower() in heading.lower():
                address = f"../{path.name}#{result_tables.anchor(heading)}"
                found.append(f"- [{heading}]({address})")
    return "\n".join(found) or "No page of results has measured numbers of this paper yet."
