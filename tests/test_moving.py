"""The page for those who come from other libraries: its names exist, and its methods work."""

import re
from pathlib import Path

import jax
import pytest
import snippets
import toys

from fedjax_lab import streams
from fedjax_lab.experiment import registry
from fedjax_lab.experiment.keys import KEYS
from fedjax_lab.methods.fedavgm import fedavgm
from fedjax_lab.methods.fedper import fedper
from fedjax_lab.methods.fedprox import fedprox
from fedjax_lab.testing import check_method

PAGE = Path(__file__).parents[1] / "docs/moving.md"
SETTINGS = {  # keys of the tables that are settings of a name
    "local.lr_decay": ("schedule", "exponential"),
    "local.lr_decay_every": ("schedule", "step"),
    "partition.min_size": ("partition", "dirichlet"),
    "data.dataset": ("data", "huggingface"),
    "method.epochs": ("method", "finetune"),
    "method.server_optimizer": ("method", "fedopt"),
}


@pytest.fixture(scope="module")
def moved():
    """The names that the page's file moved.py defines."""
    names = {}
    for block in snippets.blocks(PAGE):
        if block.use == "file":
            exec(compile(block.text, "moved.py", "exec"), names)
    return names


def test_every_key_and_name_of_the_tables_exists():
    sections = "|".join({key.partition(".")[0] for key in KEYS})
    cells = [line.rsplit("|", 3)[1:3] for line in PAGE.read_text().splitlines() if line[:1] == "|"]
    text = "\n".join("\n".join(each) for each in cells)
    for key in set(re.findall(rf"`((?:{sections})\.[a-z_]+)", text)):
        kind, name = SETTINGS.get(key, ("", ""))
        settings = registry.default_settings(registry.look_up(kind, name)) if kind else KEYS
        assert (key.partition(".")[2] if kind else key) in settings, key
    for section, name in re.findall(r"`(\w+)\.name=(\w+)`", text):
        assert name in registry.names(section)
    for section, listed in re.findall(r"`(\w+)\.name`: (`[\w`, ]+`)", text):
        assert set(re.findall(r"\w+", listed)) <= set(registry.names(section)), listed
    table = PAGE.read_text().partition("## Names of methods")[2].partition("\n## ")[0]
    assert set(re.findall(r"\| `(\w+)` \|$", table, re.M)) <= set(registry.METHODS)


PAIRS = [  # the page's method, and the package's
    ("shared_body", {}, fedper, {}),
    ("pulled", {"mu": 0.3}, fedprox, {"mu": 0.3}),
    ("with_momentum", {"beta": 0.5}, fedavgm, {"beta": 0.5, "nesterov": False}),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, settings, ours, own", PAIRS, ids=[pair[0] for pair in PAIRS])
def test_a_moved_method_computes_what_the_package_does(name, settings, ours, own, moved):
    """The methods differ by rounding, where a gradient is computed in another way."""
    keys = streams.make_keys(jax.random.key(0))
    states = [
        toys.player(method)(keys, 0, 3)[0]
        for method in (moved[name](toys.NORM, **settings), ours(toys.NORM, **own))
    ]
    leaves = [jax.tree.leaves((state.server, state.private)) for state in states]
    assert len(leaves[0]) == len(leaves[1])
    for a, b in zip(*leaves, strict=True):
        assert abs(a - b).max() < 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [pair[0] for pair in PAIRS])
def test_a_moved_method_passes_the_checks(name, moved):
    check_method(moved[name])
