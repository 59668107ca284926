"""Runs every method on two federations, tuned with equal effort, and writes docs/leaderboard.md.

    python launch/leaderboard.py [--methods=fedavg,ditto,...] [--federations=digits,fashion]
        [--out=runs/leaderboard] [--commit=HASH]
    python launch/leaderboard.py --page

Each method draws its learning rate, and the settings for which its file declares RANGES, three
times. The three draws are run with seed 0. The draw with the highest accuracy on validation
examples is run with seeds 1 and 2 as well. FedAvg and Local come first, then the other methods in
alphabetical order.

The numbers of each run are added to docs/results/leaderboard.csv as soon as it has ended, and the
page is rewritten after each method that was run. Runs that the CSV file has are skipped. Commit it,
and another session or another machine measures the remaining runs. An interrupted run is resumed
from its folder in --out.

--methods      only these methods
--federations  only these federations: digits, fashion
--out          the folder of the runs
--commit       the commit of the code; needed only in a copy of the repository without .git
--page         write the page from the recorded numbers; runs nothing

The federations are small because each method has five runs on each, 610 runs in all, and each run
is compiled anew. The budget was four hours on two cores. The digit domains have half the images and
half the width of configs/digit_domains.py, 20 x 20 instead of 28 x 28 pixels, and all of its 50
rounds: after 20 rounds FedBN was behind FedAvg (71 against 82 % at 28 x 28), which it leads after
100 (91 against 86 %). A run of FedAvg on the digit domains trains for 10 s on one core, after 10 s
of compilation. Fashion-MNIST has a perceptron, because the rounds of a CNN would take several times
as long.

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the slow imports, so that an interrupt during them is handled
    from fedjax_lab.commands import command

    command.begin()

import argparse
import functools
import sys
from pathlib import Path
from typing import NamedTuple

import measure
import numpy as np
import records
from records import Record

from fedjax_lab.analysis import compare, formats, runs
from fedjax_lab.commands import command
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput, nearest, parse, quoted
from fedjax_lab.experiment.registry import METHODS
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.sweeping import sweep_folder, sweep_tuning
from fedjax_lab.sweeping.sweep_plan import Cell, Shared, plan

NAME = "leaderboard"
PAGE = records.ROOT / "docs" / "leaderboard.md"
SEEDS = [0, 1, 2]
BASELINE, LOCAL = "fedavg", "local"
Pairs = dict[str, compare.Paired]  # {method: its difference to one other method}
REFERENCE = "central"  # it is not federated and has no rank
ORDER = sorted(METHODS, key=lambda name: (name != BASELINE, name != LOCAL, name))

# The three draws of the learning rate in stream 1 of the random numbers (0.00237, 0.095, 0.0243)
# lie in different thirds of its logarithmic range.
SEARCH = sweep_tuning.parse("random:3:1", "validation", [])
SCORE, SCORE_LOSS = "best_by_validation/id", "best_by_validation/id_loss"
MEASURES = "accuracy.mean", "accuracy.worst10", "global"
ACCURACY, WORST, GLOBAL = (f"best_by_validation/{measure}" for measure in MEASURES)
LAST = f"last/{MEASURES[0]}"
MEGABYTES, SECONDS = "to target/megabytes", "to target/seconds"


class Federation(NamedTuple):
    """A data set and partition on which the methods are compared."""

    title: str
    config: str
    overrides: list[tuple[str, str]]
    target: float  # accuracy in percent for which the table reports megabytes and seconds


FEDERATIONS = {
    "digits": Federation(
        "Five digit domains, one client each",
        "configs/digit_domains.py",
        [("model.width", "8"), ("data.train_per_domain", "500"), ("data.size", "20")],
        target=75.0,
    ),
    "fashion": Federation(
        "Fashion-MNIST, 20 clients under label skew, Dir(0.1)",
        "configs/fmnist_leaderboard.py",
        [],
        target=70.0,
    ),
}

# At the default of 500 epochs, computing the index would take several times as long as the rounds.
METHOD_OVERRIDES = {"client2vec": [("method.index_epochs", "20")]}


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, code = _parse(argv), 0
    if not args.page:
        for name in args.federations:
            for method in args.methods:
                before = records.read(NAME)
                code |= run(args, name, method)
                if records.read(NAME) != before:
                    write(args.out)
    write(args.out)
    return code


def _parse(argv):
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--methods", default=",".join(ORDER))
    parser.add_argument("--federations", default=",".join(FEDERATIONS))
    parser.add_argument("--out", type=Path, default=Path("runs") / NAME)
    parser.add_argument("--commit")
    parser.add_argument("--page", action="store_true")
    args = parse(parser, argv)
    args.name, args.cells, args.seeds = NAME, None, None  # for launch/measure.py: no restriction
    for flag, names in (("methods", ORDER), ("federations", FEDERATIONS)):
        chosen = getattr(args, flag).split(",")
        for name in chosen:
            if name not in names:
                raise BadInput(f"--{flag}: unknown name {quoted(name)}; {nearest(name, names)}")
        setattr(args, flag, chosen)
    return args


# The runs.


def run(args, name: str, method: str) -> int:
    """Run what has no numbers yet: a method's draws, then more seeds of the best one.

    name: the federation. Returns the exit code.
    """
    drawn = draws(name, method)
    code = measure.measure(args, sys.modules[__name__], drawn)
    best = chosen(drawn, current(drawn, args.out))
    return code if best is None else code | measure.measure(args, sys.modules[__name__], [best])


@functools.cache
def draws(name: str, method: str) -> list[Cell]:
    """The cells of a method's draws on the federation `name`, with the first seed alone."""
    federation = FEDERATIONS[name]
    overrides = [*federation.overrides, *METHOD_OVERRIDES.get(method, [])]
    shared = Shared(str(records.ROOT / federation.config), overrides, SEEDS)
    (contender,) = sweep_tuning.contenders(plan(shared, [method], {}).values(), shared, SEARCH)
    return [draw._replace(name=f"{name}/{Path(draw.name).name}") for draw in contender.draws]


