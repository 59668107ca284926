"""hFedF and its baselines on the digit domains; each domain is the unseen target once.

Every method is run with three learning rates of the clients' Adam: the paper's, 1e-3, and 3e-4 and
3e-3. All other settings are those of the paper's Table 10. For each method and target two learning
rates are chosen: one by `id`, the accuracy on the clients' own validation rows, and one by the
accuracy on a source domain that no client holds (configs/hfedf_tuning.py, where each client holds
one domain). The choice is made with seed 0; to run the chosen learning rates with seeds 1 and 2,
repeat the command. `hfedf_server` is hFedF with three learning rates of the server's Adam (also
1e-3 in Table 10) and Table 10's learning rate of the clients.

The name of a cell is d1/METHOD/TARGET or d1/METHOD,SETTING/TARGET if each client holds one domain,
and begins with d2/ if each holds two. Cells of hfedf_tuning.py begin with held_out/.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import records
from records import Record

from fedjax_lab.analysis import formats
from fedjax_lab.configs import hfedf_tuning
from fedjax_lab.running import plots

PICTURE = "hfedf_spread.png"
CURVES = "local", "pfedhn", "hfedf", "hfedf,server_lr=1e-2"
COUNTS = "d1", "d2"  # number of domains that a client holds
TARGETS = tuple(hfedf_tuning.HELD_OUT)
ROWS = "central local fedavg fedprox fedsr fedgma pfedhn hfedf hfedf_server".split()
PAPERS = "1e-3"
STEPS = PAPERS, "3e-4", "3e-3"
WAYS = {  # {way to choose a learning rate: (prefix of the compared cells, measure)}; (): Table 10's
    "Table 10": (),
    "by id": ("", "id"),
    "held out": ("held_out/", "ood"),
}
ABLATIONS = {
    "grad_align=False": {"method.grad_align": "False"},
    "ema=1.0": {"method.ema": "1.0"},
    "grad_align=False,ema=1.0": {"method.grad_align": "False", "method.ema": "1.0"},
    "embedding=random": {"method.embedding": "random"},
    "embedding=autoencoder": {"method.embedding": "autoencoder"},
    "embedding=autoencoder_learned": {"method.embedding": "autoencoder_learned"},
    "server_lr=1e-2": {"method.server_lr": "1e-2"},  # for d1 alone
}
ROUNDS = range(20, 201, 20)  # at which the curves are recorded
ID_OOD = "id", "ood"
MEASURES = *ID_OOD, "spread"


# The runs.


def cells(out):
    """All cells; those with a learning rate chosen by the existing records have three seeds."""
    all_cells = planned()
    of_table = records.current(*records.read("hfedf"), all_cells, out)
    chosen = {
        each for way in WAYS for d in COUNTS for row in ROWS for each in runs(of_table, way, d, row)
    }
    return [each._replace(seeds=[0, 1, 2]) if each.name in chosen else each for each in all_cells]


def planned():
    """All cells with their initial seeds, in the order in which they are run."""
    by_name = {}
    for d in COUNTS:
        for step in STEPS:
            for row in ROWS:
                add(by_name, "", d, row, step)
    for d, target in itertools.product(COUNTS, TARGETS):
        for name in ablations_of(d):
            cell = f"{d}/hfedf,{name}/{target}"
            by_name[cell] = make(cell, "hfedf", target, (0, 1, 2), **ABLATIONS[name])
    for row in ROWS:
        for step in STEPS:
            add(by_name, "held_out/", "d1", row, step)
    return list(by_name.values())


def ablations_of(d):
    """The names of the ablations for this number of domains."""
    return [name for name in ABLATIONS if d == "d1" or name != "server_lr=1e-2"]


def add(by_name, where, d, row, step):
    """Add the cells of a row with one learning rate to `by_name`, one for each target."""
    method, key = ("hfedf", "method.server_lr") if row == "hfedf_server" else (row, "local.lr")
    seeds = (0, 1, 2) if step == PAPERS and not where else (0,)
    for target in TARGETS:
        cell = name_of(where, d, row, step, target)
        by_name.setdefault(cell, make(cell, method, target, seeds, **{key: step}))


def make(cell, method, target, seeds, **settings):
    """Make the cell with the name `cell`; the name determines the config file and the domains."""
    places = {"data.unseen": target, "partition.domains": "1" if "d1/" in cell else "2"}
    file = "hfedf_digits"
    if cell.startswith("held_out/"):
        places |= {"data.unseen": hfedf_tuning.HELD_OUT[target], "data.target": target}
        file = "hfedf_tuning"
    return records.cell(cell, f"configs/{file}.py:{method}", seeds, **places, **settings)


def name_of(where: str, d: str, row: str, step: str, target: str) -> str:
    """The name of a cell. where: "held_out/" or "". d: "d1" or "d2"."""
    method, key = ("hfedf", "server_lr") if row == "hfedf_server" else (row, "lr")
    return f"{where}{d}/{method}{'' if step == PAPERS else f',{key}={step}'}/{target}"


def measured(row):
    """The numbers to record for each seed: those of `seed_values`."""
    return {seed: seed_values(rows) for seed, rows in row.seeds.items()}


def seed_values(rows: Sequence[dict]) -> dict[str, float]:
    """id, ood and ood's spread over clients after the last round, and curves of ood and spread."""
    out = {"id": rows[-1]["id"], "ood": rows[-1]["ood"], "spread": spread(rows[-1])}
    for row in rows:
        if row["round"] in ROUNDS:
            out[f"ood/{row['round']}"] = row["ood"]
            out[f"spread/{row['round']}"] = spread(row)
    return out


