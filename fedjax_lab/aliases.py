"""Earlier names of config keys and values.

A config file, an override, the grid of a sweep and the saved config of an earlier run may all use
them. This module imports nothing heavy, so that reports of runs start fast.
"""

from typing import Any

from fedjax_lab.errors import BadInput

ALIASES = {  # SECTION.KEY or SECTION.KEY=VALUE of an earlier version: what it is called now
    "engine.seeds=vectorised": "engine.seeds=vectorized",
    "engine.strategy=vectorised": "engine.strategy=vectorized",
}

ADDED: dict[str, dict[str, Any]] = {}
# By section: keys that earlier versions did not have, where their default today is not what those
# did, with what they did. A key that is not here has its default, so that nothing is to be said.


def current(key: str, value: Any) -> tuple[str, Any]:
    """A dotted key and its value under their current names."""
    key = ALIASES.get(key, key)
    if isinstance(value, str) and f"{key}={value}" in ALIASES:
        key, _, value = ALIASES[f"{key}={value}"].partition("=")
    return key, value


def current_config(config: dict[str, Any]) -> dict[str, Any]:
    """A config with all keys and values under their current names.

    Raises BadInput where a section has a key under both of its names.
    """
    out: dict[str, Any] = {}
    for section, values in config.items():
        out[section] = _current_section(section, values) if isinstance(values, dict) else values
    return out


def _current_section(section, values):
    out = {}
    for key, value in values.items():
        name, value = current(f"{section}.{key}", value)
        name = name.removeprefix(f"{section}.")
        if name in out:
            raise BadInput(f"config.{section}.{name} is given twice: also by its earlier name")
        out[name] = value
    return out


def current_saved(config: dict[str, Any]) -> dict[str, Any]:
    """The same of the config of an earlier run, with what its version did where it lacks a key."""
    out = current_config(config)
    return out | {name: {**added, **out[name]} for name, added in ADDED.items() if name in out}
