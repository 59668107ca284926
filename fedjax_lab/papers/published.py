"""Published tables: their numbers, and the runs that reproduce each cell.

published.csv has a row for every printed accuracy of Client2Vec (Guo et al., ICCV 2025), FedC2I
(arXiv:2410.03315), FedConcat (Diao et al., AAAI 2024), hFedF (Bartholet et al. 2024) and FedPick
(Zhu et al.). Tables of losses, seconds, gains and sizes of data sets are left out. Six tables of
others have one table each, "1": `flamby` (Fed-Heart-Disease, NeurIPS 2022), `niid_bench` (Flower's
baseline), `fedbench` (the package of this name), `pfllib` (its leaderboard, Fashion-MNIST),
`mcmahan` (FedAvg's paper, 2NN on MNIST) and `reddi` (adaptive optimization, Shakespeare).

The rules of published.toml map the facts of a row to the config file, overrides and measure of its
run. A later rule overrides an earlier one.
"""

import csv
import functools
import itertools
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, nearest


class Result(NamedTuple):
    """A printed accuracy, in percent, or number of rounds until an accuracy is reached."""

    paper: str
    table: str  # "1", "II"
    dataset: str
    model: str
    setting: str  # KEY=VALUE;KEY=VALUE
    method: str
    variant: str  # empty: the method as proposed
    column: str
    mean: float
    std: float | None  # None: not printed
    conflict: str  # a different number or remark elsewhere in the paper; empty: none


class Rule(NamedTuple):
    """Properties of all rows that have the facts of `when`; empty fields specify nothing."""

    when: str  # such as "table=2|13;dataset=svhn"; "|" separates alternatives
    settings: dict[str, str] = {}  # config values by dotted key; {fact} is replaced by its value
    config: str = ""  # a file in configs/
    method: str = ""  # the package's name of the method, if the table has another one
    way: str = ""  # of choosing a round, see metrics.pick_rounds
    measure: str = ""  # see runs.measures
    target: float = 0.0  # if not 0, the number is that of rounds until the measure reaches it
    seeds: int = 0  # the number of seeds in the paper
    per_client: bool = False  # whether the std is over clients and seeds
    over: Sequence[str] = ()  # the number is the mean over these values of the fact `target`
    note: str = ""  # how the run differs from the paper, or what the paper does not state
    lacks: str = ""  # the reason why there is no run


class Spec(NamedTuple):
    """The specification of a run."""

    name: str  # the name of its folder
    config: str
    method: str
    settings: dict[str, str]


class Recipe(NamedTuple):
    """How to measure the number of a row."""

    specs: tuple[Spec, ...]  # the runs; if several, the number is their mean
    way: str
    measure: str
    seeds: int
    per_client: bool
    notes: tuple[str, ...]
    lacks: str  # the reason why it cannot be measured; empty if it can
    target: float = 0.0  # see Rule


def _read(name):
    return resources.files("fedjax_lab.papers").joinpath(name).read_text(encoding="utf-8")


_TABLES = tomllib.loads(_read("published.toml"))
RULES = {paper: tuple(Rule(**r) for r in rules) for paper, rules in _TABLES["rules"].items()}
CLIENT2VEC_BASES: dict[str, dict[str, str | bool]] = _TABLES["client2vec_bases"]
RULES["client2vec"] += tuple(
    Rule(
        f"method={base};index=federated|global",
        {f"method.{k}": str(v) for k, v in settings.items()},
    )
    for base, settings in CLIENT2VEC_BASES.items()
)


# The numbers.


@functools.cache
def results() -> tuple[Result, ...]:
    """All printed accuracies, in the order of the papers' tables."""
    rows: Iterable[dict[str, Any]] = csv.DictReader(_read("published.csv").splitlines())
    return tuple(
        Result(
            **row | {"mean": float(row["mean"]), "std": float(row["std"]) if row["std"] else None}
        )
        for row in rows
    )


