"""Checks the README and the pages of docs/: length, links, code, tables and versions."""

import re
import textwrap
from pathlib import Path
from types import ModuleType

import jax
import pytest
import toys
from naive import KEYS

import fedjax_lab
from fedjax_lab import streams
from fedjax_lab.experiment import registry
from fedjax_lab.methods.fedavg import fedavg

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()
METHODS = (ROOT / "docs/methods.md").read_text()
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "launch/README.md"]
FENCED = re.compile(r"^( *)```.*?^\1```", re.S | re.M)
TABLE = re.compile(r"(?:^ *\|.*\n)+", re.M)
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)


def anchors(page):
    """The anchors of the headings of a page, as GitHub and mkdocs form them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def broken(page):
    """The relative links of a page whose file or heading does not exist."""
    text = re.sub(r"`[^`]*`", "", FENCED.sub("", page.read_text()))
    links = (link for link in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in link)
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def broken_tables(page):
    """The first lines of tables without a rule, without a body or with unequal numbers of cells."""
    for table in TABLE.findall(FENCED.sub("", page.read_text())):
        lines = table.splitlines()
        cells = {len(re.split(r"(?<!\\)\|", line.strip())) for line in lines}
        if len(lines) < 3 or not re.fullmatch(r"[-:| ]+", lines[1]) or len(cells) > 1:
            yield lines[0]


def rows(text):
    """The cells of each row of the tables whose first cell is a name in backticks."""
    return [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]


def test_the_readme_is_short():
    assert len(README.split()) < 1200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_an_existing_file_and_heading(page):
    assert list(broken(page)) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A *title*\n[a](#a-title) [b](#b) [c](c.md) [d](https://d.org) `[e](e)`\n")
    assert list(broken(page)) == ["#b", "c.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_have_a_body_and_rows_of_equal_length(page):
    assert list(broken_tables(page)) == []


def test_broken_tables_are_found(tmp_path):
    page = tmp_path / "page.md"
    whole, bare, short = (
        "| a | `\\|` |\n|---|---|\n| b | c |",
        "| d | e |",
        "| f |\n|---|\n| g | h |",
    )
    page.write_text(f"{whole}\n\n{bare}\n\n{short}\n\n| i |\n|---|\n")
    assert list(broken_tables(page)) == ["| d | e |", "| f |", "| i |"]


def test_the_readme_shows_the_source_of_fedprox():
    assert PYTHON[0] == (ROOT / "fedjax_lab/methods/fedprox.py").read_text()


@pytest.mark.slow
def test_the_user_defined_method_of_the_readme_is_fedavg_without_its_term():
    names = {}
    exec(compile(PYTHON[1], "README.md", "exec"), names)
    keys = streams.make_keys(jax.random.key(0))
    plain, ours, other = (
        toys.player(method)(keys, 0, 1)[0]
        for method in (
            fedavg(toys.NORM),
            names["decayed"](toys.NORM, lam=0.0),
            names["decayed"](toys.NORM, lam=0.1),
        )
    )
    toys.same(plain.server, ours.server)
    with pytest.raises(AssertionError):
        toys.same(plain.server, other.server)


def test_the_table_of_methods_names_every_method():
    named = [name for row in rows(METHODS) for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(registry.METHODS)


@pytest.mark.parametrize("kind", ["data", "model", "partition", "embedding"])
def test_the_configuration_page_has_every_name(kind):
    (row,) = (row for row in rows(CONFIGURATION) if row[0].startswith(f"`{kind}`"))
    assert set(registry.names(kind)) <= set(re.findall(r"`(\w+)`", row[1]))


def test_the_numbers_of_parts_and_the_version_in_the_readme_are_right():
    count = {kind: len(registry.names(kind)) for kind in ("method", "data", "partition", "model")}
    data = f"{count['data']} sources of data (images, texts, and data of natural users)"
    partitions = f"{count['partition']} ways to partition data among clients"
    text = f"{count['method']} methods, {data}, {partitions}, and {count['model']} models"
    assert text in " ".join(README.split())
    version = re.escape(fedjax_lab.__version__)
    assert re.search(rf"version = {{{version}}}", README)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(), re.M)


# The developer pages: the skeleton of a method works, and the files that they name exist.


GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
SKELETON, EXAMPLE_TEST = (
    textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", GUIDE, re.S | re.M)
)


@pytest.fixture(scope="module")
def ditto():
    """The method of the page, compiled as a separate module."""
    module = ModuleType("skeleton")
    exec(compile(SKELETON, "CONTRIBUTING.md", "exec"), vars(module))
    return module.ditto


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
