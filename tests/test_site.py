"""Checks the generated pages of the documentation site."""

import re

import command_help
import equations
import method_pages
import paper_pages
import pytest
import repository_links
import result_tables
import unfit_methods

from fedjax_lab.experiment import registry
from fedjax_lab.papers import published
from fedjax_lab.testing.toy import needs_adapters


def test_every_method_is_in_one_group():
    named = [name for names in method_pages.GROUPS.values() for name in names.split()]
    assert sorted(named) == sorted(registry.METHODS)


@pytest.mark.parametrize("name", registry.METHODS)
def test_the_page_of_a_method_has_its_settings_and_its_equations(name):
    page = method_pages.page(name, None, [])
    for key, default in registry.default_settings(registry.look_up("method", name)).items():
        assert re.search(rf"^\| `{key}` \| `{re.escape(str(default))}` \| \w?", page, re.M)
    assert '<table class="lines">' in page
    assert f"def {name}(" in page


def test_no_word_of_a_docstring_is_lost():
    kept = re.compile(r"[A-Za-z]{4,}")
    for name in registry.METHODS:
        shown = re.sub(r"<[^>]*>", " ", equations.docstring_html(method_pages.docstring(name)))
        text = method_pages.docstring(name).partition("\n\n")[2]
        wanted = {w for w in kept.findall(text) if w.lower() not in equations.GREEK and w != "grad"}
        assert wanted - set(kept.findall(shown)) <= {"epsilon"}, name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("w_{t+1} = sum_i n_i/n w_i", "w[t+1] = ∑[i] n[i]/n w[i]"),
        ("mu/2 ||w - w_t||^2", "μ/2 ‖w − w[t]‖^2"),
        ("phi~_i <- a(i), a head", "φ̃[i] ← a(i), a head"),
        ("see config.local.lr and `x_y`", "see config.local.lr and x_y"),
    ],
)
def test_symbols_are_typeset(text, shown):
    out = equations.inline(text, in_block=True)
    out = re.sub(r"<sub>(.*?)</sub>", r"[\1]", re.sub(r"<sup>(.*?)</sup>", r"^\1", out))
    assert re.sub(r"<[^>]*>", "", out) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("w <- sum_i p_i w_i", "w~← ∑i pi wi"),
        ("send (theta_i, phi_i), i = 1 .. M", "send (θi,~φi), i~= 1~..~M"),
        ("loss of (w with the row of one class)", "loss of (w with the row of one class)"),
    ],
)
def test_lines_end_neither_before_operators_nor_in_short_parentheses(text, shown):
    out = equations.unbroken(equations.inline(text, in_block=True)).replace("&nbsp;", "~")
    assert re.sub(r"<[^>]*>", "", out) == shown


def test_rows_of_result_tables_are_found_by_method(tmp_path):
    page = "# Results\n\n## Digits, `x`\n\n| | mean |\n|---|---|\n| **`fedavg`** | 87.5 |\n"
    (tmp_path / "results.md").write_text(page)
    (row,) = result_tables.rows(result_tables.files(tmp_path))["fedavg"]
    assert row.cells[1] == "87.5" and row.anchor == "digits-x"
    assert "| **`fedavg`** | 87.5 |" in method_pages.page("fedavg", None, [row])


@pytest.mark.parametrize("page", ["method_costs.md", "leaderboard.md"])
def test_the_pages_of_all_methods_have_a_row_for_each(page):
    rows = result_tables.rows([repository_links.ROOT / "docs" / page])
    missing = {*registry.METHODS} - {*rows} - {"client2vec"}
    text = (repository_links.ROOT / "docs" / page).read_text()
    told = {name for line in text.split("Not shown, because")[1:] for name in _names(line)}
    assert all(map(needs_adapters, missing - told))


def _names(line):
    """The methods that a table says it lacks."""
    lacking = line.partition(":")[2].partition(".")[0].replace("\\_", "_")
    return {name.strip() for name in lacking.split(",")}


def test_the_page_of_a_paper_has_all_accuracy_tables():
    text = paper_pages.accuracies("fedc2i")
    for paper, table in published.tables():
        assert paper != "fedc2i" or f"\n| {table} | " in text


def test_links_lead_to_pages_of_the_site():
    def on_site(link, uri, path):
        return repository_links.on_site(f"[a]({link})", uri, path)

    assert on_site("docs/runs.md#x", "changelog.md", "CHANGELOG.md") == "[a](runs.md#x)"
    assert on_site("../CHANGELOG.md", "runs.md", "docs/runs.md") == "[a](changelog.md)"
    shown = on_site("../../setup.cfg", "papers/x.md", "docs/papers/x.md")
    assert shown == "[a](../code/setup.cfg.md)"
    assert on_site("https://jax.dev", "a.md", "docs/a.md") == "[a](https://jax.dev)"


def test_the_page_of_commands_has_their_help():
    """If not: python docs/generate/command_help.py."""
    page = command_help.PAGE.read_text(encoding="utf-8")
    assert command_help.written(page) == page


@pytest.mark.slow
def test_the_table_of_what_methods_lack_is_that_of_the_transforms():
    """If not: python docs/generate/unfit_methods.py."""
    assert unfit_methods.needs_table() == unfit_methods.listed("transforms.md")


def test_a_page_of_code_is_wide_and_not_searched():
    page = repository_links.code_page("configs/quickstart.py")
    _, matter, text = page.split("---\n", 2)
    assert "hide: [navigation, toc]" in matter and "exclude: true" in matter
    assert "````python" in text and "def get_config" in text