def chosen(drawn: list[Cell], available: list[Record]) -> Cell | None:
    """The best draw, with all seeds; None if a draw has no record yet, or all have diverged."""
    of_first = {r.cell: r.values for r in available if r.seed == SEEDS[0]}
    if any(draw.name not in of_first for draw in drawn):
        return None
    scored = [(score(of_first[draw.name]), draw) for draw in drawn]
    scored = [(key, draw) for key, draw in scored if key is not None]
    if not scored:
        return None
    _, best = max(scored, key=lambda pair: pair[0])
    return best._replace(seeds=SEEDS)


def score(values: dict[str, float]) -> tuple[float, float] | None:
    """The sort key of a draw, larger for a better one, as in a sweep; None if it diverged."""
    if records.DIVERGED in values:
        return None
    return values[SCORE], -values.get(SCORE_LOSS, 0.0)


def measured(row: runs.Row) -> records.Measured:
    """The numbers to record from the runs of a cell: see launch/measure.py."""
    target = FEDERATIONS[row.name.partition("/")[0]].target
    out = records.in_rounds("last", "best_by_validation", measures=MEASURES)(row)
    of_score = records.in_rounds("best_by_validation", measures=("id", "id_loss"))(row)
    for seed, rows in row.seeds.items():
        goal = compare.goal(row._replace(seeds={seed: rows}), MEASURES[0], target)
        cost = goal.cost and {MEGABYTES: goal.cost.bytes / 1e6, SECONDS: goal.cost.seconds}
        out[seed] |= of_score[seed] | (cost or {})
    return out


def current(cells: list[Cell], out: Path) -> list[Record]:
    """The records of the cells, of all seeds, that were measured with today's settings."""
    with_all = [cell._replace(seeds=SEEDS) for cell in cells]
    return records.current(*records.read(NAME), with_all, out)


# The page.


class Place(NamedTuple):
    """The entry of a method in the table of a federation."""

    method: str
    seeds: dict[int, dict[str, float]]  # {seed: {measure: value}}
    missing: str = ""  # why the method is not ranked; empty if it is


def write(out: Path) -> None:
    """Write docs/leaderboard.md from the records alone."""
    parts, used = [], []
    for name, federation in FEDERATIONS.items():
        cells = {method: draws(name, method) for method in ORDER}
        available = current([draw for drawn in cells.values() for draw in drawn], out)
        used += available
        places = [place(method, drawn, available, out) for method, drawn in cells.items()]
        parts += [f"## {federation.title}", setting(name), section(federation, places)]
    metric_rows.write_text(PAGE, "\n\n".join([INTRODUCTION, origin(used), *parts, READING]) + "\n")


