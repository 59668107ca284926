"""Generates the pages of the methods from their files, tests and measured results."""

import functools
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import equations
import result_tables

from fedjax_lab import ranges
from fedjax_lab.commands import descriptions
from fedjax_lab.experiment import registry, titles
from fedjax_lab.testing.toy import needs_adapters

ROOT = Path(__file__).parents[2]

GROUPS = {
    "Bounds": "central local",
    "Averaging and optimization": "fedavg fedprox fedavgm fedopt scaffold fednova feddyn fedadmm"
    " fedsam fedcm mimelite mime fedexp fedgma elastic feddecorr feddisco moon q_ffl afl"
    " fedmgda_plus fedcross diloco",
    "Without a server": "d_psgd dfedavgm",
    "Skewed labels": "fedlc fedrs fedntd fedetf ccvr fedfed fedconcat fedconcat_id",
    "Personal models": "finetune per_fedavg ditto apfl pfedme fedphp fedala fedamp fedfomo fedcac"
    " apple fml fedkd fedmrl fedmtl knn_per adcol metafed",
    "Private parts of a model": "fedper fedrep fedbabu lg_fedavg fedbn fedap fedrod feddbe"
    " fedpick fedc2i fedah fedas fedcp fedgc gpfl pfedsim pfl_da",
    "Prototypes and distillation": "fedproto fedtgp fedpac fedpcl pfedfda fedgh fedgen fd"
    " fedgkt feddf fedmd ds_fl",
    "Clusters and mixtures": "ifca fesem fedsoft cfl fedem floco",
    "Hypernetworks": "pfedhn pefll hfedf pfedla",
    "Parts of a model": "heterofl fedrolex federated_dropout fjord depthfl",
    "Unseen domains": "fedsr fediir",
    "Low-rank adapters": "fedit ffa_lora fedsa_lora rolora flora fedex_lora flexlora hetlora",
    "Asynchronous updates": "fedbuff fedasync ca2fl",
    "Improving another method": "client2vec",
}


class Sent(NamedTuple):
    """A part of the uploads of a client in a round."""

    name: str  # the first field of its path in the upload
    arrays: int
    numbers: int
    is_change: bool  # whether the server can subtract what it has sent before

    def __str__(self) -> str:
        """The part in words."""
        how = ", trained from what the server sent" if self.is_change else ""
        size = f"{self.arrays} array{'s' * (self.arrays > 1)}, {self.numbers:,} numbers"
        return f"`{self.name or 'array'}` ({size}{how})"


class Cost(NamedTuple):
    """Bytes of one client in one round, as multiples of the model's, and what it uploads."""

    up: float
    down: float
    sent: tuple[Sent, ...] = ()


def groups() -> dict[str, list[str]]:
    """{title of a group: names of its methods}; methods without a group are in "Others"."""
    named = {title: names.split() for title, names in GROUPS.items()}
    others = sorted(set(registry.METHODS) - {name for each in named.values() for name in each})
    return named | ({"Others": others} if others else {})


def docstring(name: str) -> str:
    """The docstring of a method's file."""
    return inspect.getdoc(inspect.getmodule(registry.look_up("method", name))) or ""


def title(name: str) -> str:
    """The name of a method in its paper."""
    return titles.beginning("method", name)


def paper(name: str) -> str:
    """The citation in parentheses in the docstring's first paragraph; empty if there is none."""
    match = re.search(r"\((.*?)\)", docstring(name).split("\n\n")[0].replace("\n", " "))
    return match[1] if match else ""


def page(name: str, cost: Cost | None, numbers: list[result_tables.Row]) -> str:
    """The page of a method as Markdown.

    cost: what it sends; None for a method of several stages. numbers: its rows in the tables of
    results.
    """
    first = " ".join(docstring(name).split("\n\n")[0].split())
    adapters = " --config.adapter.name=lora --config.adapter.targets=Dense_0"
    run = f"fedjax-lab run --config=quickstart:{name}{adapters if needs_adapters(name) else ''}"
    parts = [
        f"# {title(name)}",
        f"<p>{equations.inline(first, in_block=False)}</p>",
        equations.docstring_html(docstring(name)),
        f"```bash\n{run}\nfedjax-lab run --help-method {name}"
        f"   # its settings, in the terminal\n```",
        "## Settings\n\n" + settings(name),
        "## On the wire\n\n" + wire(cost),
        "## Tests\n\n" + tests(name),
        *(["## Measured\n\n" + measured(numbers)] if numbers else []),
        "## Source\n\n" + source(name),
    ]
    return "\n\n".join(parts) + "\n"


