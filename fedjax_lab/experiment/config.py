"""Completes configs with defaults, applies overrides, and checks all values.

Keys that a config leaves out take the defaults in `keys` and those of the functions that the config
names. `config_files` reads config files.
"""

import ast
import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from fedjax_lab import ranges
from fedjax_lab.data.partitions.partitioning import count_new
from fedjax_lab.errors import (
    BadInput,
    nearest,
    quoted,
)
from fedjax_lab.experiment import references
from fedjax_lab.experiment.aliases import REMOVED, current, current_config
from fedjax_lab.experiment.keys import DEFAULTS, KEYS, PARTS, naming
from fedjax_lab.experiment.references import Source, parts_of
from fedjax_lab.experiment.registry import (
    default_settings,
    has_own_test,
    is_part,
    keyword_defaults,
    limits_of,
    look_up,
    name_of,
    setting_words,
    source_of,
)

Override = tuple[str, str | bool]  # (dotted key, text), or a bool for --config.KEY without a value
BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def value_at(config: Mapping, key: str) -> Any:
    """Returns the value of a dotted key, such as "local.lr"."""
    section, rest = key.split(".")
    return config[section][rest]


def resolve(config: dict, overrides: Sequence[Override] = ()) -> ml_collections.ConfigDict:
    """Completes a config with defaults, applies overrides and checks it; returns it locked.

    A value that names a function (`keys.PARTS`) may also be the function itself, which is
    replaced by its name or reference. Keys and values may have the names of earlier versions
    (`aliases.ALIASES`). Raises BadInput for an unknown key or an invalid value.
    """
    references.refresh()
    config = as_dict(config)
    if not isinstance(config, dict) or not all(isinstance(v, dict) for v in config.values()):
        raise BadInput(f"a config is a dict of sections, each a dict; got {quoted(config)}")
    config = {name: _checked_section(name, values) for name, values in config.items()}
    sections = {**{name: {} for name in DEFAULTS}, **current_config(config)}
    pairs = [current(key, given) for key, given in overrides]
    texts = [(key, given) for key, given in pairs if isinstance(given, str)]
    for section, values in sections.items():  # names first: they decide which other keys exist
        sections[section] = _with_names(section, values, dict(texts))
    for key, text in texts:
        if key == "method.base":  # as does the method that is wrapped
            sections["method"] = _with_base(sections["method"], text)
    full = {name: _fill(name, values) for name, values in sections.items()}
    for key, given in pairs:
        if not _is_without_effect(key, given):
            _override(full, key, given)
    _check_values(full)
    resolved = ml_collections.ConfigDict(full)
    return resolved.lock()


def sources_of(config: Mapping) -> dict[str, Source]:
    """The sources of the functions that a resolved config names, by name; without built-in ones."""
    each = {name: source_of(kind, name) for _, kind, name in parts_of(config)}
    return {name: source for name, source in each.items() if source is not None}


def _checked_section(section, values):
    """The section, with the names of functions instead of the functions.

    Raises BadInput if the section is unknown, or if a key or the name of a function is not text.
    """
    if section not in DEFAULTS:
        raise BadInput(f"no config section {quoted(section)}; {nearest(str(section), DEFAULTS)}")
    checked = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise BadInput(f"a key of config.{section} must be text, got {quoted(key)}")
        kind = PARTS.get(f"{section}.{key}")
        checked[key] = _as_text(kind, value) if kind else value
        if key in ("name", "base") and not isinstance(checked[key], str):
            raise BadInput(f"config.{section}.{key} must be text, got {quoted(value)}")
    return checked


def _as_text(kind, value):
    """The value, with names or references instead of functions and classes."""
    if isinstance(value, (list, tuple)):
        return tuple(_as_text(kind, each) for each in value)
    return name_of(kind, value) if is_part(kind, value) else value


def _with_names(section, values, texts):
    """The section with the names from overrides, without the settings of the replaced functions.

    A key that every config has is removed too if the newly named function has a default for it.
    """
    names = {key: texts.get(f"{section}.{key}") for key in naming(section)}
    names = {key: name for key, name in names.items() if name not in (None, values.get(key))}
    if not names:
        return values
    others = {**values, **dict.fromkeys(names, "")}
    kept = {*DEFAULTS[section]}
    for function in named_functions(section, others).values():
        kept |= default_settings(function, values).keys()
    if names.get("name"):
        kept -= keyword_defaults(look_up(PARTS[f"{section}.name"], names["name"])).keys()
    return {key: value for key, value in values.items() if key in kept} | names


def _with_base(values, base):
    """The section with another base method, without the settings of the previous one."""
    name = values.get("name", DEFAULTS["method"]["name"])
    settings = keyword_defaults(look_up("method", name))
    kept = {key: value for key, value in values.items() if key == "name" or key in settings}
    return {**kept, "base": base}


