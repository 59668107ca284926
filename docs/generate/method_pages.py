"""The pages of the methods, made from their files: docstring, settings, bytes, tests, numbers."""

import functools
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import equations
import result_tables

from fedjax_lab import meanings, ranges, registry

ROOT = Path(__file__).parents[2]

GROUPS = {
    "Bounds": "central local",
    "Averaging and optimization": "fedavg fedprox fedavgm fedopt scaffold fednova feddyn fedadmm"
    " fedsam fedcm mimelite fedexp fedgma elastic feddecorr feddisco moon",
    "Skewed labels": "fedlc fedrs fedntd fedetf ccvr fedconcat fedconcat_id",
    "Personal models": "finetune per_fedavg ditto apfl pfedme fedphp fedala fedamp fedfomo fedcac"
    " fml knn_per",
    "Private parts of a model": "fedper fedrep fedbabu lg_fedavg fedbn fedrod feddbe fedpick"
    " fedc2i",
    "Prototypes and distillation": "fedproto fedpac fedgh fd",
    "Clusters and mixtures": "ifca fesem fedsoft cfl fedem",
    "Hypernetworks": "pfedhn hfedf",
    "Unseen domains": "fedsr fediir",
    "Improving another method": "client2vec",
}


class Cost(NamedTuple):
    """Bytes of one client in one round, as multiples of the model's."""

    up: float
    down: float


def groups() -> dict[str, list[str]]:
    """The methods of each group. What no group names is in the last one."""
    named = {title: names.split() for title, names in GROUPS.items()}
    others = sorted(set(registry.METHODS) - {name for each in named.values() for name in each})
    return named | ({"Others": others} if others else {})


def docstring(name: str) -> str:
    """What the file of a method says first."""
    return inspect.getdoc(inspect.getmodule(registry.METHODS[name])) or ""


def title(name: str) -> str:
    """How a method is called in its paper."""
    return re.split(r" \(|[:,.]|, ", docstring(name).split("\n\n")[0])[0]


def paper(name: str) -> str:
    """The citation in the first sentence of the docstring; empty where there is none."""
    found = re.search(r"\((.*?)\)", docstring(name).split("\n\n")[0].replace("\n", " "))
    return found[1] if found else ""


def page(name: str, cost: Cost | None, numbers: list[result_tables.Row]) -> str:
    """The page of a method as Markdown.

    cost: what it sends, where it is known; numbers: the rows of it in the tables of results.
    """
    first = " ".join(docstring(name).split("\n\n")[0].split())
    parts = [
        f"# {title(name)}",
        f"<p>{equations.inline(first, in_block=False)}</p>",
        equations.of_docstring(docstring(name)),
        f"```bash\nfedjax-lab run --config=quickstart:{name}\nfedjax-lab run --help-method {name}"
        f"   # its settings, in the terminal\n```",
        "## Settings\n\n" + settings(name),
        "## On the wire\n\n" + wire(cost),
        "## Tests\n\n" + tests(name),
        *(["## Measured\n\n" + measured(numbers)] if numbers else []),
        "## Source\n\n" + source(name),
    ]
    return "\n\n".join(parts) + "\n"