def settings(name: str) -> str:
    """A Markdown table of the settings: defaults, meanings, and ranges of `sweep --tune`."""
    function = registry.look_up("method", name)
    defaults, ranged = registry.default_settings(function), ranges.declared(function)
    if not defaults:
        return "This method has no settings."
    words = descriptions.setting_meanings(function, list(defaults))
    limits = registry.limits_of(function)
    words |= {"base": descriptions.MEANINGS["method.base"]} if "base" in words else {}
    lines = ["| `config.method.` | default | meaning | range of `--tune` |", "|---|---|---|---|"]
    for key, default in defaults.items():
        also = ", ".join(f"`{word}`" for word in registry.setting_words(function).get(key, ()))
        meaning = cell(descriptions.with_limit(words[key], limits.get(key)))
        meaning = "; ".join(filter(None, (meaning, also and f"or {also}")))
        drawn = f"`{ranged[key]}`" if key in ranged else ""
        lines.append(f"| `{key}` | `{default}` | {meaning} | {drawn} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """A docstring's text as a cell of a Markdown table."""
    return equations.inline(text, in_block=False).replace("|", "&#124;")


def wire(cost: Cost | None) -> str:
    """A paragraph about the bytes that a client sends and receives."""
    if cost is None:
        return (
            "The method has several stages, whose messages differ. A run counts the bytes of each"
            " stage; `metrics.jsonl` and `report` have the sums."
        )
    if cost[:2] == (0, 0):
        return "Nothing is sent."
    up, down = (f"{share:.3g} times the bytes of the model" for share in cost[:2])
    same = "as many bytes as the model has"
    up, down = (same if text.startswith("1 times") else text for text in (up, down))
    both = f"uploads and receives {up}" if up == down else f"uploads {up} and receives {down}"
    return (
        f"In a round a client {both}. [All methods](index.md) gives the model and the number of"
        " clients for which the bytes were counted.\n\n"
        f"What leaves the client, by the names of the code: {'; '.join(map(str, cost.sent))}."
        " [Audits](../audit.md) measure what can be computed from it."
    )


def tests(name: str) -> str:
    """A sentence that links the test files in which the method occurs."""
    main, word = ROOT / "tests" / "methods" / f"test_{name}.py", re.compile(rf"\b{name}\b")
    more = [path for path, text in _test_files().items() if word.search(text)]
    files = dict.fromkeys([main] * main.is_file() + more)
    links = [f"[`{path.name}`](../../{path.relative_to(ROOT)})" for path in files]
    every = "[`test_methods.py`](../../tests/methods/test_methods.py) tests every method"
    return f"{every}. Further tests of this method: {', '.join(links)}." if links else f"{every}."


@functools.cache
def _test_files():
    """{file: its text} for the test files of methods, without the one that tests every method."""
    paths = sorted((ROOT / "tests" / "methods").glob("test_*.py"))
    return {path: path.read_text() for path in paths if path.name != "test_methods.py"}


def measured(numbers: list[result_tables.Row]) -> str:
    """The method's rows in the tables of results, each under the heading of its section."""
    parts = []
    for row in numbers:
        cells = [row.header, ["---"] * len(row.header), row.cells]
        table = "\n".join("| " + " | ".join(line) + " |" for line in cells)
        parts.append(f"[{row.heading}](../{row.file}#{row.anchor}):\n\n{table}")
    return "\n\n".join(parts)


def source(name: str) -> str:
    """The source code of a method, as a collapsed block."""
    path = Path(inspect.getsourcefile(inspect.unwrap(registry.look_up("method", name))) or "")
    code = "\n".join("    " + line for line in path.read_text().split("\n")).rstrip()
    shown = path.relative_to(ROOT)
    return f'??? note "{shown}"\n\n    ```python\n{code}\n    ```'


def lines(name: str) -> int:
    """The number of non-blank lines of the method's file."""
    path = Path(inspect.getsourcefile(inspect.unwrap(registry.look_up("method", name))) or "")
    return sum(bool(line.strip()) for line in path.read_text().splitlines())


def overview(costs: Mapping[str, Cost], setting: str) -> str:
    """The page of all methods.

    costs: those of the methods of one stage. setting: a description of the model and the clients
    for which the costs were counted.
    """
    parts = [
        "# All methods",
        f"The package has {len(registry.METHODS)} methods. Every method is a file of pure"
        " functions written for one client, and can be combined with every data set, partition,"
        " model and [transform](../transforms.md) for which it makes sense. *Up* and *down* are the"
        " bytes that a client sends and receives in a round, as multiples of the model's, counted"
        f" from the types of the messages for {setting}. *Lines* is the number of non-blank lines"
        " of the method's file, including its docstring.",
    ]
    for group, names in groups().items():
        rows = ["| method | name | paper | lines | up | down |", "|---|---|---|---|---|---|"]
        for name in names:
            cost = costs.get(name)
            sent = [f"{share:.3g}" for share in cost[:2]] if cost else ["by stage"] * 2
            shown = [f"[{title(name)}]({name}.md)", f"`{name}`", paper(name), str(lines(name))]
            rows.append("| " + " | ".join([*shown, *sent]) + " |")
        parts.append(f"## {group}\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"