def setting(name: str) -> str:
    """A paragraph about the settings of the runs on a federation."""
    federation, drawn = FEDERATIONS[name], draws(name, BASELINE)
    config = drawn[0].config
    rates = sorted(float(draw.grid["local.lr"]) for draw in drawn)
    flags = ", ".join(f"`--config.{key}={value}`" for key, value in federation.overrides)
    return (
        f"The config is `{federation.config}`{flags and ' with '}{flags}. A run has"
        f" {config.run.rounds} rounds with all clients. In each round a client trains with SGD"
        f" (epochs: {config.local.epochs}, momentum: {config.local.momentum:g}, batch size:"
        f" {config.local.batch_size}). {100 * config.partition.validation:g} % of the training"
        f" examples are validation examples. Learning rates: {', '.join(map(str, rates))}."
    )


def place(method: str, drawn: list[Cell], available: list[Record], out: Path) -> Place:
    """The entry of a method in the table of a federation, from the records of its draws."""
    of_method = [r for r in available if r.cell in {draw.name for draw in drawn}]
    best = chosen(drawn, of_method)
    if best is None:
        return Place(method, {}, why(drawn, of_method, out))
    seeds = {r.seed: r.values for r in of_method if r.cell == best.name}
    if any(records.DIVERGED in values for values in seeds.values()):
        return Place(method, seeds, "a seed of the chosen draw diverged")
    lacks = "" if sorted(seeds) == SEEDS else "not all seeds are measured"
    return Place(method, seeds, lacks)


def why(drawn: list[Cell], of_method: list[Record], out: Path) -> str:
    """The reason why no draw of a method could be chosen."""
    if sum(records.DIVERGED in record.values for record in of_method) == len(drawn):
        return "all draws diverged"
    failed = [f for draw in drawn if (f := sweep_folder.failure(out / draw.name)) and f.code]
    if failed:
        return (failed[0].said.splitlines() or ["failed"])[-1]
    if not of_method:
        return "not measured"
    return f"{len(of_method)} of {len(drawn)} draws are measured"


def section(federation: Federation, places: list[Place]) -> str:
    """The table of a federation, and a list of what it does not show."""
    ranked = [each for each in places if not each.missing]
    ranked.sort(key=lambda each: -np.mean(numbers(each, ACCURACY)))
    missing: dict[str, list[str]] = {}
    for each in places:
        if each.missing:
            missing.setdefault(each.missing, []).append(f"`{each.method}`")
    lines = [f"- Not ranked, {why}: {', '.join(of)}." for why, of in missing.items()]
    pairs = {to: paired(ranked, to) for to in (BASELINE, LOCAL)}
    lines = [significant(pairs[BASELINE]), *lines] if pairs[BASELINE] else lines
    return "\n\n".join([formats.markdown(table(federation, ranked, pairs)), "\n".join(lines)])


def numbers(each: Place, measure: str) -> list[float]:
    """The values of a measure, one for each seed that has it."""
    return [values[measure] for _, values in sorted(each.seeds.items()) if measure in values]


def table(federation: Federation, ranked: list[Place], pairs: dict[str, Pairs]) -> formats.Table:
    """A table with a row for each ranked method, the best first.

    pairs: {method: the differences of the other methods to it}, each a column of the table.
    """
    header = ["", "rank", "accuracy, %", *(f"minus {to}" for to in pairs)]
    header += ["worst tenth, %", "global, %", "last, %"]
    header += [f"MB to {federation.target:g} %", f"s to {federation.target:g} %"]
    order = [each.method for each in ranked if each.method != REFERENCE]
    rows = []
    for each in ranked:
        rank = formats.NONE if each.method == REFERENCE else str(order.index(each.method) + 1)
        accuracy = compare.spread(numbers(each, ACCURACY))
        shown = [f"{accuracy.mean:.1f}{half_width(accuracy)}"]
        shown += [difference(of.get(each.method)) for of in pairs.values()]
        shown += [mean(each, measure) for measure in (WORST, GLOBAL, LAST)]
        cost = [mean(each, key, of_all=True) for key in (MEGABYTES, SECONDS)]
        rows.append([each.method, rank, *shown, *cost])
    return formats.Table(f"Seeds {', '.join(map(str, SEEDS))}.", header, rows)


def mean(each: Place, measure: str, of_all: bool = False) -> str:
    """Format the mean over the seeds that have the measure; "-" if there is none.

    of_all: give "-" unless every seed has the measure.
    """
    values = numbers(each, measure)
    if not values or (of_all and len(values) < len(SEEDS)):
        return formats.NONE
    return f"{np.mean(values):.1f}"


