"""The developer pages: the method skeleton runs and learns, and the files they name exist."""

import re
import textwrap
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
import toys

from fedjax_lab import streams, tree
from fedjax_lab.methods.fedavg import fedavg

KEYS = streams.make_keys(jax.random.key(0))
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SKELETON, EXAMPLE_TEST = (
    textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", PAGE, re.S | re.M)
)


@pytest.fixture(scope="module")
def ditto():
    """The method of the page, compiled as a separate module."""
    module = ModuleType("skeleton")
    exec(compile(SKELETON, "CONTRIBUTING.md", "exec"), vars(module))
    return module.ditto


@pytest.mark.slow
def test_the_skeleton_learns_and_keeps_a_model_on_each_client(ditto):
    play = toys.player(ditto(toys.NORM))
    state, sums = play(KEYS, 0, 12)
    assert tree.finite(state) and int(sums.diverged) == -1
    assert sums.train_loss / 12 < play(KEYS, 0, 1)[1].train_loss
    kernels = np.asarray(state.private.params["head"]["kernel"])
    assert len(np.unique(kernels, axis=0)) == toys.C


@pytest.mark.slow
def test_the_example_test_of_the_page_passes(ditto):
    names = {"ditto": ditto, "fedavg": fedavg, "toys": toys, "KEYS": KEYS}
    exec(compile(EXAMPLE_TEST, "CONTRIBUTING.md", "exec"), names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    test()


def test_the_skeleton_marks_each_equation_once():
    """As `test_docstring_names_paper_and_equations` asks of every method."""
    head = SKELETON.split('"""')[1]
    equations = set(re.findall(r"\(((?:eq|Alg)\. \d+)\)", head))
    assert equations and "arXiv:" in head
    assert all(SKELETON.count(f"# {equation}") == 1 for equation in equations)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/transforms.md"])
def test_the_files_that_a_page_names_exist(page):
    text = (ROOT / page).read_text()
    paths = re.findall(r"`((?:configs|docs|fedjax_lab|launch|tests)/[\w/.]*)`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
