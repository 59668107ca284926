"""hFedF and its baselines on the digit domains, each left out in turn (configs/hfedf_digits.py).

Every method runs with the paper's step of the clients' Adam, 1e-3, and with 3e-4 and 3e-3; all else
is Table 10's. For each method and target, one of the three steps is chosen by `id`, the accuracy on
the clients' own validation rows, and one by the accuracy on a source domain that no client holds
(configs/hfedf_tuning.py); seed 0 chooses, seeds 0, 1, 2 are shown. `hfedf_server` is hFedF with
three steps of the server's Adam, 1e-3 in Table 10 too, in the place of three of the clients'.

A cell is d1/METHOD/TARGET or d1/METHOD,SETTING/TARGET, where clients hold one domain; d2 where they
hold two. Those that begin with held_out/ are of hfedf_tuning.py.
"""

from collections.abc import Sequence

import numpy as np
import records
from records import Record

from fedjax_lab.analysis import formats
from fedjax_lab.configs.hfedf_tuning import HELD_OUT

COUNTS = "d1", "d2"  # of domains that a client holds
TARGETS = tuple(HELD_OUT)
METHODS = "central", "local", "fedavg", "fedprox", "fedsr", "fedgma", "pfedhn", "hfedf"
ROWS = *METHODS, "hfedf_server"
PAPERS = "1e-3"
STEPS = PAPERS, "3e-4", "3e-3"
ABLATIONS = {
    "grad_align=False": {"method.grad_align": "False"},
    "ema=1.0": {"method.ema": "1.0"},
    "grad_align=False,ema=1.0": {"method.grad_align": "False", "method.ema": "1.0"},
    "embedding=random": {"method.embedding": "random"},
    "embedding=autoencoder": {"method.embedding": "autoencoder"},
    "server_lr=1e-2": {"method.server_lr": "1e-2"},
}
ROUNDS = range(20, 201, 20)  # of the curves
WAYS = {"Table 10": None, "step by id": "", "step by a held-out domain": "held_out/"}
MEASURES = "id", "ood", "spread"


# The runs.


def cells(out):
    """Those of Table 10 first, then the other steps, the runs that choose, and the ablations."""
    found = {}
    for d in COUNTS:
        for step in STEPS:
            for row in ROWS:
                add(found, "", d, row, step)
        for row in ROWS:
            for step in STEPS:
                add(found, "held_out/", d, row, step)
        for name, settings in ABLATIONS.items():
            for target in TARGETS:
                cell = f"{d}/hfedf,{name}/{target}"
                found[cell] = make(cell, "hfedf", target, **settings)
    return list(found.values())


def add(found, where, d, row, step):
    """The cells of a row of the tables with one step, one for each target."""
    key, method = ("method.server_lr", "hfedf") if row == "hfedf_server" else ("local.lr", row)
    for target in TARGETS:
        cell = name(where, d, row, step, target)
        found.setdefault(cell, make(cell, method, target, **{key: step}))


def make(cell, method, target, **settings):
    """The run of a name."""
    tuning = cell.startswith("held_out/")
    config = f"configs/hfedf_{'tuning' if tuning else 'digits'}.py:{method}"
    settings["data.unseen"] = HELD_OUT[target] if tuning else target
    if tuning:
        settings["data.target"] = target
    settings["partition.domains"] = cell.removeprefix("held_out/")[1]
    return records.cell(cell, config, (0,) if tuning else (0, 1, 2), **settings)


def name(where: str, d: str, row: str, step: str, target: str) -> str:
    """Of a cell; where: "held_out/" or ""."""
    method, key = ("hfedf", "server_lr") if row == "hfedf_server" else (row, "lr")
    return f"{where}{d}/{method}{'' if step == PAPERS else f',{key}={step}'}/{target}"


def measured(row):
    """{seed: id, ood and its standard deviation over clients after the last round, and curves}."""
    return {seed: of_seed(rows) for seed, rows in row.seeds.items()}


def of_seed(rows: Sequence[dict]) -> dict[str, float]:
    """What is recorded of one seed's evaluations."""
    out = {"id": rows[-1]["id"], "ood": rows[-1]["ood"], "spread": spread(rows[-1])}
    for row in rows:
        if row["round"] in ROUNDS:
            out[f"ood/{row['round']}"] = row["ood"]
            out[f"spread/{row['round']}"] = spread(row)
    return out


def spread(row: dict) -> float:
    """The population standard deviation of ood over the clients."""
    return float(np.std([each for each in row["ood_per_client"] if each is not None]))