def as_dict(config: Any) -> Any:
    """Converts a ConfigDict to a dict; returns anything else unchanged."""
    return config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config


def _fill(section, values):
    """The section with all its keys; given values replace defaults."""
    defaults, words = _defaults(section, values)
    full = dict(defaults)
    for key, value in values.items():
        if key not in defaults:
            raise BadInput(_unknown(section, key, defaults, values))
        full[key] = _typed(f"config.{section}.{key}", value, defaults[key], words.get(key, ()))
    return full


def default_values(section: str, values: Mapping) -> dict[str, Any]:
    """The defaults of a section's keys and of the settings of the functions that it names."""
    if section not in DEFAULTS:
        return {}
    defaults, _ = _defaults(section, values)
    return {key: value for key, value in defaults.items() if value is not inspect.Parameter.empty}


def _defaults(section, values):
    """The defaults of a section's keys, and the words that some accept besides their type."""
    defaults, words, owners = dict(DEFAULTS[section]), {}, {}
    for name, function in named_functions(section, values).items():
        settings = default_settings(function, values)
        for shared in settings.keys() & owners.keys():
            raise BadInput(
                f"config.{section}.{shared} is a setting of {owners[shared]} and of {name}; give it"
                " another name in one of the two functions"
            )
        owners |= dict.fromkeys(settings, name)
        defaults |= settings
        words |= setting_words(function, values)
    return defaults, words


def limits_in(section: str, values: Mapping) -> dict[str, ranges.Limit | None]:
    """The bounds and choices of a section's keys and of the settings of the functions it names.

    What a function declares for a key that every config has replaces that key's limit.
    """
    limits = {key: KEYS[f"{section}.{key}"].limit for key in DEFAULTS[section]}
    for function in named_functions(section, values).values():
        limits |= limits_of(function, dict(values))
    return limits


def named_functions(section: str, values: Mapping) -> dict[str, Callable]:
    """The functions whose settings are keys of a section, by name; `values` has the names.

    Raises BadInput if there is no function of such a name.
    """
    names = {key: values.get(key, DEFAULTS[section][key]) for key in naming(section)}
    return {
        name: look_up(PARTS[f"{section}.{key}"], name)
        for key, name in names.items()
        if name and isinstance(name, str)
    }


