"""The table of several federations: its numbers, ranks and significance marks in all formats."""

import csv
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from run_folders import SCORES, call, refusal, rows_of, write, write_rows
from scipy import stats

from fedjax_lab.analysis import compare, formats, pivot, runs, tables
from fedjax_lab.experiment import registry, titles

FEDERATIONS = {  # data, partition
    "a": ({"name": "north"}, {"alpha": 0.1}),
    "b": ({"name": "south"}, {"alpha": 0.1}),
    "c": ({"name": "north"}, {"alpha": 0.5}),
}
METHODS = {titles.beginning("method", name): name for name in registry.METHODS}
GAINS = {"fedavg": 0.0, "moon": 0.3, "fedrs": -4.0, "scaffold": 3.0, "central": 9.0}
SEEDS = range(5)


def scores(name, method, rng):
    gain = GAINS[method] * (1 + (name == "b"))
    return {seed: (0, 0, 60 + seed + gain + rng.normal(0, 0.3)) for seed in SEEDS}


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(2)
    for name, (data, partition) in FEDERATIONS.items():
        partition = {"name": "dirichlet"} | partition
        for method in GAINS:
            if (name, method) != ("c", "moon"):
                made = scores(name, method, rng)
                write(tmp_path / name / method, made, method=method, data=data, partition=partition)
    return tmp_path


def table_of(folder, measure="accuracy.mean", baseline=None, sets_off=True):
    """The pivot of all runs in a folder."""
    blocks, _ = runs.arrange([runs.read(run) for run in runs.find([folder])])
    blocks, _ = runs.named_alike(blocks)
    choice = tables.Choice(way="last", measure=measure, target=None, ddof=1)
    sections = [
        tables.Section(block, name, compare.entries(block, "last", measure, name, None))
        for block, name in zip(blocks, compare.find_baseline(blocks, baseline), strict=True)
    ]
    return pivot.table(pivot.columns(sections, [{}] * len(sections)), choice, sets_off)


def last_scores(folder):
    """{(federation, method): accuracies by seed}"""
    accuracies = {}
    for run in folder.glob("*/*"):
        rows = rows_of(run)
        last = [row["accuracy"]["mean"] for row in rows if row["round"] == rows[-1]["round"]]
        accuracies[run.parts[-2], run.name] = np.array(last)
    return accuracies


def test_rows_are_methods_and_columns_are_partitions_by_data(folder):
    table = table_of(folder)
    assert table.groups == [("north", 2), ("south", 1)]
    assert table.header == ["", "Dir(0.1)", "Dir(0.5)", "Dir(0.1)"]
    assert "over 5 seeds. 3 clients. The best" in table.title
    names = [row[0] for row in table.cells]
    assert (
        names[0] == "FedAvg" and names[-1] == "Central training"
    )  # the baseline first, the bound last
    expected = {
        key: f"{a.mean():.2f} +- {a.std(ddof=1):.2f}" for key, a in last_scores(folder).items()
    }
    for title, *cells in table.cells:
        assert cells == [expected.get((federation, METHODS[title]), "-") for federation in "acb"]


def test_the_best_is_bold_the_second_underlined_and_bounds_are_unranked(folder):
    """Means that are printed alike share a rank."""
    table = table_of(folder)
    names = [row[0] for row in table.cells]
    best, second, baseline = map(names.index, ("SCAFFOLD", "MOON", "FedAvg"))
    assert table.bold == {(best, 1), (best, 2), (best, 3)}
    assert table.underlined == {(second, 1), (baseline, 2), (second, 3)}  # moon was not run in c
    assert "No rank or mark is given to Central training" in table.title
    plain = table_of(folder, sets_off=False)
    assert not plain.bold and "bold" not in plain.title
    ranks = tables.ranked({0: 71.001, 1: 70.999, 2: 65.0, 3: 71.02}, "accuracy.mean", ())
    assert ranks == [{3}, {0, 1}, {2}]
    assert tables.ranked({0: 0.5, 1: 0.4}, "loss.mean", ["loss"]) == [{1}, {0}]


