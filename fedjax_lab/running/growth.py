"""Checks how a command may differ from the run that it resumes: rounds and evaluations.

Settings that affect the rounds already played must not change. Other settings may change: the
frequency and the metrics of evaluations, the placement of arrays, and the number of rounds that
follow.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_collections
from flax.traverse_util import flatten_dict

from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.experiment.aliases import CHANGED, REMOVED
from fedjax_lab.experiment.config import Override, default_values, resolve, sources_of, value_at
from fedjax_lab.running import siblings
from fedjax_lab.running.storage import cloud, files, lock, metric_rows, provenance

FREE = (  # keys of a config that a resumed run may change
    "run.rounds",  # as far as `check_rounds` allows it
    "run.eval_every",
    "run.metrics",
    "run.patience",
    "run.target",
    "run.max_seconds",
    "engine.state",
    "engine.data",
)
EVALUATED = "evaluations.json"  # exists if a run was started with other evaluations


# Configs.


def saved_config(config, seeds: list[int]) -> dict:
    """The content of a run's config.json."""
    saved = {**config.to_dict(), "seeds": list(seeds)}
    sources = sources_of(config)
    return {**saved, provenance.SOURCES: sources} if sources else saved


def check_config(folder: Path, today: dict) -> None:
    """Raises BadInput unless a command with this config.json may resume the folder's run.

    today: the content of config.json that this command would write.
    """
    saved = read_config(folder)
    if saved["seeds"] != today["seeds"]:
        siblings.refuse(folder, saved["seeds"], today["seeds"])
    check_same(folder, saved, today)


def check_same(folder: Path, saved: dict, today: dict, free: Sequence[str] = FREE) -> None:
    """Raises BadInput if two contents of config.json differ in a key that is not free.

    The message names the first such key, or the user's own function whose source has changed. A key
    that the saved config lacks counts as today's default, because earlier versions behaved like the
    default, or as `aliases.ADDED` describes.
    """
    saved, today = provenance.aligned(folder, _filled(saved, today), today)
    old, new = (flatten_dict(json.loads(json.dumps(each)), sep=".") for each in (saved, today))
    for key in sorted((old.keys() | new.keys()) - set(free)):
        if old.get(key) != new.get(key):
            before, now = quoted(old.get(key)), quoted(new.get(key))
            raise BadInput(f"{folder} holds another run: its config.{key} is {before}, not {now}")


def read_config(folder: Path) -> dict:
    """Reads a run's config.json, with renamed keys updated. Raises BadInput if there is none."""
    saved = files.read_config(folder / "config.json")
    if saved is None:
        raise BadInput(f"{folder} holds no run to resume: it has no config.json")
    check_removed(folder, saved)
    return saved


def check_removed(folder: Path, config: Mapping) -> None:
    """Raises BadInput if a saved config has a removed key with a value that no run has now."""
    for name, value in REMOVED.items():
        section, key = name.split(".")
        if (saved := config.get(section, {}).get(key, value)) != value:
            raise BadInput(
                f"{folder} holds a run with config.{name}={saved}, which only version 0.2.0 can"
                " load and continue"
            )


def check_version(folder: Path) -> None:
    """Raises BadInput if version 0.2.0 or 0.1.0 began a run whose next rounds would differ now."""
    saved = read_config(folder)
    if "task" in saved:  # a section that those versions did not have
        return
    for name in CHANGED:
        section, key, value = name.replace("=", ".").split(".")
        if saved.get(section, {}).get(key) == value:
            raise BadInput(
                f"{folder} holds a run with config.{name} of version 0.2.0 or 0.1.0, which only"
                " version 0.2.0 can continue, because this version computes other numbers"
            )