def settings_of(prefix: str, function: Callable, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a function with these values, of which a text gets the type of its default.

    Raises BadInput, with a message that begins with `prefix` and the key, for an unknown setting or
    a value that it does not accept.
    """
    settings, words = keyword_defaults(function), setting_words(function)
    for key, value in given.items():
        if key not in settings:
            raise BadInput(f"no setting {prefix}{key}; {nearest(key, settings)}")
        read = _from_text(value, settings[key]) if isinstance(value, str) else value
        settings[key] = _typed(f"{prefix}{key}", read, settings[key], words.get(key, ()))
    try:
        for key, limit in limits_of(function).items():
            ranges.check(key, settings[key], limit, words.get(key, ()))
    except BadInput as error:
        raise BadInput(str(error).replace("config.", prefix, 1)) from error
    return settings


def _override(full, key, given):
    section, _, rest = key.partition(".")
    if section not in full:
        raise BadInput(f"no config section {quoted(section)}; {nearest(section, full)}")
    if rest not in full[section]:
        raise BadInput(_unknown(section, rest, full[section], full[section]))
    defaults, words = _defaults(section, full[section])
    default = defaults[rest]
    if isinstance(given, bool) and not isinstance(default, bool):
        flag = f"--config.{key} needs a value" if given else f"--noconfig.{key} is not a flag"
        raise BadInput(f"{flag}; use --config.{key}=VALUE")
    value = _from_text(given, default) if isinstance(given, str) else given
    full[section][rest] = _typed(f"config.{key}", value, default, words.get(rest, ()))


def _is_without_effect(key, given):
    """Whether an override sets a removed key to the value that describes what every run does."""
    return key in REMOVED and given == REMOVED[key]


def _unknown(section, key, defaults, values):
    if (full := f"{section}.{key}") in REMOVED:
        return (
            f"config.{full} was removed; every run is as with {full}={REMOVED[full]}: leave it out"
        )
    owner = f"{section} {values['name']!r}" if "name" in values else f"config.{section}"
    settings = [name for name in defaults if name != "name"]
    return f"{owner} has no setting {quoted(key)}; {nearest(key, settings)}"


def _from_text(text, default):
    """Parses the text of a setting with that default, by the rules of `ml_collections`' flags."""
    if isinstance(default, str) or default is inspect.Parameter.empty:
        return text
    if isinstance(default, bool):
        return BOOLEANS.get(text.lower(), text)
    value = _literal(text)
    if not isinstance(default, tuple):
        return value
    if isinstance(value, str):  # words without quotation marks: `a,b` or `(a,b)`
        value = [word.strip() for word in value.strip("()[] ").split(",") if word.strip()]
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _literal(text):
    """The value of a text that is a Python literal; any other text unchanged."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about the text's syntax
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text  # the last two: nested too deeply for the parser


def _typed(key, value, default, words):
    """Converts the value to the type of the default, unless it is one of the words.

    An int is accepted for a float, and a float such as 1e3 for an int.
    """
    if isinstance(value, str) and value in words:
        return value
    if default is inspect.Parameter.empty:  # a setting without default: a path
        if not isinstance(value, (str, os.PathLike)):
            raise BadInput(f"{key} must be text, got {quoted(value)}")
        return str(value)
    kind = type(default)
    if kind is float and type(value) is int:
        value = _as_float(value)
    if kind is int and type(value) is float and value.is_integer():
        value = int(value)
    if kind is tuple and type(value) is list:
        value = tuple(value)
    if type(value) is not kind:
        allowed = " or ".join([f"of type {kind.__name__}", *map(repr, words)])
        raise BadInput(f"{key} must be {allowed}, got {quoted(value)}")
    if kind is tuple and default:
        return tuple(_typed(f"a value of {key}", each, default[0], ()) for each in value)
    return value


def _as_float(number):
    try:
        return float(number)
    except OverflowError:
        return math.inf  # rejected by `_check_value`


def _check_values(full):
    for section, values in full.items():
        for key, value in values.items():
            if value is inspect.Parameter.empty:
                owner = f"{section} {values['name']!r}"
                raise BadInput(f"{owner} needs config.{section}.{key}")
            for each in value if isinstance(value, tuple) else (value,):
                _check_value(f"config.{section}.{key}", each)
    sources_of(full)  # BadInput if there is no such function
    for section, values in full.items():
        for key, limit in limits_in(section, values).items():
            ranges.check(f"{section}.{key}", values[key], limit)
    if not has_own_test(full["data"]["name"]):
        ranges.BELOW_ONE.check("data.test", full["data"]["test"])
    _check_kinds(full["model"])
    _check_clients(full["partition"], full["run"]["cohort"])
    _check_run(full["run"], full["local"], full["partition"]["validation"])


def _check_kinds(model):
    shares, number = model["shares"], 1 + len(model["kinds"])
    positive = all(type(share) in (int, float) and share > 0 for share in shares)
    if shares and not (positive and len(shares) == number and abs(sum(shares) - 1) < 0.01):
        raise BadInput(
            f"config.model.shares must be {number} numbers above 0 whose sum is 1, for"
            f" config.model.name and config.model.kinds, got {quoted(shares)}"
        )


def _check_clients(partition, cohort):
    num_clients = partition["num_clients"]
    for capacity in partition["capacity"]:
        if type(capacity) not in (int, float) or not 0 < capacity <= 1:
            raise BadInput(
                "config.partition.capacity must be numbers above 0 and at most 1, got"
                f" {quoted(capacity)}"
            )
    if default_values("partition", partition)["num_clients"] != 0:
        ranges.POSITIVE.check("partition.num_clients", num_clients)
    if num_clients == 0:
        return  # the data decide; the cohort is checked when they are loaded
    new = count_new(num_clients, partition["new_clients"])
    if cohort > num_clients - new:
        without = f" without {new} new clients (config.partition.new_clients)" if new else ""
        raise BadInput(
            f"config.run.cohort={cohort} is more than"
            f" config.partition.num_clients={num_clients}{without}"
        )


def _check_run(run, local, validation):
    key = "steps" if local["steps"] else "epochs"
    if run["straggler"] and local[key] < 2:
        raise BadInput(
            f"config.run.straggler={run['straggler']} needs config.local.{key} of at least 2,"
            f" because stragglers make fewer {'steps' if local['steps'] else 'passes'}; got"
            f" {local[key]}"
        )
    if run["patience"] and not validation:
        raise BadInput(
            f"config.run.patience={run['patience']} needs validation examples, and there are none;"
            " hold some out with --config.partition.validation=0.1"
        )


def _check_value(key, value):
    """Raises BadInput for a value that is invalid for every setting."""
    if isinstance(value, float) and not np.isfinite(value):
        raise BadInput(f"{key} must be finite, got {value}")
    if isinstance(value, int) and value >= 2**31:
        raise BadInput(f"{key} must be below 2**31, got {quoted(value)}")
    if isinstance(value, int) and value < -(2**31):
        raise BadInput(f"{key} must not be below -2**31, got {quoted(value)}")
    if isinstance(value, str) and "\0" in value:
        raise BadInput(f"{key} must not have a NUL byte, got {quoted(value)}")