def test_marks_come_from_t_tests_corrected_over_the_whole_table(folder):
    table = table_of(folder)
    expected = last_scores(folder)
    p = {
        (federation, method): stats.ttest_rel(values, expected[federation, "fedavg"]).pvalue
        for (federation, method), values in expected.items()
        if method not in ("fedavg", "central")
    }
    assert len(p) == 8 and "the 8 comparisons of this table" in table.title
    ordered, holm, largest = sorted(p, key=p.get), {}, 0.0
    for rank, key in enumerate(ordered):
        largest = max(largest, min(1.0, (8 - rank) * p[key]))
        holm[key] = largest
    for federation, j in zip("acb", (1, 2, 3), strict=True):
        for i, (title, *_) in enumerate(table.cells):
            value = holm.get((federation, METHODS[title]), 1.0)
            mark = "" if value >= 0.05 else formats.WORSE if title == "FedRS" else formats.BETTER
            assert table.marks.get((i, j), "") == mark
    assert set(table.marks.values()) == {formats.WORSE, formats.BETTER}
    assert any(p[key] < 0.05 <= holm[key] for key in p)  # the correction matters here


def test_a_lower_loss_is_better(folder):
    for run in folder.glob("*/*"):
        rows = [row | {"loss": {"mean": row["accuracy"]["mean"] / 100}} for row in rows_of(run)]
        write_rows(run, rows)
    table = table_of(folder, measure="loss.mean")
    names = [row[0] for row in table.cells]
    i = names.index("FedRS")
    assert table.bold == {(i, j) for j in (1, 2, 3)} and table.marks[i, 3] == formats.BETTER
    assert table.title.startswith(
        "Loss, mean over clients (lower is better), last round: mean +- sample"
    )


def test_rows_with_the_same_method_and_settings_match_across_federations(tmp_path):
    """Rows of fedprox are distinguished by mu, but not by the model or the learning rate.

    The model was chosen for each federation, the learning rate for each of its methods.
    """
    one = {0: (1, 2, 3)}
    partition = {"name": "dirichlet", "alpha": 0.3, "tries": 9, "num_clients": 0}
    other = {"data": {"name": "other"}, "partition": partition}
    write(tmp_path / "a", one, method="fedprox", mu=0.01, partition=partition)
    # The skew is shown even if there is only one partition; the data determine the clients.
    alone = table_of(tmp_path, baseline="fedprox")
    assert alone.header == ["", "Dir(0.3)"] and "0 clients" not in alone.title
    write(tmp_path / "b", one, method="fedprox", mu=0.01, **other)
    write(tmp_path / "c", one, method="fedprox", mu=0.1, **other)
    write(tmp_path / "d", one, **other)
    for name in "bcd":
        path = tmp_path / name / "config.json"
        changed = {"model": {"name": "large"}, "local": {"lr": 0.3 if name == "d" else 0.2}}
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    blocks, _ = runs.arrange([runs.read(folder) for folder in runs.find([tmp_path])])
    assert [[row.name for row in block.rows] for block in blocks][0] == ["fedprox"]
    alike, notes = runs.named_alike(blocks)
    names = [[row.name for row in block.rows] for block in alike]
    assert names == [["fedprox mu=0.01"], ["fedprox mu=0.01", "fedprox mu=0.1", "fedavg"]]
    rates = {"FedProx mu=0.01": 0.2, "FedProx mu=0.1": 0.2, "FedAvg": 0.3}
    assert notes == [f"{name} was run with local.lr={lr}" for name, lr in rates.items()]
    table = table_of(tmp_path, baseline="fedprox mu=0.01")
    assert [row[0] for row in table.cells] == list(rates)
    assert "one seed" in table.title and "better" not in table.title and not table.marks


def test_csv_has_every_number_unrounded(folder, capsys):
    rows = list(csv.DictReader(io.StringIO(call(capsys, folder, "--pivot", "--format=csv"))))
    expected = last_scores(folder)
    by_name = {row["row"]: row for row in rows}
    column = "south, dirichlet alpha=0.1: {}"
    line, values = by_name["fedrs"], expected["b", "fedrs"]
    assert float(line[column.format("mean")]) == values.mean()
    assert float(line[column.format("std")]) == values.std(ddof=1)
    difference = (values - expected["b", "fedavg"]).mean()
    np.testing.assert_allclose(float(line[column.format("difference")]), difference)
    assert 0 < float(line[column.format("p t_holm")]) < 0.05
    assert by_name["moon"]["north, dirichlet alpha=0.5: mean"] == ""


