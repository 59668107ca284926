"""Reads the folders of runs, and groups those that can be compared.

Runs with the same config, whatever their seeds, form one `Row`. Rows of one federation (config.data
and config.partition) form one `Block`: the same seed gives each of them the same clients, first
weights and shuffles, so that results in a block are paired by seed. Rows of different blocks are
never compared.
"""

import copy
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.errors import BadInput, quoted, shown
from fedjax_lab.experiment import titles
from fedjax_lab.experiment.keys import DEFAULTS
from fedjax_lab.running import siblings
from fedjax_lab.running.storage import cloud, files, metric_rows, provenance
from fedjax_lab.simulation.units import (
    HEADLINE_METRICS,
    HEADLINES,
    LOWER_IS_BETTER,
    OF_NEW,
    PER_CLIENT,
    TESTED,
    measure_of,
    metric_of,
)

# Keys of an evaluation.
_ACCURACY = ("accuracy", "domains", "levels", "kinds", "global", "ood", "id", *OF_NEW)
_FREE = {"data.normalize", "data.augment"}  # data settings that do not change the federation
_SKEW = {"partition.alpha", "partition.classes", "partition.domains"}
# Titles tell these sections, and the engine does not change the numbers.
_UNTOLD = ("data.", "partition.", "method.", "engine.")
AXES = {  # the labels of the x axes of curves, by the names in `curve`
    "rounds": "round",
    "megabytes": "megabytes of all clients, both ways",
    "seconds": "seconds of training, one seed",
    "virtual_seconds": "virtual seconds",
}


class Run(NamedTuple):
    """The content of a run's folder."""

    folder: Path
    config: dict  # see `comparable`
    seeds: tuple[int, ...]
    rows: list[dict]  # the evaluations that all seeds have; `seconds` is for one seed
    summary: dict  # {} if the run is unfinished
    clients: Mapping[str, Sequence[str]] = MappingProxyType({})  # names by seed, if they have some
    examples: Mapping[str, Sequence[int]] = MappingProxyType({})  # of each training client, by seed


class Row(NamedTuple):
    """The runs with one config."""

    name: str  # the method and the settings in which the rows of the block differ
    runs: list[Run]
    seeds: dict[int, list[dict]]  # the evaluations of each seed
    title: str = ""  # the name for people, with the method's display name

    @property
    def config(self) -> dict:
        """The config of the runs."""
        return self.runs[0].config

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.config["method"]["name"]


class Block(NamedTuple):
    """The rows of one federation, which can be compared."""

    name: str
    rows: list[Row]
    title: str = ""  # data, partition and number of clients, with display names
    settings: str = ""  # other settings that all rows share, and in which the blocks differ

    @property
    def heading(self) -> str:
        """The title, and the settings in which the blocks differ."""
        return "; ".join(filter(None, (self.title, self.settings)))


def find(folders: Sequence[Path]) -> list[Path]:
    """The run folders among `folders` and, at any depth, inside them; each once.

    With a run, the folders of its additional seeds are found as well, except in the cloud. Draws of
    a sweep, which only serve to choose settings, are left out unless `folders` names them.

    Raises BadInput if one of `folders` is not a folder or holds no run.
    """
    run_folders: dict[Path, Path] = {}
    for folder in folders:
        try:
            if not folder.is_dir():
                reason = "is not a folder" if folder.exists() else "does not exist"
                raise BadInput(f"{folder} {reason}")
            runs = _inside(folder)
            if runs == [folder] and not cloud.is_whole(folder):
                runs += [
                    run for beside in siblings.folders(folder) for run in _inside(Path(beside))
                ]
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
        planned = list(planned_cells(folder))
        children.sort(key=lambda f: planned.index(f.name) if f.name in planned else len(planned))
    return [run for child in children for run in _inside(child)]


def planned_cells(folder: Path) -> dict:
    """The cells of a sweep.json in their order; {} if the file does not exist or is damaged."""
    try:
        return files.read_plan(folder / "sweep.json") if (folder / "sweep.json").exists() else {}
    except files.Damaged:
        return {}