def paired(ranked: list[Place], to: str) -> Pairs:
    """The differences of the methods to the method `to`, paired by seed; empty without `to`."""
    by_seed = {e.method: {s: v[ACCURACY] for s, v in e.seeds.items()} for e in ranked}
    if (theirs := by_seed.pop(to, None)) is None:
        return {}
    return {method: compare.paired(ours, theirs) for method, ours in by_seed.items()}


def significant(pairs: Pairs) -> str:
    """A list item that names the methods of the pairs with p < 0.05 after Holm's correction."""
    p = {m: 1.0 if pair.t is None else pair.t for m, pair in pairs.items() if m != REFERENCE}
    corrected = zip(p, compare.holm([*p.values()]), strict=True)
    below = ", ".join(f"`{method}`" for method, q in corrected if q < 0.05)
    return (
        f"- Difference to {BASELINE} with p < 0.05 after Holm's correction (methods: {len(p)}):"
        f" {below or 'no method'}."
    )


def difference(pair: compare.Paired | None) -> str:
    """Format the mean difference with its interval."""
    if pair is None or pair.difference.mean is None:
        return formats.NONE
    return f"{pair.difference.mean:+.1f}{half_width(pair.difference)}"


def half_width(spread: compare.Spread) -> str:
    """Format half of the 95 % interval; empty if there is none."""
    return "" if spread.low is None else f"±{(spread.high - spread.low) / 2:.1f}"


def origin(used: list[Record]) -> str:
    """The command, and the commits, versions and devices of the numbers."""
    of = {key: sorted({getattr(r, key) for r in used}) for key in ("commit", "version", "device")}
    parts = [f"{key}: {', '.join(values)}" for key, values in of.items() if values]
    command = "Command: `python launch/leaderboard.py`"
    return "; ".join([command, *parts, f"{len(used)} runs"]) + "."


INTRODUCTION = """\
# Leaderboard

This page compares all methods on two small federations. Each method is run with three draws of the
clients' learning rate, which are the same for all methods, and of its own settings, from the ranges
in its file. The draw with the best accuracy on validation examples is run with three seeds. For
the same seed all methods have the same clients, and the same initial weights and batches unless a
method has several models or a hypernetwork, or trains on all examples (`central`). This page is
generated from `docs/results/leaderboard.csv`, where the best draw of a method is the one with
three seeds."""

READING = """\
## How to read this page, and its limits

- **Accuracy** is the mean over clients of the accuracy on each client's own test examples, with the
  model that the client uses for prediction, at the evaluation with the best accuracy on validation
  examples. The number after ± is half of the 95 % confidence interval over three seeds (Student's
  t). The worst tenth is one client on the digit domains and two on Fashion-MNIST.
- **Compare with `local` as well as with FedAvg.** Under label skew a client has few classes, so
  that `local` and most methods with a model for each client are far above FedAvg. Compare methods
  with one model for all clients by `global`.
- **`global`** is the accuracy on all test examples of the model that a new client would get, at
  the round that is best for the clients' own models. If a method has no global model, it is the
  mean accuracy of the clients' models on all test examples.
- **`last`** is the accuracy after the last round. On the digit domains accuracy fluctuates:
  FedAvg's is between 60 and 90 % in the second halves of its runs.
- **Differences** are means over equal seeds. Their intervals are not corrected for the number of
  methods; the line below each table is, by Holm's method. With three seeds and sixty methods even
  large differences rarely pass. The order of methods with similar accuracies means nothing.
- **Settings are hardly tuned.** Three draws do not cover a range, and a method far below FedAvg
  may have had unsuitable ones: `server_lr` of `fedgma` is near 0.1 (default 1) and `mu` of
  `fedprox` near 0.5 (default 0.01) in the draws with the larger learning rates. Higher learning
  rates might be better. `fedcm` and `mimelite` should have no momentum. Diverged draws are not
  chosen: one of `fedadmm` and one of `client2vec` on both federations, and on Fashion-MNIST
  another one of `client2vec` and one each of `scaffold` and `fedsr`.
- **Megabytes** are all uploads and downloads until the accuracy first reached the target, at
  evaluations every five rounds; "-" if a seed did not reach it. **Seconds** are training time on
  machines that also did other work: read them only as orders of magnitude.
- `client2vec` has the base FedAvg and trains its index for 20 epochs instead of 500. It is near
  chance because its local term stops training ([reasons](results_client2vec.md)). `fedfomo` also
  weighs models by validation examples. `central`, which trains one model on all examples, is not
  federated. `fedbn` equals FedAvg without BatchNorm (on Fashion-MNIST), `cfl` without a split, and
  `fedrs` if every client has all classes (on the digit domains)."""


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
