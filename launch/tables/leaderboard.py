"""The leaderboard: every method on four federations, each tuned with the same number of draws.

Each method draws its learning rate, and the settings for which its file declares RANGES, three or
twelve times. The draws are run with seed 0, in one program where the method allows it; then repeat
the command: the draw of each method with the highest accuracy on validation examples is run with
the other seeds as well. A cell is named FEDERATION/METHOD,SETTING=VALUE..., so that
--cells='digits/ditto*' runs one method on the digits, and --budget=2 what fits into two hours.

The digit domains and Fashion-MNIST are small because each method has five runs on each, and each
run is compiled anew. The budget was four hours on two cores. The digit domains have half the images
and half the width of configs/digit_domains.py, 20 x 20 instead of 28 x 28 pixels, and all of its 50
rounds: after 20 rounds FedBN was behind FedAvg (71 against 82 % at 28 x 28), which it leads after
100 (91 against 86 %). Fashion-MNIST has a perceptron, because the rounds of a CNN would take
several times as long.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import records
from records import Record

from fedjax_lab.analysis import compare, formats
from fedjax_lab.experiment.registry import METHODS
from fedjax_lab.sweeping import sweep_tuning
from fedjax_lab.sweeping.sweep_plan import Cell, Shared, plan
from fedjax_lab.testing.toy import needs_adapters

PAGE = "leaderboard.md"
TOGETHER = True  # draws of a method are one computation
BASELINE = "fedavg"
FIRST = BASELINE, "local"  # the others are in alphabetical order
NAMES = [name for name in METHODS if not needs_adapters(name)]
ORDER = sorted(NAMES, key=lambda name: ([*FIRST, name].index(name), name))
REFERENCE = "central"  # it is not federated, and its difference to FedAvg is not tested

# The first three draws of the learning rate in stream 1 (0.00237, 0.095, 0.0243) lie in different
# thirds of its logarithmic range.
SCORE, SCORE_LOSS = "best_by_validation/id", "best_by_validation/id_loss"
MEASURES = "accuracy.mean", "accuracy.worst10", "global"
ACCURACY, WORST, GLOBAL = (f"best_by_validation/{measure}" for measure in MEASURES)
MEGABYTES, SECONDS = "to target/megabytes", "to target/seconds"
WORST_SCORE = -np.inf, 0.0  # of a draw that diverged

Values = dict[int, dict[str, float]]  # {seed: {measure: value}}


class Federation(NamedTuple):
    """A data set and partition on which the methods are compared."""

    title: str
    config: str
    overrides: list[tuple[str, str]]
    target: float  # accuracy in percent for which the megabytes and seconds are recorded
    draws: int = 3  # of each method
    seeds: tuple[int, ...] = (0, 1, 2)  # of the best draw; the others have the first one


FEDERATIONS = {
    "digits": Federation(
        "Five digit domains",
        "configs/digit_domains.py",
        [("model.width", "8"), ("data.train_per_domain", "500"), ("data.size", "20")],
        target=75.0,
    ),
    "fashion": Federation("Fashion-MNIST", "configs/fmnist_leaderboard.py", [], target=70.0),
    "mnist": Federation(
        "MNIST",
        "configs/fmnist_leaderboard.py",
        [("data.name", "mnist"), ("data.train_per_class", "500")],
        target=85.0,
        draws=12,
        seeds=(0, 1, 2, 3, 4),
    ),
    "heart": Federation(
        "Heart disease of four hospitals",
        "configs/heart_disease.py",
        [("partition.validation", "0.2")],
        target=75.0,
        draws=12,
        seeds=(0, 1, 2, 3, 4),
    ),
}

# At the default of 500 epochs, computing the index would take several times as long as the rounds.
METHOD_OVERRIDES = {"client2vec": [("method.index_epochs", "20")]}
METHOD_OVERRIDES |= {name: [*settings.items()] for name, settings in records.NEEDED.items()}


# The runs.


def cells(out):
    """The draws of all methods; those that are the best by the existing records have all seeds."""
    places = [(name, method) for name in FEDERATIONS for method in ORDER]
    planned = [draw for place in places for draw in draws(*place)]
    of_table = records.current(*records.read("leaderboard"), planned, out)
    best = {chosen(of_table, *place) for place in places}
    return [
        each._replace(seeds=[*federation_of(each.name).seeds]) if each.name in best else each
        for each in planned
    ]


def federation_of(name: str) -> Federation:
    """The federation of a cell."""
    return FEDERATIONS[name.partition("/")[0]]


@functools.cache
def draws(name: str, method: str) -> list[Cell]:
    """The cells of a method's draws on the federation `name`, with the first seed alone."""
    federation = FEDERATIONS[name]
    overrides = [*federation.overrides, *METHOD_OVERRIDES.get(method, [])]
    shared = Shared(str(records.ROOT / federation.config), overrides, [*federation.seeds])
    search = sweep_tuning.parse(f"random:{federation.draws}:1", "validation", [])
    (contender,) = sweep_tuning.contenders(plan(shared, [method], {}).values(), shared, search)
    return [draw._replace(name=f"{name}/{Path(draw.name).name}") for draw in contender.draws]