def settings(name: str) -> str:
    """A table of the settings with defaults, meanings and the ranges of a search."""
    function = registry.look_up("method", name)
    defaults, ranged = registry.default_settings(function), ranges.declared(function)
    if not defaults:
        return "This method has no settings."
    words = meanings.of_settings(function, list(defaults))
    words |= {"base": meanings.MEANINGS["method.base"]} if "base" in words else {}
    lines = ["| `config.method.` | default | meaning | range of `--tune` |", "|---|---|---|---|"]
    for key, default in defaults.items():
        also = ", ".join(f"`{word}`" for word in registry.setting_words(function).get(key, ()))
        said = "; ".join(filter(None, (cell(words[key]), also and f"or {also}")))
        drawn = f"`{ranged[key]}`" if key in ranged else ""
        lines.append(f"| `{key}` | `{default}` | {said} | {drawn} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """What a docstring says, inside a table of Markdown."""
    return equations.inline(text, in_block=False).replace("|", "&#124;")


def wire(cost: Cost | None) -> str:
    """What a client sends and receives."""
    if cost is None:
        return (
            "The method has stages that send different things. A run counts the bytes of each of"
            " them, and `metrics.jsonl` and `report` have the sums."
        )
    if cost == Cost(0, 0):
        return "Nothing is sent."
    up, down = (f"{share:.3g} times the bytes of the model" for share in cost)
    same = "as many bytes as the model has"
    up, down = (same if text.startswith("1 times") else text for text in (up, down))
    said = f"uploads and receives {up}" if up == down else f"uploads {up} and receives {down}"
    return (
        f"In a round a client {said}. [All methods](index.md) says for which model and how many"
        " clients this was counted."
    )


def tests(name: str) -> str:
    """The files of tests that know the method, besides the one that tests all."""
    own, word = ROOT / "tests" / "methods" / f"test_{name}.py", re.compile(rf"\b{name}\b")
    more = [path for path, text in _test_files().items() if word.search(text)]
    files = dict.fromkeys([own] * own.is_file() + more)
    links = [f"[`{path.name}`](../../{path.relative_to(ROOT)})" for path in files]
    every = "[`test_methods.py`](../../tests/methods/test_methods.py) tests every method"
    return f"{every}. This one occurs in {', '.join(links)} as well." if links else f"{every}."


@functools.cache
def _test_files():
    """The texts of the tests of methods, but for those that test every method."""
    paths = sorted((ROOT / "tests" / "methods").glob("test_*.py"))
    return {path: path.read_text() for path in paths if path.name != "test_methods.py"}


def measured(numbers: list[result_tables.Row]) -> str:
    """Its rows in the tables of results, each under the heading of its table."""
    parts = []
    for row in numbers:
        cells = [row.header, ["---"] * len(row.header), row.cells]
        table = "\n".join("| " + " | ".join(line) + " |" for line in cells)
        parts.append(f"[{row.heading}](../{row.file}#{row.anchor}):\n\n{table}")
    return "\n\n".join(parts)


def source(name: str) -> str:
    """The file of a method, folded."""
    path = Path(inspect.getsourcefile(inspect.unwrap(registry.METHODS[name])) or "")
    code = "\n".join("    " + line for line in path.read_text().split("\n")).rstrip()
    shown = path.relative_to(ROOT)
    return f'??? note "{shown}"\n\n    ```python\n{code}\n    ```'


def lines(name: str) -> int:
    """Lines of the method's file that are not blank."""
    path = Path(inspect.getsourcefile(inspect.unwrap(registry.METHODS[name])) or "")
    return sum(bool(line.strip()) for line in path.read_text().splitlines())


def overview(costs: Mapping[str, Cost], setting: str) -> str:
    """The page of all methods. setting: for which model the costs were counted."""
    parts = [
        "# All methods",
        f"The package has {len(registry.METHODS)} methods. Every one of them is a file of pure"
        " functions written for one client, and runs with every data set, partition, model and"
        " [transform](../transforms.md) that it has a meaning for. *Up* and *down* are the bytes"
        " that a client sends and receives in a round, as multiples of the model's, counted from"
        f" the types of the messages for {setting}. *Lines* are those of the method's file that"
        " are not blank, docstring included.",
    ]
    for group, names in groups().items():
        rows = ["| method | name | paper | lines | up | down |", "|---|---|---|---|---|---|"]
        for name in names:
            cost = costs.get(name)
            sent = [f"{share:.3g}" for share in cost] if cost else ["by stage"] * 2
            shown = [f"[{title(name)}]({name}.md)", f"`{name}`", paper(name), str(lines(name))]
            rows.append("| " + " | ".join([*shown, *sent]) + " |")
        parts.append(f"## {group}\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"
