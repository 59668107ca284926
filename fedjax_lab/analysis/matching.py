"""Matches runs with published numbers: finds the printed table cell with a run's settings."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab import configs
from fedjax_lab.analysis import runs
from fedjax_lab.analysis.runs import Row
from fedjax_lab.analysis.tables import WAYS, Choice
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.papers import published
from fedjax_lab.papers.published import Recipe, Result
from fedjax_lab.running import growth

# Settings in which a run may differ from the published one; notes report the relevant differences.
_MAY_DIFFER = (
    *("local.", "model.", "run.", "engine.", "embedding.", "partition.validation"),
    *("data.folder", "data.normalize", "data.augment"),
)
_NOT_TOLD = ("engine.", "embedding.", "data.folder", "run.eval_every")


class Printed(NamedTuple):
    """A published number that a single run can reproduce."""

    result: Result
    recipe: Recipe
    settings: dict[str, Any]  # the settings of this run, {"section.key": value}


def read(name: str, choice: Choice) -> list[Printed]:
    """The numbers of a published table for the chosen measure and way of choosing a round.

    Args:
      name: PAPER/TABLE, for example fedconcat/table1.
      choice: the measure and the way by which runs are compared.

    Raises BadInput if there is no such table, or if it has no such numbers.
    """
    paper, slash, table = name.partition("/")
    if not slash:
        example = "--published=fedconcat/table1"
        raise BadInput(f"--published={quoted(name)} is not PAPER/TABLE; for example {example}")
    recipes = [(result, published.recipe(result)) for result in published.find(paper, table)]
    recipes = [
        (result, recipe)
        for result, recipe in recipes
        if len(recipe.specs) == 1 and not recipe.target
    ]
    kinds = dict.fromkeys((recipe.measure, recipe.way) for _, recipe in recipes)
    wanted = choice.measure, choice.way
    if wanted not in kinds:
        options = " or ".join(f"--measure={m} --way={way}" for m, way in kinds)
        asked = f"{choice.measure}, {WAYS[choice.way]}"
        remedy = options or "none of its numbers comes from a single run"
        raise BadInput(f"{name} has no numbers of {asked}; {remedy}")
    return [
        Printed(result, recipe, _settings(recipe.specs[0]))
        for result, recipe in recipes
        if (recipe.measure, recipe.way) == wanted
    ]


def _settings(spec):
    """The config of a published cell's run, as {"section.key": value}."""
    path = Path(configs.__path__[-1]) / spec.config
    config = resolve(load_config(f"{path}:{spec.method}"), spec.settings.items())
    saved = json.loads(json.dumps(growth.saved_config(config, [0])))  # as a run's config.json
    return runs.flatten(runs.comparable(saved))


def find(row: Row, printed: Iterable[Printed]) -> Printed | None:
    """The published number with the row's method, method settings, data and partition, or None.

    If there are several, the one with the fewest other settings that differ is chosen.
    """
    settings = runs.flatten(row.config)
    differing = [(_differences(settings, one.settings), one) for one in printed]
    fitting = [(len(d), one) for d, one in differing if all(k.startswith(_MAY_DIFFER) for k in d)]
    return min(fitting, key=lambda pair: pair[0], default=(0, None))[1]


def _differences(settings, others):
    """The keys whose values differ between two flat configs."""
    keys = dict.fromkeys([*settings, *others])
    return [key for key in keys if settings.get(key) != others.get(key)]


def notes(pairs: Sequence[tuple[Row, Printed]]) -> list[str]:
    """Notes for readers about the published numbers beside rows, one line each."""
    lines: dict[str, None] = {}
    for row, printed in pairs:
        settings = runs.flatten(row.config)
        for key in _differences(settings, printed.settings):
            if not key.startswith(_NOT_TOLD):
                ours, theirs = (one.get(key, "absent") for one in (settings, printed.settings))
                values = f"{runs.shown(ours)} in these runs, {runs.shown(theirs)} as published"
                lines[f"{key} is {values}"] = None
        lines |= dict.fromkeys(printed.recipe.notes)
        if conflict := printed.result.conflict:
            lines[f"{published.cell_name(printed.result)}: {conflict}"] = None
    return list(lines)