def chosen(of_table: Sequence[Record], name: str, method: str) -> str:
    """The cell of a method's best draw; "" if a draw has no record yet, or all have diverged."""
    names, first = {draw.name for draw in draws(name, method)}, FEDERATIONS[name].seeds[0]
    of_first = {r.cell: score(r.values) for r in of_table if r.seed == first and r.cell in names}
    if len(of_first) < len(names):
        return ""
    best = max((draw.name for draw in draws(name, method)), key=of_first.__getitem__)
    return best if of_first[best] > WORST_SCORE else ""


def score(values: dict[str, float]) -> tuple[float, float]:
    """The sort key of a draw, larger for a better one, as in a sweep."""
    if records.DIVERGED in values:
        return WORST_SCORE
    return values[SCORE], -values.get(SCORE_LOSS, 0.0)


def measured(row):
    """The accuracies of each seed, its score, and the cost until the target if it was reached."""
    target = federation_of(row.name).target
    out = records.in_rounds("last", "best_by_validation", measures=MEASURES)(row)
    of_score = records.in_rounds("best_by_validation", measures=("id", "id_loss"))(row)
    for seed, rows in row.seeds.items():
        goal = compare.goal(row._replace(seeds={seed: rows}), MEASURES[0], target)
        cost = goal.cost and {MEGABYTES: goal.cost.bytes / 1e6, SECONDS: goal.cost.seconds}
        out[seed] |= of_score[seed] | (cost or {})
    return out


# The tables.


def tables(of_table):
    """A table for each federation, the method with the highest mean accuracy first."""
    return [_table(of_table, name) for name in FEDERATIONS]


def _table(of_table, name):
    federation, of_methods = FEDERATIONS[name], complete(of_table, name)
    pairs = differences(of_methods)
    header = [federation.title, "accuracy, %", f"minus {BASELINE}", "worst tenth, %", "global, %"]
    header.append(f"MB to {federation.target:g} %")
    rows = [[method, *_row(values, pairs.get(method))] for method, values in of_methods.items()]
    title = f"{federation.title}. {significant(pairs)}"
    reasons = records.reasons("leaderboard")
    refused = {m: reasons[key] for m in ORDER if (key := f"{name}/{m}") in reasons}
    if missing := [method for method in ORDER if method not in {*of_methods, *refused}]:
        title += f" Not shown, because runs are missing or diverged: {', '.join(missing)}."
    rows += [[m, f"cannot run: {why}", *[formats.NONE] * 4] for m, why in refused.items()]
    return formats.Table(title, header, rows)


def complete(of_table: Sequence[Record], name: str) -> dict[str, Values]:
    """The methods all of whose seeds are measured and did not diverge, the best one first."""
    out = {}
    for method in ORDER:
        best = chosen(of_table, name, method)
        values = {r.seed: r.values for r in of_table if r.cell == best}
        if sorted(values) == [*FEDERATIONS[name].seeds] and not any(
            records.DIVERGED in v for v in values.values()
        ):
            out[method] = values
    ordered = sorted(out.items(), key=lambda item: -np.mean(numbers(item[1], ACCURACY)))
    return dict(ordered)


def numbers(values: Values, measure: str) -> list[float]:
    """The values of a measure, one for each seed that has it."""
    return [of_seed[measure] for _, of_seed in sorted(values.items()) if measure in of_seed]


def differences(of_methods: dict[str, Values]) -> dict[str, compare.Paired]:
    """The differences of the methods to BASELINE, paired by seed; empty without it."""
    by_seed = {m: {s: v[ACCURACY] for s, v in of.items()} for m, of in of_methods.items()}
    theirs = by_seed.pop(BASELINE, None)
    return {m: compare.paired(ours, theirs) for m, ours in by_seed.items()} if theirs else {}


def significant(pairs: dict[str, compare.Paired]) -> str:
    """A sentence that names the methods of the pairs with p < 0.05 after Holm's correction."""
    p = {m: 1.0 if pair.t is None else pair.t for m, pair in pairs.items() if m != REFERENCE}
    corrected = zip(p, compare.holm([*p.values()]), strict=True)
    below = ", ".join(method for method, q in corrected if q < 0.05)
    return (
        f"Difference to {BASELINE} with p < 0.05 after Holm's correction (methods: {len(p)}):"
        f" {below or 'no method'}."
    )


def _row(values, pair):
    """The texts of a method's row; a cost is shown if every seed has reached the target."""
    accuracy, cost = compare.spread(numbers(values, ACCURACY)), numbers(values, MEGABYTES)
    means = [numbers(values, measure) for measure in (WORST, GLOBAL)]
    means.append(cost if len(cost) == len(values) else [])
    return [
        f"{accuracy.mean:.1f}{half_width(accuracy)}",
        difference(pair),
        *(f"{np.mean(each):.1f}" if each else formats.NONE for each in means),
    ]


def difference(pair: compare.Paired | None) -> str:
    """Format the mean difference with its interval."""
    if pair is None:
        return formats.NONE
    return f"{pair.difference.mean:+.1f}{half_width(pair.difference)}"


def half_width(spread: compare.Spread) -> str:
    """Format half of the 95 % interval; empty if there is none."""
    return "" if spread.low is None else f"±{(spread.high - spread.low) / 2:.1f}"
