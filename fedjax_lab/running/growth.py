"""In what a command may differ from the run that it resumes: rounds, evaluations, seeds.

All that the rounds until now have computed must be as this command would compute it. Everything
else may change: how often the run is evaluated and in what, where its arrays lie, how many rounds
follow, and which seeds come besides.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ml_collections

from fedjax_lab.config import Override, default_values, resolve, value_at
from fedjax_lab.errors import BadInput
from fedjax_lab.running import files, metrics, provenance

FREE = (  # keys of a config that a resumed run may change
    "run.rounds",  # as far as `check_rounds` allows it
    "run.eval_every",
    "run.metrics",
    "engine.state",
    "engine.data",
)
EVALUATED = "evaluations.json"  # of a run that was begun with other evaluations
ADDED = "added_seeds"  # the run of the seeds that a run gets besides, inside its folder


# Configs.


def check_config(folder: Path, today: dict) -> None:
    """BadInput unless the config.json that is written today could be that of the folder's run."""
    saved = read_config(folder)
    _check_seeds(folder, saved["seeds"], today["seeds"])
    check_same(folder, {**saved, "seeds": today["seeds"]}, today)


def check_same(folder: Path, saved: dict, today: dict, free: Sequence[str] = FREE) -> None:
    """BadInput names the first key in which two contents of config.json differ, unless it is free.

    A key that only today's config has counts as the default that it has today: earlier versions did
    what the default stands for, or `aliases.ADDED` says what they did.
    """
    metrics.check_same(folder, _filled(saved, today), today, free)


def read_config(folder: Path) -> dict:
    """The content of a run's config.json, under current names. BadInput where there is none."""
    saved = files.read_config(folder / "config.json")
    if saved is None:
        raise BadInput(f"{folder} holds no run to resume: it has no config.json")
    return saved


def differ(saved: dict, today: dict) -> bool:
    """Whether two contents of config.json of one run have different values of FREE keys."""
    old, new = _filled(saved, today), json.loads(json.dumps(today))
    return any(value_at(old, key) != value_at(new, key) for key in FREE)


def _filled(saved, today):
    """The saved config with the defaults of the keys that it lacks."""
    filled = dict(saved)
    for section, values in today.items():
        if isinstance(values, dict) and isinstance(saved.get(section, {}), dict):
            filled[section] = {**default_values(section, values), **saved.get(section, {})}
    return json.loads(json.dumps(filled))


def _check_seeds(folder, saved, today):
    """BadInput unless all seeds that the folder's runs have begun are among today's."""
    if not set(saved) <= set(today):
        raise BadInput(
            f"{folder} holds another run: config.seeds is {saved} there, not {today}; a run that is"
            " resumed may have more seeds, but none less"
        )
    inner = files.read_config(folder / ADDED / "config.json")
    if inner is not None and not set(inner["seeds"]) <= set(today):
        begun = ",".join(map(str, [*saved, *inner["seeds"]]))
        raise BadInput(f"{folder} has begun more seeds; go on with all of them: --seeds={begun}")


def seeds(folder: Path) -> list[int] | None:
    """The seeds whose run the folder holds; None where it holds no run yet."""
    saved = files.read_config(folder / "config.json")
    return None if saved is None else saved["seeds"]


def completed(
    config: ml_collections.ConfigDict | None,
    seeds: Sequence[int] | None,
    folder: Path | None,
    overrides: Sequence[Override] = (),
) -> tuple[ml_collections.ConfigDict, list[int]]:
    """The config and the seeds of a command; without a config both are those of the folder's run.

    Args:
      config: a resolved one, or None.
      seeds: None stands for config.run.seed, or for all seeds that the folder's run has begun.
      folder: of the run that is resumed, where there is no config.
      overrides: of the folder's config.

    Raises:
      BadInput: there is no config, and the folder holds no run.
    """
    if config is not None:
        return config, [config.run.seed] if seeds is None else list(seeds)
    assert folder is not None  # those who give no config have a run to resume
    saved = read_config(folder)
    seeds = list(_begun(folder)) if seeds is None else list(seeds)
    del saved["seeds"]
    return resolve(provenance.recalled(saved), overrides), seeds


def _begun(folder):
    """The seeds of the folder's run, and after them those that are being added to it; each once."""
    there = seeds(folder) or []
    inner = _begun(folder / ADDED) if there else {}
    return dict.fromkeys([*there, *inner])


# Rounds.


def check_rounds(folder: Path, old: dict[str, int], new: dict[str, int], played: int) -> None:
    """BadInput unless the rounds that were played are also the first ones by today's config.

    Args:
      folder: of the run.
      old: by the name of each stage, after how many rounds it ended or was to end until now.
      new: the same by today's config.
      played: how many rounds have been played.
    """
    whole = max(new.values())
    if played > whole:
        raise BadInput(
            f"{folder} has played {played} rounds already, and by this config there are {whole}"
        )
    for name, end in old.items():
        now = new.get(name, whole)
        if min(end, played) != min(now, played):
            raise BadInput(
                f"{folder} cannot go on with another config.run.rounds: its stage {name} ended"
                f" after round {end}, and would have to end after round {now}; name another folder"
            )


# Evaluations.


class Evaluated(NamedTuple):
    """The evaluations that a run made with other settings than those of its config.json."""

    until: int = 0  # so many rounds were played with those settings
    rounds: tuple[int, ...] = ()  # after which of them there was an evaluation


def evaluations(every: int, ends: Sequence[int], earlier: Evaluated) -> list[int]:
    """0, then after how many rounds a run is evaluated: every so many, and where a stage ends."""
    planned = {*range(0, ends[-1], every), *ends}
    return sorted({0, *earlier.rounds, *(after for after in planned if after > earlier.until)})


def read_evaluated(folder: Path) -> Evaluated:
    """What `write_evaluated` has written; nothing where there is no such file. Raises Damaged."""
    saved = files.read_json(folder / EVALUATED, {"until": files.COUNT, "rounds": [files.COUNT]})
    return Evaluated() if saved is None else Evaluated(saved["until"], tuple(saved["rounds"]))


def write_evaluated(folder: Path, evaluated: Evaluated) -> None:
    """Keeps in a run's folder which evaluations are not as its config.json says."""
    metrics.write_json(folder / EVALUATED, evaluated._asdict())
