"""Every method on two federations, each tuned with the same number of draws: docs/leaderboard.md.

    python launch/leaderboard.py [--methods=fedavg,ditto,...] [--federations=digits,fashion]
        [--out=runs/leaderboard] [--commit=HASH]
    python launch/leaderboard.py --page

Three draws of the step size, and of the settings for which a method's file declares RANGES, are run
with seed 0. The draw with the highest accuracy on validation examples is run with seeds 1 and 2 as
well. FedAvg and Local come first, the other methods in alphabetical order.

The numbers of each run are added to docs/results/leaderboard.csv as soon as it has ended, and the
page is written again after each method. What the CSV file has is not run again: commit it, and
another session or another machine goes on with what is left. An interrupted run goes on in its
folder of --out.

--methods      only these
--federations  only these
--out          the folder of the runs
--commit       the commit of the code, where the folder is a copy without git's own files
--page         writes the page from the numbers that there are; runs nothing

A method has five runs on each federation, 610 runs in all, each compiled anew. Four hours on two
cores are 28,800 seconds of a core, or 47 for a run with its compilation. Measured as processor
time on a busy machine, a run of FedAvg took about 27 on the digit domains, most of them to
compile. On Fashion-MNIST 12 were measured with a perceptron of one layer of 64; 14 are estimated
for this one. If a method costs 1.7 times as much on average, which has not been measured, that is
21,000 seconds; the rest is for cores that wait. The simple CNN of the other Fashion-MNIST configs
would take 60 for the rounds alone, so this one has a perceptron. The digit domains have half the
images and half the width of configs/digit_domains.py, and 20 rounds.

Exit codes are those of fedjax_lab.sweep.
"""

if __name__ == "__main__":  # before the imports, which an interrupt may meet
    from fedjax_lab import command

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

from fedjax_lab import command, parallel
from fedjax_lab.analysis import compare, formats, runs
from fedjax_lab.errors import BadInput, nearest, parse, quoted
from fedjax_lab.registry import METHODS
from fedjax_lab.running import metrics, sweep_folder, sweep_tuning
from fedjax_lab.running.sweep_plan import Cell, Shared, plan

NAME = "leaderboard"
PAGE = records.ROOT / "docs" / "leaderboard.md"
SEEDS = [0, 1, 2]
BASELINE = "fedavg"
ORDER = sorted(METHODS, key=lambda name: (name != BASELINE, name != "local", name))

# The first stream of random numbers whose three draws of the step size lie in the three thirds of
# its range: 0.00237, 0.095, 0.0243.
SEARCH = sweep_tuning.parse("random:3:1", "validation", [])
SCORE, SCORE_LOSS = "best_by_validation/id", "best_by_validation/id_loss"
MEASURES = "accuracy.mean", "accuracy.worst10", "global"
ACCURACY, WORST, GLOBAL = (f"best_by_validation/{measure}" for measure in MEASURES)
LAST = f"last/{MEASURES[0]}"
MEGABYTES, SECONDS = "to target/megabytes", "to target/seconds"


class Federation(NamedTuple):
    """What the methods are compared on."""

    title: str
    config: str
    overrides: list[tuple[str, str]]
    target: float  # accuracy in percent, of which the cost is told


FEDERATIONS = {
    "digits": Federation(
        "Five digit domains, one client each",
        "configs/digit_domains.py",
        [("model.width", "8"), ("data.train_per_domain", "500"), ("run.rounds", "20")],
        target=75.0,
    ),
    "fashion": Federation(
        "Fashion-MNIST, 20 clients under label skew, Dir(0.1)",
        "configs/fmnist_leaderboard.py",
        [],
        target=70.0,
    ),
}


def main(argv: list[str]) -> int:
    """The command, without its name; returns the exit code."""
    return command.call(_main, argv, "the same command continues", __doc__)


def _main(argv):
    args, code = _parse(argv), 0
    if not args.page:
        for name in args.federations:
            for method in args.methods:
                code |= run(args, name, method)
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
    args.name, args.cells, args.seeds = NAME, None, None  # of launch/measure.py: all of them
    for flag, known in (("methods", ORDER), ("federations", FEDERATIONS)):
        chosen = getattr(args, flag).split(",")
        for name in chosen:
            if name not in known:
                raise BadInput(f"--{flag}={quoted(name)}: there is none; {nearest(name, known)}")
        setattr(args, flag, chosen)
    return args


# The runs.


def run(args, name: str, method: str) -> int:
    """Runs what has no numbers yet: the draws of a method, then more seeds of the best one."""
    drawn = draws(name, method)
    code = measure.measure(args, sys.modules[__name__], drawn)
    best = chosen(drawn, current(drawn, args.out))
    return code if best is None else code | measure.measure(args, sys.modules[__name__], [best])