@pytest.mark.slow
def test_every_format_shows_ranks_and_marks(folder, capsys):
    markdown = call(capsys, folder, "--pivot", "--format=markdown")
    assert re.search(r"`SCAFFOLD` \| \*\*[\d.]+ \+- [\d.]+\*\* \\\* \|", markdown)
    assert "<ins>" in markdown and "| north, Dir(0.1) |" in markdown
    page = call(capsys, folder, "--pivot", "--format=html")
    assert re.search(r"<td><strong>[\d.]+ ± [\d.]+</strong><sup>\*</sup></td>", page)
    assert "<u>" in page and '<th scope="colgroup" colspan="2">north</th>' in page
    latex = call(capsys, folder, "--pivot", "--format=latex", "--label=tab:main")
    assert r"\label{tab:main}" in latex and r"\multicolumn{2}{c}{north}" in latex
    assert re.search(r"\\textbf{[\d.]+ \$\\pm\$ [\d.]+}\\rlap{\$\^{\*}\$}", latex)
    assert r"\rlap{$^{\dagger}$}" in latex and r"\underline{" in latex
    lines = call(capsys, folder, "--pivot").splitlines()
    body = lines[[line.startswith("---") for line in lines].index(True) + 1 :]
    assert {line.index(" +- ") for line in body} == {body[0].index(" +- ")}  # numbers are aligned
    assert sum(line.count(" †") for line in body) == 3


def test_bad_input_is_a_one_line_error(folder, capsys):
    for arguments, message in (
        (["--published=fedconcat/table1"], "--published needs --pivot"),
        (["--pivot", "--target=3"], "--target cannot be combined"),
        (["--label=a b"], "may have only letters, digits"),
        (["--pivot", "--published=fedconct/table1"], "'fedconct'; did you mean 'fedconcat'?"),
    ):
        assert message in refusal(capsys, folder, *arguments)


def test_runs_that_ended_after_different_numbers_of_rounds_are_reported(folder, tmp_path, capsys):
    early = folder / "a" / "fedrs"
    lines = (early / "metrics.jsonl").read_text().splitlines()
    (early / "metrics.jsonl").write_text("\n".join(lines[: -len(SEEDS)]) + "\n")
    stopped = {"stopped": {"rule": "patience", "round": 10}}
    (early / "summary.json").write_text(json.dumps(stopped))
    out = call(capsys, folder, "--format=markdown")
    assert "the runs ended after different numbers of rounds, which affects all comparisons" in out
    assert ": 15 (4 rows); 10 stopped by patience (1 row)" in out
    assert out.count("different numbers of rounds") == 1  # other federations are equal
    pivoted = call(capsys, folder, "--pivot")
    assert "the runs ended after different numbers of rounds" in pivoted
    (early / "summary.json").write_text('{"stopped": 3}')
    assert "stopped must be a JSON object, not 3; left out" in call(capsys, folder)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs TeX")
def test_the_latex_compiles(folder, tmp_path, capsys):
    """A name may have every character that is special in LaTeX."""
    strange = "a_b & 50% <x> #1 {c} \\d~^|` $\\oops$ [d] +- -1 to -2"
    write(folder / "odd", SCORES["fedprox"], method="fedprox", note=strange, data={"name": strange})
    texts = [
        call(capsys, folder, "--pivot", "--format=latex"),
        call(capsys, folder, "--format=latex", "--label=tab:all", "--bold", "--target=60"),
    ]
    labels = re.findall(r"\\label{(.*?)}", "\n".join(texts))
    assert len(labels) == len(set(labels)) > 10
    lines = [r"\documentclass{article}", formats.LATEX_NEEDS, r"\begin{document}", *texts]
    lines += [rf"\ref{{{label}}}" for label in labels]
    (tmp_path / "page.tex").write_text("\n".join([*lines, r"\clearpage\end{document}"]))
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    for _ in range(2):  # once more for the references
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined" not in done.stdout and "multiply defined" not in done.stdout
    wide = re.findall(r"Overfull \\hbox \((.*?)pt too wide\)", done.stdout)
    assert not wide, wide
