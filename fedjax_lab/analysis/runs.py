"""What folders of runs hold, and which of them can be compared.

Runs of one config, whatever their seeds, are one `Row`. Rows of one federation (config.data and
config.partition) are one `Block`: the same seed gives each of them the same clients, first weights
and shuffles, so that within a block seeds are pairs. Across blocks nothing is compared.
"""

import copy
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.errors import BadInput
from fedjax_lab.measures import LOWER_IS_BETTER, OF_NEW, PER_CLIENT, metric_of
from fedjax_lab.running import files, metrics, provenance

_TESTED = ("accuracy.mean", "global", "ood")  # measured on test examples
HEADLINES = (*_TESTED, "id")  # what a run is known by: the first it has
_ACCURACY = ("accuracy", "domains", *HEADLINES[1:], *OF_NEW)  # keys of an evaluation
_FREE = {"data.normalize", "data.augment"}  # settings of data that leave the federation as it is
_SKEW = {"partition.alpha", "partition.classes", "partition.domains"}
AXES = {  # what a curve is drawn against, by the names of `curve`
    "rounds": "round",
    "megabytes": "megabytes of all clients, both ways",
    "seconds": "seconds of training, one seed",
}


class Run(NamedTuple):
    """A run's folder."""

    folder: Path
    config: dict  # without the seeds, the metrics, and where data are cached
    seeds: tuple[int, ...]
    rows: list[dict]  # the evaluations that all seeds have; seconds: of one seed
    summary: dict  # {} while it goes on


class Row(NamedTuple):
    """The runs of one config."""

    name: str  # the method and the settings in which the rows of the block differ
    runs: list[Run]
    seeds: dict[int, list[dict]]  # evaluations of each seed


class Block(NamedTuple):
    """What can be compared: the rows of one federation."""

    name: str
    rows: list[Row]


def find(folders: Sequence[Path]) -> list[Path]:
    """The run folders among `folders` and, at any depth, inside them; each once.

    Draws of a sweep, which are there to choose settings, are left out unless they are named.

    BadInput for one that is no folder or holds no run.
    """
    run_folders: dict[Path, Path] = {}
    for folder in folders:
        try:
            if not folder.is_dir():
                raise BadInput(f"{folder} is {'not a folder' if folder.exists() else 'not there'}")
            runs = _inside(folder)
        except OSError as error:
            raise BadInput(f"cannot read {error.filename}: {error.strerror}") from error
        if not runs:
            raise BadInput(f"{folder} holds no run: there is no config.json in it")
        run_folders |= {run.resolve(): run for run in runs}
    return list(run_folders.values())


def _inside(folder):
    if (folder / "config.json").exists():
        return [folder]
    children = [f for f in sorted(folder.iterdir()) if f.is_dir() and not f.is_symlink()]
    if (folder / "sweep.json").exists():
        children = [child for child in children if child.name != files.DRAWS]
    return [run for child in children for run in _inside(child)]