@functools.cache
def draws(name: str, method: str) -> list[Cell]:
    """The draws of a method on a federation, with the first seed."""
    federation = FEDERATIONS[name]
    shared = Shared(str(records.ROOT / federation.config), federation.overrides, SEEDS)
    (contender,) = sweep_tuning.contenders(plan(shared, [method], {}).values(), shared, SEARCH)
    return [draw._replace(name=f"{name}/{Path(draw.name).name}") for draw in contender.draws]


def chosen(drawn: list[Cell], there: list[Record]) -> Cell | None:
    """The best draw, with all seeds; None where a draw has no record, or all have diverged."""
    of_first = {r.cell: r.values for r in there if r.seed == SEEDS[0]}
    if any(draw.name not in of_first for draw in drawn):
        return None
    scored = [(score(of_first[draw.name]), draw) for draw in drawn]
    scored = [(key, draw) for key, draw in scored if key is not None]
    if not scored:
        return None
    _, best = max(scored, key=lambda pair: pair[0])
    return best._replace(seeds=SEEDS)


def score(values: dict[str, float]) -> tuple[float, float] | None:
    """What is larger for a better draw, as in a sweep; None for one that diverged."""
    if records.DIVERGED in values:
        return None
    return values[SCORE], -values.get(SCORE_LOSS, 0.0)


def measured(row: runs.Row) -> records.Measured:
    """What is recorded of the runs of a cell."""
    target = FEDERATIONS[row.name.partition("/")[0]].target
    out = records.in_rounds("last", "best_by_validation", measures=MEASURES)(row)
    of_score = records.in_rounds("best_by_validation", measures=("id", "id_loss"))(row)
    for seed, rows in row.seeds.items():
        goal = compare.goal(row._replace(seeds={seed: rows}), MEASURES[0], target)
        cost = goal.cost and {MEGABYTES: goal.cost.bytes / 1e6, SECONDS: goal.cost.seconds}
        out[seed] |= of_score[seed] | (cost or {})
    return out


def current(cells: list[Cell], out: Path) -> list[Record]:
    """The records of cells with today's settings, of all seeds."""
    with_all = [cell._replace(seeds=SEEDS) for cell in cells]
    return records.current(*records.read(NAME), with_all, out)


# The page.


class Place(NamedTuple):
    """What the leaderboard says of a method."""

    method: str
    settings: str  # those of the best draw
    seeds: dict[int, dict[str, float]]  # by seed and measure
    missing: str = ""  # why it has no place; empty: it has one


def write(out: Path) -> None:
    """docs/leaderboard.md, from the records alone."""
    parts, used = [], []
    for name, federation in FEDERATIONS.items():
        cells = {method: draws(name, method) for method in ORDER}
        there = current([draw for drawn in cells.values() for draw in drawn], out)
        used += there
        places = [place(method, drawn, there, out) for method, drawn in cells.items()]
        parts += [f"## {federation.title}", section(federation, places)]
    metrics.write_text(PAGE, "\n\n".join([INTRODUCTION, origin(used), *parts, READING]) + "\n")


def place(method: str, drawn: list[Cell], there: list[Record], out: Path) -> Place:
    """What there is of a method on a federation."""
    own = [r for r in there if r.cell in {draw.name for draw in drawn}]
    best = chosen(drawn, own)
    if best is None:
        return Place(method, "", {}, why(drawn, own, out))
    seeds = {r.seed: r.values for r in own if r.cell == best.name}
    settings = ", ".join(f"{key.partition('.')[2]}={text}" for key, text in best.grid.items())
    if any(records.DIVERGED in values for values in seeds.values()):
        return Place(method, settings, seeds, "a seed of the chosen draw diverged")
    lacks = "" if sorted(seeds) == SEEDS else "not all seeds are measured"
    return Place(method, settings, seeds, lacks)


def why(drawn: list[Cell], own: list[Record], out: Path) -> str:
    """Why a method has no chosen draw."""
    if sum(records.DIVERGED in record.values for record in own) == len(drawn):
        return "all draws diverged"
    failed = [f for draw in drawn if (f := sweep_folder.failure(out / draw.name)) and f.code]
    if failed:
        return (failed[0].said.splitlines() or ["failed"])[-1]
    return f"{len(own)} of {len(drawn)} draws are measured" if own else "not measured"


def section(federation: Federation, places: list[Place]) -> str:
    """The table of a federation, and the methods without a place in it."""
    ranked = [each for each in places if not each.missing]
    ranked.sort(key=lambda each: -np.mean(numbers(each, ACCURACY)))
    missing: dict[str, list[str]] = {}
    for each in places:
        if each.missing:
            missing.setdefault(each.missing, []).append(f"`{each.method}`")
    lines = [f"- Without a place, {why}: {', '.join(of)}." for why, of in missing.items()]
    return "\n\n".join([formats.markdown(table(federation, ranked)), "\n".join(lines)]).rstrip()


def numbers(each: Place, measure: str) -> list[float]:
    """A measure of all seeds that have it."""
    return [values[measure] for _, values in sorted(each.seeds.items()) if measure in values]