def tables() -> dict[tuple[str, str], tuple[Result, ...]]:
    """The rows of each table, by (paper, table)."""
    by_table = itertools.groupby(results(), lambda result: (result.paper, result.table))
    return {key: tuple(rows) for key, rows in by_table}


def find(paper: str, table: str) -> tuple[Result, ...]:
    """The rows of a table, named "table1", "1" or "Table 1".

    Raises BadInput, which names the nearest paper or table, if there is none.
    """
    if paper not in RULES:
        raise BadInput(f"no paper {paper!r}; {nearest(paper, RULES)}")
    of_paper = {f"table{t}": rows for (p, t), rows in tables().items() if p == paper}
    wanted = "table" + table.lower().removeprefix("table").strip()
    for name, rows in of_paper.items():
        if name.lower() == wanted:
            return rows
    raise BadInput(f"{paper} has no accuracies in {table!r}; {nearest(table, of_paper)}")


# From a row to runs.


def facts(result: Result) -> dict[str, str]:
    """The facts of a row that rules refer to. `score` is the part of the column before a colon."""
    of_row = _pairs(result.setting)
    for key in ("paper", "table", "dataset", "model", "method", "variant", "column"):
        of_row[key] = getattr(result, key)
    return of_row | {"score": result.column.partition(":")[0]}


def _pairs(text):
    """KEY=VALUE;KEY=VALUE as a dict."""
    return dict(pair.split("=", 1) for pair in text.split(";") if pair)


def recipe(result: Result) -> Recipe:
    """How to measure a row, or the reason why it cannot be measured."""
    row_facts = facts(result)
    rule, notes = _merged(result.paper, row_facts)
    targets = [row_facts | {"target": target} for target in rule.over] or [row_facts]
    return Recipe(
        specs=() if rule.lacks else tuple(_spec(result, target) for target in targets),
        way=rule.way,
        measure=rule.measure.format(**row_facts),
        seeds=rule.seeds,
        per_client=rule.per_client and not rule.over,
        notes=notes,
        lacks=rule.lacks,
        target=rule.target,
    )


def _merged(paper, row_facts):
    """All rules that apply to these facts as one rule with all settings, and their notes."""
    rules = [rule for rule in RULES[paper] if _fits(rule, row_facts)]
    merged = {key: value for rule in rules for key, value in rule._asdict().items() if value}
    settings = {key: value for rule in rules for key, value in rule.settings.items()}
    merged |= {"when": "", "settings": settings}
    return Rule(**merged), tuple(rule.note for rule in rules if rule.note)


def _fits(rule, row_facts):
    return all(row_facts.get(k) in value.split("|") for k, value in _pairs(rule.when).items())


def _spec(result, row_facts):
    rule, _ = _merged(result.paper, row_facts)
    settings = {key: value.format(**row_facts) for key, value in rule.settings.items()}
    return Spec(_name(result, row_facts), rule.config, rule.method or result.method, settings)


def cell_name(result: Result) -> str:
    """The unique name of a row in its table: DATASET/SETTING/METHOD(VARIANT)/COLUMN."""
    row_facts = {key: value for key, value in facts(result).items() if key != "target"}
    column = [result.column] if "column" in _varying(result.paper, result.table) else []
    return "/".join([_name(result, row_facts), *column])


def _name(result, row_facts):
    """The data set (or the model, if there is one data set), settings that vary, and the method."""
    varying = _varying(result.paper, result.table)
    first = "dataset" if "dataset" in varying else "model"
    parts = [row_facts[first]] if first in varying else []
    named = [key for key in row_facts if key not in Result._fields and key != "score"]
    parts += [f"{key}={row_facts[key]}" for key in named if key in varying or key == "target"]
    return "/".join([*parts, result.method + (f"({result.variant})" if result.variant else "")])


@functools.cache
def _varying(paper, table):
    """The facts with different values in the rows of a table."""
    pairs = {pair for result in find(paper, table) for pair in facts(result).items()}
    counts = Counter(key for key, _ in pairs)
    return {key for key, count in counts.items() if count > 1}