def spread(row: dict) -> float:
    """The population standard deviation of ood over the clients."""
    return float(np.std([each for each in row["ood_per_client"] if each is not None]))


# The runs that make up a row of the tables.


def step_of(of_table: Sequence[Record], way: str, d: str, row: str, target: str) -> str | None:
    """The learning rate chosen in one of WAYS; None if runs needed for the choice are missing."""
    if not WAYS[way]:
        return PAPERS
    where, measure = WAYS[way]
    names = {name_of(where, "d1" if where else d, row, step, target): step for step in STEPS}
    of_steps = {
        names[record.cell]: record.values.get(measure, -np.inf)
        for record in of_table
        if record.seed == 0 and record.cell in names
    }
    return max(STEPS, key=of_steps.__getitem__) if len(of_steps) == len(STEPS) else None


def runs(of_table: Sequence[Record], way: str, d: str, row: str) -> list[str]:
    """The name of the cell for each target; "" if its learning rate is not chosen yet."""
    steps = [step_of(of_table, way, d, row, target) for target in TARGETS]
    pairs = zip(TARGETS, steps, strict=True)
    return [name_of("", d, row, step, target) if step else "" for target, step in pairs]


def average(of_table: Sequence[Record], cells: Sequence[str], measure: str) -> float | None:
    """The mean over cells and seeds; None if any cell lacks one of the three seeds."""
    values = [records.values(of_table, cell, measure) for cell in cells]
    return float(np.mean(values)) if all(len(of_cell) == 3 for of_cell in values) else None


# The tables.


def tables(of_table: Sequence[Record]) -> list[formats.Table]:
    """For each of COUNTS: means over targets, and ablations."""
    return [make(of_table, d) for d in COUNTS for make in (by_method, ablations)]


def shown(values: Sequence[float | None]) -> list[str]:
    """Format the values with one decimal, and None as "-"."""
    return [formats.NONE if value is None else f"{value:.1f}" for value in values]


def by_method(of_table, d):
    """The table of means over targets, with the learning rates of each of WAYS."""
    rows = []
    for row in ROWS:
        by_way = [runs(of_table, way, d, row) for way in WAYS]
        values = [average(of_table, cells, measure) for cells in by_way for measure in ID_OOD]
        rows.append([row, *shown(values)])
    title = (
        f"{d}: percent, means over five targets and seeds 0, 1, 2, with Table 10's learning rate,"
    )
    title += " the one chosen by id, and the one chosen by a held-out domain."
    return formats.Table(title, ["", *ID_OOD * 3], rows, groups=[(way, 2) for way in WAYS])


def ablations(of_table, d):
    """The table of hFedF's ablations, with Table 10's settings otherwise."""
    rows = []
    for label in ("hfedf", *(f"hfedf,{each}" for each in ablations_of(d))):
        cells = [f"{d}/{label}/{target}" for target in TARGETS]
        rows.append([label, *shown([average(of_table, cells, m) for m in MEASURES])])
    title = f"{d}: hFedF with other settings than Table 10's"
    title += ", means over five targets and three seeds."
    return formats.Table(title, ["", *MEASURES], rows)


# The figure.


def picture(of_table):
    """The spread of ood over clients, against rounds, in d1 with Table 10's learning rate.

    A line for each method that gives each client its own model, averaged over the targets, and
    shaded from the lowest to the highest seed.
    """
    cells = {name: [f"d1/{name}/{target}" for target in TARGETS] for name in CURVES}
    names = [each for each in CURVES if average(of_table, cells[each], "spread") is not None]
    lines = [(np.array(ROUNDS), curve(of_table, cells[name])) for name in names]
    return plots.draw_curves(lines, "round", "std of ood over clients, points", names)


def curve(of_table: Sequence[Record], cells: Sequence[str]) -> np.ndarray:
    """The mean of the spread over the cells by seed and round, [seeds, rounds]."""
    each = [[records.values(of_table, cell, f"spread/{r}") for r in ROUNDS] for cell in cells]
    return np.mean(each, 0).T