# The tables.


def tables(of_table: Sequence[Record]) -> list[formats.Table]:
    """For each number of domains: methods, targets, steps, ablations; then the curves."""
    found = []
    for d in COUNTS:
        found += [by_method(of_table, d), by_target(of_table, d), by_step(of_table, d)]
        found += [ablations(of_table, d), curves(of_table, d)]
    return found


def chosen(of_table: Sequence[Record], way: str, d: str, row: str, target: str) -> str | None:
    """The step that a way of WAYS gives a row for a target; None where runs are missing."""
    where = WAYS[way]
    if where is None:
        return PAPERS
    measure = "ood" if where else "id"
    by_cell = {r.cell: r.values.get(measure, -np.inf) for r in of_table if r.seed == 0}
    names = {step: name(where, d, row, step, target) for step in STEPS}
    if not by_cell.keys() >= set(names.values()):
        return None
    return max(STEPS, key=lambda step: by_cell[names[step]])


def average(of_table: Sequence[Record], cells: Sequence[str], measure: str) -> float | None:
    """The mean over cells of the means over seeds; None where a cell has no numbers."""
    of_cells = [records.values(of_table, cell, measure) for cell in cells]
    return float(np.mean([np.mean(v) for v in of_cells])) if all(of_cells) else None


def shown(values: Sequence[float | None]) -> list[str]:
    """With one decimal."""
    return [formats.NONE if value is None else f"{value:.1f}" for value in values]


def runs_of(of_table, way, d, row) -> list[str]:
    """The cells of a row, one for each target, with the steps that a way gives."""
    steps = [chosen(of_table, way, d, row, target) for target in TARGETS]
    pairs = zip(TARGETS, steps, strict=True)
    return [name("", d, row, step, target) if step else "" for target, step in pairs]


def by_method(of_table, d):
    """Means over the targets."""
    rows = []
    for row in ROWS:
        values = []
        for way in WAYS:
            cells = runs_of(of_table, way, d, row)
            values += [average(of_table, cells, measure) for measure in MEASURES]
        rows.append([row, *shown(values)])
    title = f"{d}: percent, means over five targets and seeds 0, 1, 2; spread: the standard"
    title += " deviation of ood over the clients of a seed."
    return formats.Table(title, ["", *MEASURES * 3], rows, groups=[(way, 3) for way in WAYS])


def by_target(of_table, d):
    """ood of each target, with Table 10's step and with the one that a held-out domain chose."""
    ways = "Table 10", "step by a held-out domain"
    rows = []
    for row in ROWS:
        cells = [cell for way in ways for cell in runs_of(of_table, way, d, row)]
        rows.append([row, *(records.spread(of_table, cell, "ood") for cell in cells)])
    title = f"{d}: ood, mean (population standard deviation) over seeds 0, 1, 2."
    groups = [(way, len(TARGETS)) for way in ways]
    return formats.Table(title, ["", *TARGETS * 2], rows, groups=groups)


def by_step(of_table, d):
    """The steps that were chosen."""
    rows = []
    for row in ROWS:
        line = [row]
        for way in list(WAYS)[1:]:
            line += [chosen(of_table, way, d, row, t) or formats.NONE for t in TARGETS]
        rows.append(line)
    groups = [(way, len(TARGETS)) for way in list(WAYS)[1:]]
    title = f"{d}: the steps that seed 0 chose."
    return formats.Table(title, ["", *TARGETS * 2], rows, groups=groups)


def ablations(of_table, d):
    """hFedF without its parts, with Table 10's settings otherwise."""
    rows = []
    for label in ("hfedf", *(f"hfedf,{each}" for each in ABLATIONS)):
        cells = [f"{d}/{label}/{target}" for target in TARGETS]
        rows.append([label, *shown([average(of_table, cells, m) for m in MEASURES])])
    return formats.Table(f"{d}: hFedF without its parts, Table 10.", ["", *MEASURES], rows)


def curves(of_table, d):
    """The spread of those methods whose clients have models of their own, through the rounds."""
    rows = []
    for label in ("local", "pfedhn", "hfedf", "hfedf,server_lr=1e-2"):
        cells = [f"{d}/{label}/{target}" for target in TARGETS]
        values = [average(of_table, cells, f"spread/{round}") for round in ROUNDS]
        rows.append([label, *shown(values)])
    title = f"{d}: the spread after so many rounds, Table 10."
    return formats.Table(title, ["", *map(str, ROUNDS)], rows)
