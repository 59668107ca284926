"""Search in a sweep: draws the settings of each method at random, and chooses the best draw.

`sweep_study` draws by Optuna instead. Every method gets the same number of draws at each point of
the grid. A draw is a run of one seed in the sweep's folder draws/CELL. The best draw becomes an
ordinary cell with all seeds.
"""

import inspect
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab import ranges
from fedjax_lab.errors import BadInput, cut, nearest, quoted
from fedjax_lab.experiment.aliases import ALIASES
from fedjax_lab.experiment.registry import is_method, is_wrapper, keyword_defaults, look_up
from fedjax_lab.ranges import Range
from fedjax_lab.running.storage import files, metric_rows
from fedjax_lab.sweeping.sweep_folder import done, last_ending
from fedjax_lab.sweeping.sweep_plan import Cell, Shared, make_cell

BY = ("random", "tpe")  # at random, or by Optuna's tree-structured Parzen estimator
ON = ("validation", "test")  # the kinds of examples on which the best draw can be chosen
MOST_DRAWS = 10_000
_FIXED = ("data", "partition", "run", "engine")  # config sections that cannot be tuned


class Search(NamedTuple):
    """The search that --tune, --on and --range define."""

    by: str  # a key of BY
    draws: int  # number of draws for each method at each point of the grid
    stream: int  # seed of the random numbers
    on: str  # one of ON
    ranges: dict[str, Range]  # the ranges given by --range, by dotted key

    def __str__(self) -> str:
        return f"{self.by}:{self.draws}" + (f":{self.stream}" if self.stream else "")


class Contender(NamedTuple):
    """A method at a point of the grid, with its draws."""

    cell: Cell  # has the settings of the config
    ranges: dict[str, Range]  # what is drawn, by dotted key
    draws: list[Cell]  # empty if they depend on the results of earlier ones
    missing: int = 0  # number of draws that have not been made


def parse(tune: str, on: str, listed: Iterable[str]) -> Search:
    """Parses --tune=BY:DRAWS[:STREAM], --on and each --range=SECTION.KEY=RANGE."""
    match = re.fullmatch(rf"({'|'.join(BY)}):(\d{{1,9}})(?::(\d{{1,9}}))?", tune)
    if match is None or not 0 < int(match[2]) <= MOST_DRAWS:
        raise BadInput(
            f"--tune={cut(tune, 80)} is not random:DRAWS or tpe:DRAWS with 1 to {MOST_DRAWS} draws,"
            " such as --tune=random:20"
        )
    if on not in ON:
        raise BadInput(f"--on cannot be {quoted(on)}; {nearest(on, ON)}")
    of_flags: dict[str, Range] = {}
    for text in listed:
        key, given = _parse_range(text)
        if key in of_flags:
            raise BadInput(f"--range={cut(key, 80)} is given twice")
        of_flags[key] = given
    return Search(match[1], int(match[2]), int(match[3] or 0), on, of_flags)


def _parse_range(text):
    key, equals, given = text.removeprefix("config.").partition("=")
    key = ALIASES.get(key, key)
    if not equals or "." not in key:
        example = "--range=method.mu=log:0.001,1"
        raise BadInput(f"--range={cut(text, 80)} is not SECTION.KEY=RANGE; for example {example}")
    if key.partition(".")[0] in _FIXED or key in ("method.name", "method.base"):
        raise BadInput(
            f"--range={cut(key, 80)}: this key cannot be tuned, because all draws must train on the"
            f" same problem at the same cost; use --grid={cut(key, 80)}=VALUE,VALUE"
        )
    try:
        return key, ranges.parse(given)
    except BadInput as error:
        raise BadInput(f"--range={cut(key, 80)}: {error}") from error


# The draws.


def contenders(cells: Iterable[Cell], shared: Shared, search: Search) -> list[Contender]:
    """The ranges, and if they are known the draws, for each cell of a plan.

    Raises BadInput if a draw has invalid settings.
    """
    given = {key for key, _ in shared.overrides}
    out: list[Contender] = []
    keys: set[str] = set()
    settings: set[str] = set()
    for cell in cells:
        _check_validation(cell, search)
        of_cell = {f"{s}.{key}" for s, values in cell.config.items() for key in values}
        settings |= of_cell
        _check_given(search.ranges, given | cell.grid.keys())
        wanted = {key: each for key, each in search.ranges.items() if key in of_cell}
        keys |= wanted.keys()
        drawn = {**_ranges_of(cell), **wanted}
        drawn = {key: each for key, each in drawn.items() if key not in given | cell.grid.keys()}
        draws = _draws(cell, shared, search, drawn) if search.by == "random" else []
        out.append(Contender(cell, drawn, draws))
    for key in search.ranges.keys() - keys:
        flag = f"--range={cut(key, 80)}"
        raise BadInput(f"{flag}: no method of the sweep has it; {nearest(key, settings)}")
    return out


def _check_validation(cell, search):
    """Raises BadInput if the search needs validation examples and the cell has none."""
    if search.on == "validation" and not cell.config.partition.validation:
        raise BadInput(
            "--on=validation needs validation examples: --config.partition.validation=0.1 keeps a"
            " tenth of each client's training examples for that"
        )


