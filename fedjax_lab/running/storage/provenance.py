"""Records the source files of a run's user-defined functions, under `parts` in its config.json.

A function is identified by its name and the digest of its file. When a run is resumed, the file may
therefore have moved, or be named by another path.
"""

import copy
from pathlib import Path

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import references
from fedjax_lab.experiment.references import parts_of

SOURCES = "parts"  # the key of config.json; absent if all functions are built in


def aligned(folder, saved: dict, today: dict) -> tuple[dict, dict]:
    """Both configs without `parts`, and today's with the references that `saved` uses.

    Raises BadInput if the source of a function has changed, or if that cannot be determined.
    """
    before, now = (config.get(SOURCES, {}) for config in (saved, today))
    names = {}
    for name, source in now.items():
        old_name = _same_part(name, source, before)
        if old_name is not None:
            _check_unchanged(folder, name, before[old_name], source)
            names[name] = old_name
    return _sections(saved), _renamed(_sections(today), names)


def _sections(config):
    return {key: value for key, value in config.items() if key != SOURCES}


def _same_part(name, source, before):
    """The reference to the same function in the saved config; None if it has no such function."""
    if name in before:
        return name
    function = name.rpartition(":")[2]
    for other, old in before.items():
        shared = [source.get(key) == old.get(key) is not None for key in ("file", "sha256")]
        if other.rpartition(":")[2] == function and any(shared):
            return other
    return None


def _check_unchanged(folder, name, old, new):
    """Raises BadInput unless both sources of a function are available and equal."""
    if new.get("sha256") is None:
        raise BadInput(
            f"{folder} holds a run with {name}, and it cannot be determined whether this function"
            " has changed; define it in a file, and name another folder"
        )
    if old.get("sha256") == new["sha256"]:
        return
    before, now = old.get("file"), new.get("file") or name
    what = f"{now} has changed since it began" if before == now else f"it was in {before}"
    raise BadInput(
        f"{folder} holds a run with another version of {name}: {what}; restore it, or name another"
        " folder"
    )


def recalled(config: dict, owner: Path) -> dict:
    """The sections of a config.json, with references that are valid in any working directory.

    owner: the folder with the file. Raises BadInput for code that may not be executed: see
    `references.trusting`.
    """
    parts = config.get(SOURCES, {})
    named = {name for _, _, name in parts_of(config) if references.is_reference(name)}
    names = {name: references.recalled(name, parts.get(name, {}), owner) for name in sorted(named)}
    return _renamed(_sections(config), names)


def _renamed(config, names):
    """The config with references replaced according to `names`."""
    config = copy.deepcopy(config)
    for key, _, _ in list(parts_of(config)):
        section, _, rest = key.partition(".")
        value = config[section][rest]
        many = isinstance(value, (list, tuple))
        config[section][rest] = (
            [names.get(each, each) for each in value] if many else names.get(value, value)
        )
    return config


def with_digests(config: dict) -> dict:
    """The sections of a config.json, with a digest of the source of each user-defined function.

    Runs with different versions of a file therefore have different configs.
    """
    parts, config = config.get(SOURCES, {}), _sections(config)
    for key, _, name in list(parts_of(config)) if parts else ():
        section, _, rest = key.partition(".")
        if digest := (parts.get(name) or {}).get("sha256"):
            config[section] = {**config[section], f"{rest}_source": digest[:8]}
    return config