def read_all(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs, and a note for each folder that is left out because a file in it is damaged.

    Raises files.Damaged where no run is left.
    """
    runs, faults = [], []
    for folder in folders:
        try:
            runs.append(read(folder))
        except files.Damaged as error:
            faults.append(error)
    if faults and not runs:
        raise faults[0]
    return runs, [f"{shown(str(fault))}; left out" for fault in faults]


def read(folder: Path) -> Run:
    """A finished run, or one that is still being written. Raises files.Damaged."""
    config = files.read_config(folder / "config.json")
    if config is None:
        raise files.Damaged(f"{folder} holds no run: there is no config.json in it")
    config, seeds = comparable(config), config["seeds"]
    rows = metrics.read_metrics(folder / "metrics.jsonl")
    there = {(row["round"], row["seed"]) for row in rows}
    rows = [
        row | {"seconds": row["seconds"] / len(seeds)}
        for row in rows
        if row["seed"] in seeds and all((row["round"], seed) in there for seed in seeds)
    ]
    summary = files.read_json(folder / "summary.json", files.SUMMARY)
    return Run(folder=folder, config=config, seeds=tuple(seeds), rows=rows, summary=summary or {})


def comparable(config: dict) -> dict:
    """A config.json without what leaves the numbers of a seed as they are.

    These are the seeds, the metrics, the time that a command had, and where data are cached.
    """
    config = copy.deepcopy(provenance.with_digests(config))
    del config["seeds"]
    for key in ("seed", "metrics", "max_seconds"):
        config["run"].pop(key, None)
    config["data"].pop("cache", None)
    return config


def arrange(runs: Sequence[Run]) -> tuple[list[Block], list[str]]:
    """Blocks of rows, and what a reader has to know about them: one line each.

    BadInput where nothing has been evaluated, or two runs are of one config and seed.
    """
    notes = [shown(note) for run in runs if (note := _note(run))]
    runs = _completed([run for run in runs if run.rows])
    if not runs:
        raise BadInput("nothing to compare: no run has been evaluated yet")
    federations: dict[str, list[Run]] = {}
    for run in runs:
        federations.setdefault(json.dumps(federation(run.config), sort_keys=True), []).append(run)
    (names,) = _names([[federation(same[0].config) for same in federations.values()]], "")
    blocks = []
    for name, same in zip(names, federations.values(), strict=True):
        blocks.append(Block("; ".join(filter(None, (_title(same[0]), name))), _rows(same)))
    if len(blocks) > 1:
        notes.insert(0, f"{len(blocks)} federations: nothing is compared across them")
    unequal = [note for block in blocks for of in (_seeds, _rounds) for note in of(block)]
    return blocks, notes + unequal


def _completed(runs):
    """The runs; where a config lacks a section or a key that others have, it has the defaults."""
    keys: dict[str, set] = {}
    for run in runs:
        for section, values in run.config.items():
            keys.setdefault(section, set()).update(values)
    lacking = [any(keys[name] - run.config.get(name, {}).keys() for name in keys) for run in runs]
    if not any(lacking):
        return runs
    from fedjax_lab.config import DEFAULTS  # loads JAX, which a report needs for nothing else

    defaults = json.loads(json.dumps(DEFAULTS))
    added = {
        section: {key: value for key, value in defaults.get(section, {}).items() if key in names}
        for section, names in keys.items()
    }
    return [
        run._replace(config={name: {**added[name], **run.config.get(name, {})} for name in keys})
        for run in runs
    ]


def _note(run):
    if not run.rows:
        return f"{run.folder}: not evaluated yet, left out"
    rounds = run.rows[-1]["round"]
    if "diverged" in run.summary:
        return f"{run.folder}: diverged; its numbers end with round {rounds}"
    return "" if run.summary else f"{run.folder}: unfinished; its numbers end with round {rounds}"


def _seeds(block):
    """A note where the rows of a block do not have the same seeds."""
    counts = Counter(", ".join(map(str, row.seeds)) for row in block.rows)
    if len(counts) == 1:
        return []
    return [f"unequal seeds, so pairs are of shared ones only: {_listed(counts)}"]


def _rounds(block):
    """A note where the runs of a block ended after different numbers of rounds."""
    if not unequal_rounds(block):
        return []
    counts = Counter(", ".join(dict.fromkeys(map(_end, row.runs))) for row in block.rows)
    return [f"unequal rounds, which every comparison of rows depends on: {_listed(counts)}"]


def _listed(counts):
    return "; ".join(f"{what} ({n} row{'s' * (n > 1)})" for what, n in counts.items())


def unequal_rounds(block: Block) -> bool:
    """Whether the runs of a block ended after different numbers of rounds."""
    return len({run.rows[-1]["round"] for row in block.rows for run in row.runs}) > 1


def _end(run):
    """After how many rounds a run ended, and which rule stopped it early."""
    rule = run.summary.get("stopped", {}).get("rule")
    return f"{run.rows[-1]['round']}" + (f" stopped by {shown(rule)}" if rule else "")


def federation(config: dict) -> dict[str, Any]:
    """The settings of a config that decide which examples every client has, {"section.key": value}.

    Rows with the same ones can be compared.
    """
    flat = flatten({key: config[key] for key in ("data", "partition")})
    return {key: value for key, value in flat.items() if key not in _FREE}


def _title(run):
    data, partition = run.config["data"], run.config["partition"]
    number = partition.get("num_clients")  # 0: the data decide
    count = f", {shown(number)} clients" if number else ""
    return f"{shown(data.get('name'))}, {shown(partition.get('name'))}{count}"


def _rows(runs):
    same: dict[str, list[Run]] = {}
    for run in runs:
        same.setdefault(json.dumps(run.config, sort_keys=True), []).append(run)
    (names,) = _names([[flatten(group[0].config) for group in same.values()]], "method.")
    out = []
    for name, group in zip(names, same.values(), strict=True):
        seeds, owner = {}, {}
        for run in group:
            for seed in run.seeds:
                if seed in owner:
                    raise BadInput(
                        f"{owner[seed]} and {run.folder} are both seed {seed} of {name} with one"
                        " config; name one of them"
                    )
                owner[seed] = run.folder
                seeds[seed] = [row for row in run.rows if row["seed"] == seed]
        out.append(Row(name, group, dict(sorted(seeds.items()))))
    return out


def named_alike(blocks: Sequence[Block]) -> list[Block]:
    """The blocks, with names by which rows of one method match across blocks.

    A name is the method's, with those settings by which rows of this method differ inside any one
    block. Settings that were chosen anew for each method or block are told by `chosen` instead.
    """
    methods = dict.fromkeys(_method(row) for block in blocks for row in block.rows)
    names = {
        method: map(iter, _names([_settings(block, method) for block in blocks], "method."))
        for method in methods
    }
    out = []
    for block in blocks:
        of_block = {method: next(named) for method, named in names.items()}
        rows = [row._replace(name=next(of_block[_method(row)])) for row in block.rows]
        out.append(block._replace(rows=rows))
    return out


def _method(row):
    return row.runs[0].config["method"]["name"]


def _settings(block, method):
    """The settings of each row of a method, without those that the rows of the block share."""
    configs = [row.runs[0].config for row in block.rows if _method(row) == method]
    shared = federation(block.rows[0].runs[0].config)
    return [{k: v for k, v in flatten(c).items() if k not in shared} for c in configs]


def chosen(before: Sequence[Block], after: Sequence[Block]) -> list[str]:
    """For each row of `named_alike` the settings that its name leaves out, block after block."""
    left_out: dict[str, dict[str, None]] = {}
    pairs = zip(before, after, strict=True)
    rows = [pair for old, new in pairs for pair in zip(old.rows, new.rows, strict=True)]
    for old, new in rows:
        told = [word for word in old.name.split(" ") if word not in new.name.split(" ")]
        if told:
            left_out.setdefault(new.name, {})[" ".join(told)] = None
    return [f"{name} was run with {'; '.join(told)}" for name, told in left_out.items()]


def section_names(blocks: Sequence[Block], section: str) -> list[str]:
    """For each block the name and those settings of a section of its config that tell blocks apart.

    A partition's degree of skew is always told.

    Args:
      blocks: of different federations.
      section: "data" or "partition".
    """
    flat = [federation(block.rows[0].runs[0].config) for block in blocks]
    of_section = [{k: v for k, v in f.items() if k.startswith(f"{section}.")} for f in flat]
    texts = [json.dumps(settings, sort_keys=True) for settings in of_section]
    unlike = dict(zip(texts, of_section, strict=True))
    (names,) = _names([list(unlike.values())], f"{section}.", _SKEW)
    named = dict(zip(unlike, names, strict=True))
    return [named[text] for text in texts]


def _names(groups, short, always=()):
    """What tells flat configs of a group apart: for each group, a name of each config.

    A name has the settings in which configs of any group with one `SECTION.name` differ. Those of
    the section `short` lose its prefix, and its name stands first. One that a config lacks is told
    ("absent") only where nothing else tells the config from another of its group. Keys in `always`
    are told also where they do not differ.
    """
    every = {key for group in groups for config in group for key in config}
    tells = {key: _tells(groups, key) for key in sorted(every - {f"{short}name"})}

    def name(config, with_absent):
        parts = [shown(config[f"{short}name"])] if short else []
        for key, kinds in tells.items():
            differs = _kind(config, key) in kinds and (with_absent or key in config)
            if differs or (key in always and key in config):
                parts.append(f"{key.removeprefix(short)}={_value(config, key)}")
        return " ".join(parts)

    def of_group(group):
        names = [name(config, False) for config in group]
        pairs = zip(group, names, strict=True)
        return [name(config, names.count(it) > 1 or not it) for config, it in pairs]

    return [of_group(group) for group in groups]


def _tells(groups, key):
    """The kinds of configs (see `_kind`) that in some group have several values of the key."""
    kinds = set()
    for group in groups:
        values = {}
        for config in group:
            values.setdefault(_kind(config, key), set()).add(_value(config, key))
        kinds |= {kind for kind, several in values.items() if len(several) > 1}
    return kinds


def _kind(config, key):  # what a setting is of: alpha of one partition is not that of another
    name = key.partition(".")[0] + ".name"
    return None if key == name else _value(config, name)


def _value(config, key):
    return shown(config.get(key, "absent"))


def flatten(config: dict, prefix: str = "") -> dict[str, Any]:
    """{"section.key": value}"""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, dict)
        flat |= flatten(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def shown(value: Any) -> str:
    """A setting in one printable line."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isprintable() else "?" for c in text) if text else "''"


def measures(evaluation: dict) -> dict[str, float]:
    """{"accuracy.worst10": percent, "global": ..., "domains.NAME": ...} of one evaluation.

    After the accuracies the loss and the named metrics: "loss.mean", "global_loss", ... A value
    that is no finite number is left out.
    """
    numbers = metrics.numbers(evaluation)
    firsts = {key: numbers.pop(key) for key in _ACCURACY if key in numbers}
    flat = flatten({**firsts, **numbers})
    return {key: value for key, value in flat.items() if files.NUMBER.fits(value)}


def headlines(measured: Iterable[str]) -> dict[str, str]:
    """By metric the measure that it is known by, the first in the order of HEADLINES."""
    there = dict.fromkeys(measured)
    chosen: dict[str, str] = {}
    for metric in dict.fromkeys(map(metric_of, there)):
        mean, *others = HEADLINES
        if metric != "accuracy":
            mean, *others = f"{metric}.mean", *(f"{form}_{metric}" for form in others)
        headline = next((form for form in (mean, *others) if form in there), None)
        chosen |= {metric: headline} if headline else {}
    return chosen


def lower_is_better(blocks: Iterable[Block]) -> frozenset[str]:
    """The metrics of which a lower value is better; those of one's own as summaries say."""
    summaries = [run.summary for block in blocks for row in block.rows for run in row.runs]
    return LOWER_IS_BETTER.union(*(summary.get("lower_is_better", ()) for summary in summaries))


def peeks(way: str, measured: Iterable[str]) -> bool:
    """Whether a way to choose a round looks at test examples, where these measures were taken.

    max_over_rounds goes by the first of HEADLINES that there is: without a test set, by `id`.
    """
    return way.startswith("max") and not set(_TESTED).isdisjoint(measured)


def picked(row: Row, way: str) -> dict[int, dict]:
    """The evaluation of each seed in the round chosen by `way` (metrics.pick_rounds)."""
    chosen = {seed: metrics.pick_rounds(rows) for seed, rows in row.seeds.items()}
    return {seed: ways[way] for seed, ways in chosen.items() if way in ways}


def measured(row: Row, way: str) -> dict[int, dict[str, float]]:
    """The measures of each seed in the round chosen by `way`."""
    return {seed: measures(evaluation) for seed, evaluation in picked(row, way).items()}


def curve(row: Row, measure: str) -> dict[str, np.ndarray]:
    """`rounds`, `megabytes`, `seconds` [E], means over seeds, and `values` [seeds, E]: the E
    evaluations that every seed has."""
    points = [
        {r["round"]: r for r in rows if measure in measures(r)} for rows in row.seeds.values()
    ]
    rounds = sorted(set.intersection(*(set(p) for p in points)))
    at = [[p[r] for r in rounds] for p in points]
    sent = [[(r["bytes_up"] + r["bytes_down"]) / 1e6 for r in rows] for rows in at]
    return {
        "rounds": np.array(rounds),
        "megabytes": np.mean(sent, 0),
        "seconds": np.mean([[r["seconds"] for r in rows] for rows in at], 0),
        "values": np.array([[measures(r)[measure] for r in rows] for rows in at]),
    }


def per_client(row: Row, way: str, measure: str) -> list[float]:
    """The values behind a measure: of all clients of all seeds, in the chosen round."""
    out = []
    for evaluation in picked(row, way).values():
        of_measure = evaluation.get(f"{measure}{PER_CLIENT}")
        of_metric = evaluation.get(metric_of(measure))
        if of_measure is None and isinstance(of_metric, dict):
            of_measure = of_metric.get("per_client")
        out += [value for value in of_measure or [] if files.NUMBER.fits(value)]
    return out