def table(federation: Federation, ranked: list[Place]) -> formats.Table:
    """A row of each method, the best first."""
    header = [
        "",
        "rank",
        "accuracy, %",
        "last, %",
        "worst tenth, %",
        "global, %",
        f"minus {BASELINE}",
    ]
    header += [f"MB to {federation.target:g} %", f"s to {federation.target:g} %", "settings"]
    pairs = paired(ranked)
    rows = []
    for rank, each in enumerate(ranked, 1):
        accuracy = compare.spread(numbers(each, ACCURACY))
        half = (accuracy.high - accuracy.low) / 2
        others = [mean(each, measure) for measure in (LAST, WORST, GLOBAL)]
        shown = [f"{accuracy.mean:.1f} ± {half:.1f}", *others]
        cost = [mean(each, key, of_all=True) for key in (MEGABYTES, SECONDS)]
        row = [each.method, str(rank), *shown, difference(pairs.get(each.method))]
        rows.append([*row, *cost, each.settings])
    return formats.Table(f"Seeds {', '.join(map(str, SEEDS))}.", header, rows)


def mean(each: Place, measure: str, of_all: bool = False) -> str:
    """The mean over seeds; with of_all only where every seed has the measure."""
    values = numbers(each, measure)
    if not values or (of_all and len(values) < len(SEEDS)):
        return formats.NONE
    return f"{np.mean(values):.1f}"


def paired(ranked: list[Place]) -> dict[str, compare.Paired]:
    """The difference of each method to the baseline, with Holm's correction over the table."""
    by_seed = {e.method: {s: v[ACCURACY] for s, v in e.seeds.items()} for e in ranked}
    if (theirs := by_seed.pop(BASELINE, None)) is None:
        return {}
    pairs = {method: compare.paired(ours, theirs) for method, ours in by_seed.items()}
    corrected = compare.holm([pair.t for pair in pairs.values()])
    return {m: p._replace(t_holm=q) for (m, p), q in zip(pairs.items(), corrected, strict=True)}


def difference(pair: compare.Paired | None) -> str:
    """The mean difference, and its p value where that is below 0.05."""
    if pair is None or pair.difference.mean is None:
        return formats.NONE
    clear = pair.t_holm is not None and pair.t_holm < 0.05
    p = "not distinguishable"
    if clear:
        p = f"p = {pair.t_holm:.3f}" if pair.t_holm >= 0.001 else "p < 0.001"
    return f"{pair.difference.mean:+.1f}, {p}"


def origin(used: list[Record]) -> str:
    """The command, and what code and which device the numbers are of."""
    of = {key: sorted({getattr(r, key) for r in used}) for key in ("commit", "version", "device")}
    parts = [f"{key}: {', '.join(values)}" for key, values in of.items() if values]
    command = "Command: `python launch/leaderboard.py`"
    return "; ".join([command, *parts, f"{len(used)} runs"]) + "."


INTRODUCTION = """\
# Leaderboard

Every method of the project on two small federations, under one protocol. Each method gets three
draws of the client's step size and of its own settings, from the ranges that its file declares. The
draw with the best accuracy on validation examples is run with three seeds. For the same seed all
methods have the same clients, first weights and batches. This page is generated;
`docs/results/leaderboard.csv` has the number of every run."""

READING = """\
## How to read this page, and what it cannot say

- Accuracy is the mean over clients of the accuracy on each client's own test examples, with the
  model that the client then uses, in the evaluation with the best accuracy on validation examples;
  the draws are chosen by the same rule. `last` is the accuracy after the last round. Where it is
  much lower, training was unstable with the chosen settings. Behind ± is half of the 95 % interval
  of the mean over three seeds (Student's t). The worst tenth is the mean over the worst tenth of
  the clients. `global` is the accuracy on all test examples of the model that a new client would
  get; where a paper defines no such model, it is the mean over the clients' models.
- The difference to FedAvg is taken seed by seed. p is that of a paired t-test, with Holm's
  correction for all methods of the table. Three seeds give this test little power: a method that is
  not distinguishable from FedAvg may still be better or worse. Ranks of neighbors in the table say
  nothing by themselves.
- Three draws are few. Methods with several settings of their own are tuned less well than FedAvg,
  whose only setting is the step size. The run of seed 0 is the draw that was chosen.
- Megabytes are those of all clients, both ways, until the accuracy was first at the target, at
  evaluations every five rounds. There is no number where a seed did not reach the target. Seconds
  are those of training, on machines that also did other work: they only tell orders of magnitude.
- The federations are small and the runs are short, so that all methods fit into hours. Under label
  skew a client's own test examples are of few classes, which favors methods with a model for each
  client: compare those with `local`, and methods with one model for all by `global`. On the digit
  domains every client has all classes.
- `central` is no federated method but one model that is trained on all examples, for orientation.
  `fedbn` is FedAvg where the model has no BatchNorm, as that of Fashion-MNIST here."""


if __name__ == "__main__":
    parallel.use_every_core()
    command.run(main, sys.argv[1:])