def check_begun(folder: Path) -> None:
    """Raises BadInput unless a command has begun a run there; the message names a similar folder.

    A run that was killed before its config was written has left other files.
    """
    if any((folder / name).exists() for name in ("config.json", "fingerprint.json", lock.LOCK)):
        return
    runs = [] if cloud.is_remote(folder) else folder.absolute().parent.glob("*/config.json")
    close = difflib.get_close_matches(folder.name, [run.parent.name for run in runs], 1)
    hint = f"did you mean {folder.parent / close[0]}? " if close else ""
    raise BadInput(
        f"{folder} holds no run to resume: it has no config.json; {hint}--resume_or_start starts a"
        " new run there"
    )


def differ(saved: dict, today: dict) -> bool:
    """Whether two contents of config.json differ in the value of a key in FREE."""
    old, new = _filled(saved, today), json.loads(json.dumps(today))
    return any(value_at(old, key) != value_at(new, key) for key in FREE)


def _filled(saved, today):
    """The saved config, with defaults for the keys that it lacks."""
    filled = dict(saved)
    for section, values in today.items():
        if isinstance(values, dict) and isinstance(saved.get(section, {}), dict):
            filled[section] = {**default_values(section, values), **saved.get(section, {})}
    return json.loads(json.dumps(filled))


def completed(
    config: ml_collections.ConfigDict | None,
    seeds: Sequence[int] | None,
    folder: Path | None,
    overrides: Sequence[Override] = (),
) -> tuple[ml_collections.ConfigDict, list[int]]:
    """The config and the seeds of a command; without a config, those of the run in the folder.

    Args:
      config: a resolved config, or None.
      seeds: the seeds; None: config.run.seed, or without a config those of the folder's run.
      folder: the folder of the run to resume; needed if there is no config.
      overrides: overrides of the config in the folder.

    Raises:
      BadInput: there is no config, and the folder holds no run, or names code that is not trusted.
    """
    if config is not None:
        return config, [config.run.seed] if seeds is None else list(seeds)
    assert folder is not None  # callers without a config resume a run
    saved = read_config(folder)
    begun = saved.pop("seeds")
    seeds = begun if seeds is None else list(seeds)
    return resolve(provenance.recalled(saved, folder), overrides), seeds


# Rounds.


def check_rounds(folder: Path, old: dict[str, int], new: dict[str, int], played: int) -> None:
    """Raises BadInput unless today's config has the rounds already played as its first rounds.

    Args:
      folder: the folder of the run.
      old: for each stage of the saved config, the number of rounds after which it ends, by name.
      new: the same for today's config.
      played: the number of rounds played.
    """
    whole = max(new.values())
    if played > whole:
        raise BadInput(
            f"{folder} already has {played} rounds, more than config.run.rounds={whole}; increase"
            " config.run.rounds, or name another folder"
        )
    for name, end in old.items():
        now = new.get(name, whole)
        if min(end, played) != min(now, played):
            raise BadInput(
                f"{folder} cannot be resumed with another config.run.rounds: its stage {name} ended"
                f" after round {end}, but should now end after round {now}; name another folder"
            )


# Evaluations.


def evaluations(folder: Path | None, every: int, ends: Sequence[int]) -> list[int]:
    """0, followed by the numbers of rounds after which a run is evaluated, ascending.

    Args:
      folder: the folder of the run, which may record earlier evaluations with other settings.
      every: the number of rounds between two evaluations.
      ends: the rounds at which the stages end; each of these rounds has an evaluation.

    Raises files.Damaged if the record is invalid.
    """
    planned = {*range(0, ends[-1], every), *ends}
    shape = {"until": files.COUNT, "rounds": [files.COUNT]}
    made = folder and files.read_json(folder / EVALUATED, shape)
    if made:
        planned = {*made["rounds"], *(after for after in planned if after > made["until"])}
    return sorted({0, *planned})


def write_evaluated(folder: Path, until: int, rounds: Sequence[int]) -> None:
    """Records evaluations that differ from those that a run's config.json implies.

    until: the number of rounds played with other settings. rounds: those of them that were followed
    by an evaluation.
    """
    metric_rows.write_json(folder / EVALUATED, {"until": until, "rounds": rounds})
