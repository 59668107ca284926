"""The display names of methods, data sources and partitions, from their own docstrings.

A docstring that begins with `NAME:` or `NAME (PAPER)`, where NAME has at most three words, gives
the name: for a method that of its file, otherwise that of the function. A word that is a setting
stands for its value: "Dir(alpha)" is shown as Dir(0.3). Without such a beginning, and for parts of
a user, whose files are not read here, the name is that of the config, or for data that of their
file: "stays" for data.path=tables/stays.csv.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from fedjax_lab.errors import BadInput, nearest, quoted, shown
from fedjax_lab.experiment import registry

KINDS = ("method", "data", "partition")  # the sections whose names have titles
_NAME = re.compile(r"(\S+(?: \S+){0,2}?)(?::\s| \()")


class Title(NamedTuple):
    """A display name, and the settings whose values it states."""

    text: str
    stated: frozenset[str] = frozenset()


def parse(text: str | None, configs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """{name in a config: display name} of a text such as "local=Mine,dirichlet=Skewed".

    Raises BadInput for a name that none of the configs has.
    """
    pairs = [part.rpartition("=") for part in text.split(",")] if text else []
    for name, _, title in pairs:
        if not (name.strip() and title.strip()):
            raise BadInput(f"--names={quoted(text)} is not NAME=TITLE,NAME=TITLE")
    names = {name.strip(): title.strip() for name, _, title in pairs}
    used = {shown(config.get(kind, {}).get("name", "")) for config in configs for kind in KINDS}
    for name in [name for name in names if name not in used]:
        raise BadInput(f"--names={quoted(text)}: no run has {quoted(name)}; {nearest(name, used)}")
    return names


def section_title(
    kind: str, section: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> Title:
    """The title of what a section of a config names.

    Args:
      kind: "method", "data" or "partition".
      section: the section, with the settings.
      names: display names that replace those of docstrings.
    """
    name = shown(section.get("name", ""))
    if names and name in names:
        return Title(names[name])
    if name.endswith(":<arrays>"):  # of fedjax_lab.data.memory
        return Title("Arrays in memory")
    words = beginning(kind, name)
    if words == name and section.get("path"):
        return Title(shown(PurePath(str(section["path"])).stem))
    stated = {word for word in re.findall(r"\w+", words) if word in section}
    text = re.sub(r"\w+", lambda word: shown(section.get(word[0], word[0])), words)
    return Title(text, frozenset(stated))


def method_title(
    section: Mapping[str, Any], concurrency: int, names: Mapping[str, str] | None = None
) -> Title:
    """The title of a method, which says whether the method of a synchronous paper is asynchronous.

    concurrency: config.clock.concurrency of the run.
    """
    title, name = section_title("method", section, names), section["name"]
    if not concurrency or name in (names or {}) or "asynchronous" in _docstring("method", name):
        return title
    return title._replace(text=f"Asynchronous {title.text}")


def beginning(kind: str, name: str) -> str:
    """The name with which the docstring of a built-in part begins; otherwise its config's name."""
    begins = _NAME.match(_docstring(kind, name))
    return begins[1] if begins else name


def _docstring(kind, name):
    """The docstring of a built-in part, for a method that of its file; "" for other parts."""
    if name not in registry.NAMED[kind]:
        return ""
    part: Any = registry.look_up(kind, name)
    return inspect.getdoc(inspect.getmodule(part) if kind == "method" else part) or ""


def run_title(config: Mapping[str, Any], names: Mapping[str, str] | None = None) -> str:
    """A run's method, data and partition, such as "FedAvg, Fashion-MNIST, Dir(0.3)"."""
    method = method_title(config["method"], config.get("clock", {}).get("concurrency", 0), names)
    others = (section_title(kind, config[kind], names) for kind in KINDS[1:])
    return ", ".join(title.text for title in (method, *others))