def _check_given(of_flags, given):
    for key in of_flags.keys() & given:
        raise BadInput(f"config.{key} has a range in --range and a value; drop one of them")


def _ranges_of(cell):
    """The declared ranges of the method, of its base method and of local.lr, by dotted key."""
    by_key: dict[str, Range] = {}
    settings = cell.config.method
    functions = [look_up("method", settings.name)]
    if is_wrapper(functions[0]):
        functions.append(look_up("method", settings.base))
    for function in functions:
        declared = ranges.declared(function)
        _check_declared(function, declared)
        of_method = declared.keys() & keyword_defaults(function).keys()
        by_key |= {f"method.{key}": declared[key] for key in declared if key in of_method}
    optimizer = cell.config.local.optimizer
    return {**by_key, "local.lr": ranges.LEARNING_RATES.get(optimizer, ranges.ADAPTIVE)}


def _check_declared(function, declared):
    """Raises BadInput if a range is for a setting that no method in the function's file has."""
    beside = getattr(inspect.unwrap(function), "__globals__", {}).values()
    methods = [function, *filter(is_method, beside)]
    settings = {key for method in methods for key in keyword_defaults(method)}
    for key in declared.keys() - settings:
        name = function.__name__
        raise BadInput(f"RANGES beside {name}: no setting {key!r}; {nearest(key, settings)}")


def _draws(cell, shared, search, drawn):
    """The draws of a cell. Equal draws, which only discrete ranges produce, become one cell."""
    cells = {}
    for number in range(search.draws):
        values = {
            key: str(ranges.at(each, share(search.stream, number, key)))
            for key, each in drawn.items()
        }
        draw = make_draw(cell, shared, values)
        cells.setdefault(draw.name, draw)
    return list(cells.values())


def make_draw(cell: Cell, shared: Shared, values: Mapping[str, str]) -> Cell:
    """The run of the first seed with these values of the settings, by dotted key."""
    made, first = make_cell(shared, cell.method, {**cell.grid, **values}), cell.seeds[:1]
    return made._replace(name=f"{files.DRAWS}/{made.name}", seeds=first, note={"seeds": first})


def share(stream: int, number: int, key: str) -> float:
    """A random number in [0, 1) for one setting of a draw.

    It depends only on the arguments. Methods that share a setting therefore share its draws, and
    the first draws stay the same if more draws are made.

    Args:
      stream: the seed of the search.
      number: the number of the draw.
      key: the dotted key of the setting.
    """
    return float(np.random.default_rng([stream, number, zlib.crc32(key.encode())]).random())


# The choice.


def waiting(contender: Contender, out: Path) -> int:
    """The number of draws that have not ended."""
    return contender.missing + sum(done(draw, out / draw.name) is None for draw in contender.draws)


def chosen(contender: Contender, out: Path, shared: Shared, search: Search) -> Cell | None:
    """The cell of the best draw, with all seeds; None if every draw has diverged.

    All draws must have ended. If several draws are equally good, the first one is chosen.
    """
    scored = [
        (score, draw)
        for draw in contender.draws
        if (score := score_of(draw, out, search)) is not None
    ]
    if not scored:
        return None
    _, best = max(scored, key=lambda pair: pair[0])
    cell = make_cell(shared, best.method, best.grid)
    return cell._replace(note={"tuned": spent(contender, out, search)})


def score_of(draw: Cell, out: Path, search: Search) -> tuple[float, ...] | None:
    """A tuple that is larger for a better draw; None if it has diverged or was ended early."""
    outcome, summary = last_ending(out / draw.name, draw.config.run.rounds)
    ended_early = summary.get("stopped", {}).get("rule") == "on_evaluation"
    if outcome is None or outcome.code or ended_early:
        return None
    way = "last" if search.on == "test" else "best_by_validation"
    values = summary.get(way, {}).get("mean", {})
    if (gain := gain_of(values, search.on)) is None:
        raise BadInput(
            f"{draw.name} has no accuracy on {search.on} examples, so the best draw cannot be"
            " chosen"
        )
    if search.on == "test":
        return (gain,)
    return gain, -values.get("id_loss", 0.0)  # the loss breaks ties of the accuracy


def gain_of(row: dict, on: str) -> float | None:
    """What the search maximizes, in an evaluation; None if the evaluation does not have it."""
    measure_in = metric_rows.headline_measure if on == "test" else metric_rows.validation_measure
    measure = measure_in(row)
    value = None if measure is None else metric_rows.value_of(row, measure)
    return None if measure is None or value is None else metric_rows.gain(measure, value)


def spent(contender: Contender, out: Path, search: Search) -> dict:
    """The cost of a search for sweep.json: the number of draws, their rounds and seconds."""
    outcomes, summaries = zip(
        *(last_ending(out / draw.name) for draw in contender.draws), strict=True
    )
    return {
        "by": str(search),
        "on": search.on,
        "draws": len(contender.draws),
        "diverged": sum(outcome.code != 0 for outcome in outcomes),
        "rounds": sum(summary.get("rounds", 0) for summary in summaries),
        "seconds": round(sum(map(seconds, summaries)), 3),
    }


def seconds(summary: Mapping) -> float:
    """Seconds of training of a run; for runs joined into one computation, its share of them."""
    return summary.get("seconds", 0.0) / summary.get("runs_together", 1)