def read_all(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Reads runs; returns them and a note for each folder left out because of a damaged file.

    Raises files.Damaged if all runs are damaged.
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
    """Reads a run, finished or not. Raises files.Damaged if a file is missing or damaged."""
    config = files.read_config(folder / "config.json")
    if config is None:
        inside = files.or_run_inside(folder)
        raise files.Damaged(f"{folder} holds no run: there is no config.json in it{inside}")
    config, seeds = comparable(config), config["seeds"]
    rows = metric_rows.read_metrics(folder / "metrics.jsonl")
    evaluated = {(row["round"], row["seed"]) for row in rows}
    rows = [
        row | {"seconds": row["seconds"] / len(seeds)}
        for row in rows
        if row["seed"] in seeds and all((row["round"], seed) in evaluated for seed in seeds)
    ]
    summary = files.read_json(folder / "summary.json", files.SUMMARY)
    known = files.read_json(folder / "names.json", files.NAMES) or {"clients": {}}
    named = {seed: of["names"] for seed, of in known["clients"].items() if "names" in of}
    examples = {seed: of["examples"] for seed, of in known["clients"].items()}
    return Run(folder, config, tuple(seeds), rows, summary or {}, named, examples)


def comparable(config: dict) -> dict:
    """A config.json without settings that do not affect the results of a seed.

    These are the seeds, the metrics, the time limit of a command, and the cache folder of the data.
    """
    config = copy.deepcopy(provenance.with_digests(config))
    del config["seeds"]
    for key in ("seed", "metrics", "max_seconds"):
        config["run"].pop(key, None)
    config["data"].pop("cache", None)
    return config


def arrange(
    runs: Sequence[Run], names: Mapping[str, str] | None = None
) -> tuple[list[Block], list[str]]:
    """Groups runs into blocks of rows; returns the blocks and notes about them, one line each.

    names: display names of methods, data sources and partitions, see `titles.section_title`.

    Raises BadInput if no run has been evaluated, if two runs have the same config and seed, or if
    the names give two rows of a block the same title.
    """
    notes = [shown(note) for run in runs if (note := _note(run))]
    runs = _completed([run for run in runs if run.rows])
    if not runs:
        raise BadInput("nothing to compare: no run has been evaluated yet")
    federations = _groups(runs, lambda run: federation(run.config))
    (differ,) = _names([[federation(same[0].config) for same in federations]], "")
    blocks = [
        Block("; ".join(filter(None, (_federation_name(same[0]), name))), _rows(same, names))
        for (name, _), same in zip(differ, federations, strict=True)
    ]
    blocks = _titled(blocks, names)
    if len(blocks) > 1:
        separate = f"these runs use {len(blocks)} different data partitions"
        notes.insert(0, f"{separate}; each is compared separately")
    return blocks, notes + [note for block in blocks for note in _unequal(block)]


def _groups(runs, config_of):
    """The runs in groups with equal configs, in the order of the first run of each."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(config_of(run), sort_keys=True), []).append(run)
    return list(groups.values())


def _completed(runs):
    """The runs, with defaults for sections and keys that a config lacks and others have."""
    known = {(s, key) for run in runs for s, values in run.config.items() for key in values}
    sections = dict.fromkeys(section for run in runs for section in run.config)
    defaults = {
        section: {key: value for key, value in values.items() if (section, key) in known}
        for section, values in json.loads(json.dumps(DEFAULTS)).items()
    }

    def filled(config, section):
        given = config.get(section, {})
        return {**given, **defaults.get(section, {}), **given}  # in the order of `given`

    return [
        run._replace(config={name: filled(run.config, name) for name in sections}) for run in runs
    ]


def _note(run):
    if not run.rows:
        return f"{run.folder}: left out, because it has not been evaluated yet"
    rounds = run.rows[-1]["round"]
    if "diverged" in run.summary:
        return f"{run.folder}: diverged; its numbers end with round {rounds}"
    return "" if run.summary else f"{run.folder}: unfinished; its numbers end with round {rounds}"


def _unequal(block):
    """Notes on a block whose rows have different seeds, or whose runs ended in different rounds."""
    seeds = Counter(", ".join(map(str, row.seeds)) for row in block.rows)
    if len(seeds) > 1:
        yield f"the rows have different seeds, so only shared seeds are paired: {_listed(seeds)}"
    if unequal_rounds(block):
        ends = Counter(", ".join(dict.fromkeys(map(_end, row.runs))) for row in block.rows)
        yield (
            "the runs ended after different numbers of rounds, which affects all comparisons:"
            f" {_listed(ends)}"
        )


def _listed(counts):
    return "; ".join(f"{what} ({n} row{'s' * (n > 1)})" for what, n in counts.items())


def unequal_rounds(block: Block) -> bool:
    """Whether the runs of a block ended after different numbers of rounds."""
    return len({run.rows[-1]["round"] for row in block.rows for run in row.runs}) > 1


def _end(run):
    """The number of rounds of a run, and the rule that stopped it early, if any."""
    rule = run.summary.get("stopped", {}).get("rule")
    return f"{run.rows[-1]['round']}" + (f" stopped by {shown(rule)}" if rule else "")


def federation(config: dict) -> dict[str, Any]:
    """The settings that determine the examples of every client, as {"section.key": value}.

    Runs with equal settings can be compared.
    """
    flat = flatten({key: config[key] for key in ("data", "partition")})
    return {key: value for key, value in flat.items() if key not in _FREE}


def _federation_name(run):
    each = (shown(run.config[section].get("name")) for section in ("data", "partition"))
    return ", ".join([*each, *_clients(run)])


def _clients(run):
    number = run.config["partition"].get("num_clients")  # 0: the data determine the number
    return [f"{shown(number)} clients"] if number else []


def _titled(blocks, names):
    """The blocks with titles, and with the settings in which all rows of a block differ from those
    of another block."""
    each = [section_names(blocks, section, names) for section in ("data", "partition")]
    (others,) = _names([[_shared(block) for block in blocks]], "")
    counts = [_clients(block.rows[0].runs[0]) for block in blocks]
    return [
        block._replace(title=", ".join([data, partition, *count]), settings=other)
        for block, (_, data), (_, partition), count, (other, _) in zip(
            blocks, *each, counts, others, strict=True
        )
    ]


def _shared(block):
    """The settings that all rows of a block share, without those in _UNTOLD."""
    first, *rest = (flatten(row.config) for row in block.rows)
    return {
        key: value
        for key, value in first.items()
        if not key.startswith(_UNTOLD) and all(other.get(key) == value for other in rest)
    }


def _rows(runs, titles_of):
    same = _groups(runs, lambda run: run.config)
    (names,) = _names([[flatten(group[0].config) for group in same]], "method.", titles_of)
    each = zip(names, same, strict=True)
    return _checked([row_of(name, group, title) for (name, title), group in each])


def _checked(rows):
    """The rows. Raises BadInput if two of them have the same title."""
    of_title: dict[str, str] = {}
    for row in rows:
        if (other := of_title.setdefault(row.title, row.name)) != row.name:
            raise BadInput(
                f"the rows {quoted(other)} and {quoted(row.name)} are both called"
                f" {quoted(row.title)}; choose other --names"
            )
    return rows


def row_of(name: str, runs: list[Run], title: str = "") -> Row:
    """The row of runs with one config. Raises BadInput if two of them have the same seed."""
    owner: dict[int, Run] = {}
    for run in runs:
        for seed in run.seeds:
            if seed in owner:
                raise BadInput(
                    f"{owner[seed].folder} and {run.folder} both hold seed {seed} of {name} with"
                    " the same config; name only one of them"
                )
            owner[seed] = run
    seeds = {seed: [r for r in owner[seed].rows if r["seed"] == seed] for seed in sorted(owner)}
    return Row(name, runs, seeds, title or name)


def named_alike(
    blocks: Sequence[Block], names: Mapping[str, str] | None = None
) -> tuple[list[Block], list[str]]:
    """Renames the rows so that the rows of a method have the same names in all blocks.

    A name is that of the method with the settings in which rows of this method differ within a
    block. Settings that were chosen separately for each method or block are left out; the notes
    that follow the blocks tell them for each name.
    """
    methods = dict.fromkeys(row.method for block in blocks for row in block.rows)
    named = {
        method: map(iter, _names([_settings(block, method) for block in blocks], "method.", names))
        for method in methods
    }
    out = []
    left_out: dict[str, dict[str, None]] = {}
    for block in blocks:
        of_block = {method: next(of_method) for method, of_method in named.items()}
        each = [next(of_block[row.method]) for row in block.rows]
        rows = [row._replace(name=n, title=t) for row, (n, t) in zip(block.rows, each, strict=True)]
        out.append(block._replace(rows=_checked(rows)))
        for old, new in zip(block.rows, rows, strict=True):
            left = [word for word in old.name.split(" ") if word not in new.name.split(" ")]
            if left:
                left_out.setdefault(new.title, {})[" ".join(left)] = None
    return out, [f"{name} was run with {'; '.join(left)}" for name, left in left_out.items()]


def _settings(block, method):
    """The settings of each row of a method, without those that define the block's federation."""
    shared = federation(block.rows[0].config)
    configs = [flatten(row.config) for row in block.rows if row.method == method]
    return [{key: v for key, v in config.items() if key not in shared} for config in configs]


def section_names(
    blocks: Sequence[Block], section: str, names: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """For each block, the name and the title of its data or partition, with the settings that
    differ between blocks.

    The degree of skew of a partition is always included.

    Args:
      blocks: blocks of different federations.
      section: "data" or "partition".
      names: see `arrange`.
    """
    flat = [federation(block.rows[0].config) for block in blocks]
    of_section = [{k: v for k, v in f.items() if k.startswith(f"{section}.")} for f in flat]
    texts = [json.dumps(settings, sort_keys=True) for settings in of_section]
    unlike = dict(zip(texts, of_section, strict=True))
    (each,) = _names([list(unlike.values())], f"{section}.", names, _SKEW)
    named = dict(zip(unlike, each, strict=True))
    return [named[text] for text in texts]


def _names(groups, short, titles_of=None, always=()):
    """Names and titles that distinguish the flat configs of each group, one pair for each config.

    A name has the settings in which configs of any group with the same `SECTION.name` differ. The
    name of the section `short` comes first, and its settings lose the prefix. A setting that a
    config lacks is included (as "absent") only if nothing else distinguishes the config from others
    of its group. Keys in `always` are included even if they do not differ. A title has the display
    name of the section, with `titles_of` instead of those of docstrings, and not the settings that
    this name states.
    """
    every = {key for group in groups for config in group for key in config}
    tells = {key: _tells(groups, key) for key in sorted(every - {f"{short}name"})}

    def parts(config, with_absent):
        out = {f"{short}name": shown(config[f"{short}name"])} if short else {}
        for key, kinds in tells.items():
            differs = _kind(config, key) in kinds and (with_absent or key in config)
            if differs or (key in always and key in config):
                out[key] = f"{key.removeprefix(short)}={_value(config, key)}"
        return out

    def config_names(config, with_absent):
        out = parts(config, with_absent)
        return " ".join(out.values()), " ".join(_with_title(out, config, short, titles_of))

    def group_names(group):
        names = [" ".join(parts(config, False).values()) for config in group]
        pairs = zip(group, names, strict=True)
        return [config_names(config, names.count(it) > 1 or not it) for config, it in pairs]

    return [group_names(group) for group in groups]


def _with_title(parts, config, short, titles_of):
    """The parts of a name, with the display name of the section instead of the config's."""
    if not short:
        return parts.values()
    section = {key.removeprefix(short): value for key, value in config.items()}
    if short == "method.":
        title = titles.method_title(section, config.get("clock.concurrency", 0), titles_of)
    else:
        title = titles.section_title(short.removesuffix("."), section, titles_of)
    stated = {f"{short}{key}" for key in ("name", *title.stated)}
    return [title.text, *(text for key, text in parts.items() if key not in stated)]


def _tells(groups, key):
    """The kinds of configs (see `_kind`) that have several values of the key in some group."""
    kinds = set()
    for group in groups:
        values = {}
        for config in group:
            values.setdefault(_kind(config, key), set()).add(_value(config, key))
        kinds |= {kind for kind, several in values.items() if len(several) > 1}
    return kinds


def _kind(config, key):  # the owner of a setting: alpha means something else in each partition
    name = key.partition(".")[0] + ".name"
    return None if key == name else _value(config, name)


def _value(config, key):
    return shown(config.get(key, "absent"))


def flatten(config: dict, prefix: str = "") -> dict[str, Any]:
    """A nested config as a flat dict {"section.key": value}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, dict)
        flat |= flatten(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def measures(evaluation: dict) -> dict[str, float]:
    """The measures of an evaluation: {"accuracy.worst10": percent, "global": ..., ...}.

    After the accuracies come the loss and the metrics of the config: "loss.mean", "global_loss",
    ... Values that are not finite numbers are left out.
    """
    numbers = metric_rows.numbers(evaluation)
    firsts = {key: numbers.pop(key) for key in _ACCURACY if key in numbers}
    flat = flatten({**firsts, **numbers})
    return {key: value for key, value in flat.items() if files.NUMBER.fits(value)}


def headlines(measured: Iterable[str]) -> dict[str, str]:
    """The headline measure of each metric: the first form that exists, of TESTED and "id"."""
    names = dict.fromkeys(measured)
    chosen: dict[str, str] = {}
    for metric in dict.fromkeys(map(metric_of, names)):
        forms = (measure_of(metric, form) for form in (*TESTED, "id"))
        headline = next((form for form in forms if form in names), None)
        chosen |= {metric: headline} if headline else {}
    return chosen


def lower_is_better(blocks: Iterable[Block]) -> frozenset[str]:
    """The metrics for which lower is better; for user-defined metrics, as the summaries say."""
    summaries = [run.summary for block in blocks for row in block.rows for run in row.runs]
    return LOWER_IS_BETTER.union(*(summary.get("lower_is_better", ()) for summary in summaries))


def peeks(way: str, measured: Iterable[str]) -> bool:
    """Whether a way of choosing a round uses test examples when these measures exist.

    max_over_rounds uses the first of HEADLINES that exists: without a test set, `id`.
    """
    first = next((measure for measure in HEADLINES if measure in set(measured)), "id")
    return way.startswith("max") and first not in {measure_of(m, "id") for m in HEADLINE_METRICS}


def picked(row: Row, way: str) -> dict[int, dict]:
    """The evaluation of each seed in the round chosen by `way` (metrics.pick_rounds)."""
    chosen = {seed: metric_rows.pick_rounds(rows) for seed, rows in row.seeds.items()}
    return {seed: ways[way] for seed, ways in chosen.items() if way in ways}


def measured(row: Row, way: str) -> dict[int, dict[str, float]]:
    """The measures of each seed in the round chosen by `way`."""
    return {seed: measures(evaluation) for seed, evaluation in picked(row, way).items()}


def curve(row: Row, measure: str) -> dict[str, np.ndarray]:
    """The curve of a measure over the E evaluations that every seed has.

    Returns:
      `rounds`, `megabytes`, `seconds` and, if all runs have a clock, `virtual_seconds` [E] as means
      over seeds, and `values` [seeds, E].
    """
    points = [
        {r["round"]: r for r in rows if measure in measures(r)} for rows in row.seeds.values()
    ]
    rounds = sorted(set.intersection(*(set(p) for p in points)))
    at = [[p[r] for r in rounds] for p in points]
    sent = [[(r["bytes_up"] + r["bytes_down"]) / 1e6 for r in rows] for rows in at]
    timed = all("virtual_seconds" in r for rows in at for r in rows)
    virtual = [[r["virtual_seconds"] for r in rows] for rows in at] if timed else None
    return ({} if virtual is None else {"virtual_seconds": np.mean(virtual, 0)}) | {
        "rounds": np.array(rounds),
        "megabytes": np.mean(sent, 0),
        "seconds": np.mean([[r["seconds"] for r in rows] for rows in at], 0),
        "values": np.array([[measures(r)[measure] for r in rows] for rows in at]),
    }


def axes(curves: Iterable[dict[str, np.ndarray]]) -> dict[str, str]:
    """The entries of AXES that all curves have."""
    shared = set.intersection(set(AXES), *map(set, curves))
    return {axis: label for axis, label in AXES.items() if axis in shared}


def per_client(row: Row, way: str, measure: str) -> list[float]:
    """The values of a measure for single clients of all seeds, in the round chosen by `way`."""
    return [value for _, value in named_clients(row, way, measure)]


def named_clients(row: Row, way: str, measure: str) -> list[tuple[str, float]]:
    """The values of `per_client`, each with the client's name, or its number if it has none."""
    names = {int(seed): named for run in row.runs for seed, named in run.clients.items()}
    out = []
    for seed, evaluation in picked(row, way).items():
        values = client_values(evaluation, measure)
        named = names.get(seed, [])
        called = named if len(named) == len(values) else map(str, range(len(values)))
        pairs = zip(called, values, strict=True)
        out += [(name, value) for name, value in pairs if value is not None]
    return out


def client_values(evaluation: dict, measure: str) -> list[float | None]:
    """The values of a measure for single clients; None for a client without a number."""
    of_measure = evaluation.get(f"{measure}{PER_CLIENT}")
    of_metric = evaluation.get(metric_of(measure))
    if of_measure is None and isinstance(of_metric, dict):
        of_measure = of_metric.get("per_client")
    return [value if files.NUMBER.fits(value) else None for value in of_measure or []]
