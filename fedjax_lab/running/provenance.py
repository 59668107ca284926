"""Where the user's own functions of a run came from, as its config.json keeps it under `parts`.

A function is known by its name and by the digest of its file: the same file may lie elsewhere, or
be named by another path, when a run is resumed.
"""

import copy

from fedjax_lab import references
from fedjax_lab.errors import BadInput
from fedjax_lab.references import parts_of

SOURCES = "parts"  # the key of config.json; absent where all functions are built in


def aligned(folder, saved: dict, today: dict) -> tuple[dict, dict]:
    """Both configs without their parts, today's with the names that `saved` has for the same ones.

    BadInput where the source of a part has changed, or nobody can tell whether it has.
    """
    before, now = (config.get(SOURCES, {}) for config in (saved, today))
    names = {}
    for name, source in now.items():
        old_name = _same_part(name, source, before)
        if old_name is not None:
            _check_unchanged(folder, name, before[old_name], source)
            names[name] = old_name
    saved, today = ({k: v for k, v in c.items() if k != SOURCES} for c in (saved, today))
    return saved, _renamed(today, names)


def _same_part(name, source, before):
    """The name that the part has among those of the saved config; None where it is new there."""
    if name in before:
        return name
    function = name.rpartition(":")[2]
    for other, old in before.items():
        shared = [source.get(key) == old.get(key) is not None for key in ("file", "sha256")]
        if other.rpartition(":")[2] == function and any(shared):
            return other
    return None


def _check_unchanged(folder, name, old, new):
    """BadInput unless both sources of a part are known and the same."""
    if new.get("sha256") is None:
        raise BadInput(
            f"{folder} holds a run with {name}, and nobody can tell whether that is the same now;"
            " define it in a file, and name another folder"
        )
    if old.get("sha256") == new["sha256"]:
        return
    before, now = old.get("file"), new.get("file") or name
    what = f"{now} has changed since it began" if before == now else f"that was of {before}"
    raise BadInput(
        f"{folder} holds a run with another {name}: {what}; restore it, or name another folder"
    )


def recalled(config: dict) -> dict:
    """A config.json's sections, with references that find their functions from any folder."""
    parts = config.get(SOURCES, {})
    names = {name: references.recalled(name, source) for name, source in parts.items()}
    return _renamed({key: value for key, value in config.items() if key != SOURCES}, names)


def _renamed(config, names):
    """The config with other names of parts."""
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
    """A config.json's sections; beside the name of a part of one's own, the digest of its source.

    What is computed with two versions of a file is thereby told apart.
    """
    parts = config.get(SOURCES, {})
    config = {key: value for key, value in config.items() if key != SOURCES}
    for key, _, name in list(parts_of(config)) if parts else ():
        section, _, rest = key.partition(".")
        if digest := (parts.get(name) or {}).get("sha256"):
            config[section] = {**config[section], f"{rest}_source": digest[:8]}
    return config
