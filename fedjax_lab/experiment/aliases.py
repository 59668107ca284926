"""Earlier names of config keys and values, and keys of earlier versions.

Config files, overrides, grids of sweeps and saved configs of earlier runs may all use them. This
module imports nothing heavy, so that reports of runs start quickly.
"""

from typing import Any

from fedjax_lab.errors import BadInput

ALIASES = {  # SECTION.KEY or SECTION.KEY=VALUE of an earlier version: its current name
    "engine.seeds=vectorised": "engine.seeds=vectorized",
    "engine.strategy=vectorised": "engine.strategy=vectorized",
}

REMOVED: dict[str, Any] = {"engine.sampling": "exact"}
# {SECTION.KEY of an earlier version: the value that describes what every run now does}

ADDED: dict[str, dict[str, Any]] = {
    "method.name=scaffold": {"weights": "size"},
    "method.base=scaffold": {"weights": "size"},
    "method.name=fedavgm": {"nesterov": False},
    "method.base=fedavgm": {"nesterov": False},
    "method.name=fedfomo": {"reference": "last"},
}
# {SECTION or SECTION.KEY=VALUE: {key: value}} of the keys that an earlier version lacked and whose
# current default differs from what that version did; the value reproduces the earlier behavior.
# SECTION.KEY=VALUE means a section with this value. All other missing keys take their current
# default.

CHANGED = ("method.name=fedopt", "privacy.sampling=poisson")
# SECTION.KEY=VALUE with which version 0.2.0 computed other numbers, which no setting reproduces.


def current(key: str, value: Any) -> tuple[str, Any]:
    """Translates a dotted key and its value to their current names."""
    key = ALIASES.get(key, key)
    if isinstance(value, str) and f"{key}={value}" in ALIASES:
        key, _, value = ALIASES[f"{key}={value}"].partition("=")
    return key, value


def current_config(config: dict[str, Any]) -> dict[str, Any]:
    """Translates all keys and values of a config to their current names.

    A removed key whose value describes what every run now does is left out. Raises BadInput if a
    section has a key under both its earlier and its current name.
    """
    out: dict[str, Any] = {}
    for section, values in config.items():
        out[section] = _current_section(section, values) if isinstance(values, dict) else values
    return out


def _current_section(section, values):
    out = {}
    for key, value in values.items():
        if f"{section}.{key}" in REMOVED and value == REMOVED[f"{section}.{key}"]:
            continue
        name, value = current(f"{section}.{key}", value)
        name = name.removeprefix(f"{section}.")
        if name in out:
            raise BadInput(f"config.{section}.{name} is given twice, once under its earlier name")
        out[name] = value
    return out


def current_saved(config: dict[str, Any]) -> dict[str, Any]:
    """As `current_config`, for the saved config of an earlier run.

    Keys that it lacks get the values that reproduce its version (`ADDED`).
    """
    out = current_config(config)
    for which, added in ADDED.items():
        section, _, setting = which.partition(".")
        key, _, value = setting.partition("=")
        if section in out and (not setting or out[section].get(key) == value):
            out[section] = {**added, **out[section]}
    return out
