"""Checks comparisons of runs: every number against scipy or by hand, on made-up run folders."""

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from run_folders import (
    ROUNDS,
    SCORES,
    call,
    config,
    evaluation,
    refusal,
    rows_of,
    write,
    write_rows,
)
from scipy import stats

from fedjax_lab.analysis import compare, formats, page, runs, tables
from fedjax_lab.commands import report
from fedjax_lab.running import plots
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation.units import HEADLINES, LOWER_IS_BETTER


@pytest.fixture
def pair(tmp_path):
    write(tmp_path / "sweep/a", SCORES["fedavg"])
    write(tmp_path / "sweep/b", SCORES["fedprox"], method="fedprox", mu=0.01)
    return tmp_path / "sweep"


def blocks_of(*folders):
    return runs.arrange([runs.read(folder) for folder in runs.find(folders)])


def entries_of(folder, way="last", measure="accuracy.mean", target=None, ddof=1):
    ((block,), _) = blocks_of(folder)
    entries = compare.entries(block, way, measure, "fedavg", target, ddof)
    return {entry.row.name: entry for entry in entries}


@pytest.mark.parametrize("ddof", [0, 1])
def test_mean_standard_deviation_and_confidence_interval(ddof):
    a = np.array([70.0, 71.0, 75.0, 60.5])
    got = compare.spread(a, ddof)
    low, high = stats.t.interval(0.95, 3, a.mean(), stats.sem(a))
    np.testing.assert_allclose(got, [4, a.mean(), a.std(ddof=ddof), low, high])
    assert compare.spread([1.5]) == (1, 1.5, None, None, None)
    assert compare.spread([]) == (0, None, None, None, None)


def test_the_numbers_of_the_last_round(tmp_path):
    """Seeds in several folders are one row; the seconds are those of one seed."""
    for seed, values in SCORES["fedavg"].items():
        write(tmp_path / f"seed{seed}", {seed: values}, data={"cache": f"/disk{seed}"})
    write(tmp_path / "together", SCORES["fedprox"], method="fedprox", mu=0.01)
    got = entries_of(tmp_path)
    assert list(got) == ["fedavg", "fedprox"]
    a, b = (np.array([s[-1] for s in SCORES[name].values()], float) for name in SCORES)
    for entry, expected in zip(got.values(), (a, b), strict=True):
        assert list(entry.values.values()) == expected.tolist()
        main = entry.measures["accuracy.mean"]
        np.testing.assert_allclose([main.mean, main.std], [expected.mean(), expected.std(ddof=1)])
        for name, value in {
            "accuracy.worst10": expected - 10,
            "domains.south": expected + 1,
            "global": expected / 2,
        }.items():
            np.testing.assert_allclose(entry.measures[name].mean, value.mean())
        assert entry.cost == (15, 15e6, 30.0, None)
    pairs = got["fedprox"].paired
    assert got["fedavg"].paired is None
    np.testing.assert_allclose(pairs.difference.mean, (b - a).mean())
    np.testing.assert_allclose(pairs.difference.std, (b - a).std(ddof=1))
    np.testing.assert_allclose(pairs.t, stats.ttest_rel(b, a).pvalue)
    np.testing.assert_allclose(pairs.wilcoxon, 0.25)  # the lowest exact p-value of 3 pairs
    assert (pairs.t_holm, pairs.wilcoxon_holm) == (pairs.t, pairs.wilcoxon)


def test_wilcoxon_is_exact_with_and_without_ties():
    rng = np.random.default_rng(0)
    for d in (rng.normal(0.7, 1, 9), np.array([1.0, 1.0, 2.0, -1.0, 3.0, 3.0, 0.0])):
        ours, theirs = dict(enumerate(80 + d)), dict.fromkeys(range(len(d)), 80.0)
        got = compare.paired(ours, theirs).wilcoxon
        left = d[d != 0]
        ranks = stats.rankdata(abs(left))
        signs = 2 * ((np.arange(2 ** len(left))[:, None] >> np.arange(len(left))) & 1) - 1
        statistic = abs(signs @ ranks)
        expected = np.mean(statistic >= abs(np.sign(left) @ ranks) - 1e-9)
        np.testing.assert_allclose(got, expected)
        if 0 not in d:
            np.testing.assert_allclose(got, stats.wilcoxon(d, method="exact").pvalue)
    # Differences that are equal up to rounding have tied ranks; one sign is against three.
    ours, theirs = {0: 0.3, 1: 80.0, 2: 7.1, 3: 5.0}, {0: 0.2, 1: 79.9, 2: 7.0, 3: 5.1}
    np.testing.assert_allclose(compare.paired(ours, theirs).wilcoxon, 2 * (1 + 4) / 16)


def test_p_values_of_few_equal_or_constant_pairs():
    same = compare.paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert (same.t, same.wilcoxon, same.difference.mean) == (1, 1, 0)
    ours, theirs = {0: 80.0, 1: 81.0, 2: 80.0}, {0: 80.0, 1: 80.0, 2: 80.0}
    assert compare.paired(ours, theirs).wilcoxon == 1  # one difference has two possible signs
    constant = compare.paired({0: 1.0, 1: 2.0}, {0: 2.0, 1: 3.0})
    assert constant.t is None and constant.wilcoxon == 0.5  # its variance is 0
    one = compare.paired({0: 1.0, 1: 2.0}, {1: 1.5, 2: 2.0})
    assert one.difference == (1, 0.5, None, None, None) and one.t is one.wilcoxon is None
    assert compare.paired({0: 1.0}, {1: 1.0}).difference.n == 0


def test_holm_correction_against_values_by_hand(pair):
    """0.01 x 4, 0.02 x 3, 0.03 x 2 and 0.2, and no value is below that of a smaller p-value."""
    np.testing.assert_allclose(compare.holm([0.03, 0.01, 0.2, 0.02]), [0.06, 0.04, 0.2, 0.06])
    assert compare.holm([0.04, 0.03]) == [0.06, 0.06]
    assert compare.holm([None, 0.9, 0.8]) == [None, 1.0, 1.0] and compare.holm([]) == []
    write(pair / "c", SCORES["fedprox"], method="moon")  # the rows of a block are counted
    p = entries_of(pair)["moon"].paired
    np.testing.assert_allclose([p.t_holm, p.wilcoxon_holm], [2 * p.t, 0.5])


def test_each_way_picks_its_round_for_each_seed(pair, tmp_path):
    write(pair / "c", {0: (50, 80, 60), 1: (90, 70, 60)}, method="moon")
    assert entries_of(pair, "max_over_rounds")["moon"].values == {0: 80, 1: 90}
    assert entries_of(pair)["moon"].values == {0: 60, 1: 60}
    with_validation = write(tmp_path / "v", {0: (50, 80, 60)})
    rows = [row | {"id": 70 - i} for i, row in enumerate(rows_of(with_validation))]
    write_rows(with_validation, rows)
    assert entries_of(with_validation, "best_by_validation")["fedavg"].values == {0: 50}


PEEK = "chosen on the test set itself"


@pytest.mark.parametrize(
    "measured, peeks",
    [
        ({"accuracy": {"mean": 50.0}, "id": 40.0}, True),
        ({"global": 50.0}, True),
        ({"id": 40.0}, False),  # the maximum is over validation examples
        ({}, False),  # a stage that is not scored: no maximum in the table
    ],
)
def test_only_maxima_over_a_test_set_are_marked_as_chosen_on_it(measured, peeks, tmp_path, capsys):
    rows = [evaluation(0, after, 50.0, 1) for after in (5, 10)]
    for row in rows:
        for key in ("accuracy", "domains", "global"):
            del row[key]
        row |= measured
    summary = {**metric_rows.summarize(rows, [0]), "seeds": [0]}
    assert (PEEK in report.closing_table(summary)) == peeks
    if measured:
        folder = write(tmp_path / "a", {0: ()})
        write_rows(folder, rows)
        for form in ("terminal", "html"):
            out = call(capsys, folder, "--way=max_over_rounds", f"--format={form}")
            assert (PEEK in out) == peeks
        assert PEEK not in call(capsys, folder)


def test_rounds_bytes_and_seconds_to_a_target(pair, capsys):
    got = entries_of(pair, target=69.0)
    assert got["fedavg"].goal == (3, 3, (15, 15e6, 30, None))  # first reached with 70, 71, 75
    rounds = np.mean([10, 10, 10])
    assert got["fedprox"].goal == (3, 3, (rounds, 1e6 * rounds, 2 * rounds, None))
    some = entries_of(pair, target=74.0)["fedavg"].goal
    assert some == (1, 3, None)  # a mean over only the seeds that reached it would flatter
    lines = call(capsys, pair, "--target=99").splitlines()
    assert [line.split()[-6:] for line in lines[-2:]] == [["0", "of", "3", "-", "-", "-"]] * 2
    for text in ("nan", "inf", "9" * 5000):
        assert "--target must be a finite number" in refusal(capsys, pair, f"--target={text}")
    # Only rounds of the last stage reach a target.
    rows = [evaluation(0, 5, 90.0, 1, "first"), evaluation(0, 10, 80.0, 1, "second")]
    row = runs.Row("x", [], {0: rows})
    assert compare.goal(row, "accuracy.mean", 75.0).cost.rounds == 10
    assert compare.goal(row, "accuracy.mean", 85.0).cost is None


def test_a_row_is_named_by_the_settings_that_differ(tmp_path):
    one = {0: (1, 2, 3)}
    write(tmp_path / "a", one)
    write(tmp_path / "b", one, method="fedprox", mu=0.1, tau=1.0)
    write(tmp_path / "c", one, method="fedprox", mu=0.2, tau=1.0)
    write(tmp_path / "d", one, method="fedrs", mu=0.9)
    write(tmp_path / "e", one, method="fedrs")  # written by an older version
    ((block,), _) = blocks_of(tmp_path)
    names = [row.name for row in block.rows]
    assert names == ["fedavg", "fedprox mu=0.1", "fedprox mu=0.2", "fedrs mu=0.9", "fedrs"]


CLIPS = {}, {"clip": 0.0}, {"clip": 1.0}
AGGREGATORS = {}, *({"aggregator": {"name": name}} for name in ("none", "median"))


@pytest.mark.parametrize(
    "sections, setting, values",
    [
        ([{"engine": {"seeds": name}} for name in ("vectorised", "vectorized")], "", ""),
        ([{}, {"run": {"rounds": 15, "seed": 7, "metrics": ["ece"]}}], "", ""),
        ([{"local": {"lr": 0.1, **clip}} for clip in CLIPS], "local.clip", (0.0, 1.0)),
        (AGGREGATORS, "aggregator.name", ("none", "median")),
    ],
    ids=["an earlier name", "other metrics", "a missing key", "a missing section"],
)
def test_the_first_two_configs_are_one_row_and_the_third_is_another(
    sections, setting, values, tmp_path
):
    """What a run of an earlier version lacks has its default."""
    names = [f"fedavg {setting}={value}" for value in values] or ["fedavg"]
    for seed, changed in enumerate(sections):
        folder = write(tmp_path / str(seed), {seed: (1, 2, 3)})
        saved = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(saved | changed))
    ((block,), _) = blocks_of(tmp_path)
    assert [row.name for row in block.rows] == names
    assert [list(row.seeds) for row in block.rows] == [[0, 1], [2]][: len(names)]


def test_runs_on_different_federations_are_not_compared(pair, tmp_path, capsys):
    write(tmp_path / "other", SCORES["fedavg"], partition={"name": "dirichlet", "alpha": 0.1})
    out = call(capsys, pair, tmp_path / "other")
    assert "these runs use 2 different data partitions; each is compared separately" in out
    assert "== toy, IID, 3 clients ==" in out and "== toy, Dir(0.1), 3 clients ==" in out
    rows = list(csv.DictReader(io.StringIO(call(capsys, pair, tmp_path / "other", "--format=csv"))))
    assert [row["difference n"] for row in rows] == ["", "3", ""]
    assert rows[2]["federation"] == "toy, dirichlet, 3 clients; partition.name=dirichlet"
    write(tmp_path / "augmented", SCORES["fedprox"], data={"augment": "flip"})
    assert len(blocks_of(pair, tmp_path / "augmented")[0]) == 1  # the same clients and test rows


def test_names_of_a_user_and_the_order_of_a_sweep(pair, capsys):
    write(pair / "draws", {0: (1, 2, 3)}, method="moon")
    cells = {name: {"method": "", "grid": {}, "config": config()} for name in ("b", "a")}
    (pair / "sweep.json").write_text(json.dumps({"cells": cells}))
    named = [pair, "--names=fedavg=Base,fedprox=Ours,toy=Toys,iid=Equal"]
    lines = call(capsys, *named).splitlines()
    assert "== Toys, Equal, 3 clients ==" in lines
    first = next(i for i, line in enumerate(lines) if line.startswith("---"))
    assert [line.split()[0] for line in lines[first + 1 : first + 3]] == ["Ours", "Base"]
    assert "Ours" in call(capsys, *named, "--format=html")
    rows = list(csv.DictReader(io.StringIO(call(capsys, *named, "--format=csv"))))
    assert [row["row"] for row in rows] == ["fedprox", "fedavg"]
    assert "is not NAME=TITLE" in refusal(capsys, pair, "--names=fedavg")
    assert "did you mean 'fedprox'?" in refusal(capsys, pair, "--names=fedprx=Ours")
    for names in ("fedprox=FedAvg", "fedavg=Ours,fedprox=Ours"):
        for more in ("--format=html", "--pivot"):
            said = refusal(capsys, pair, f"--names={names}", more)
            assert "'fedprox' and 'fedavg' are both called" in said


def test_the_heading_of_a_block_has_the_settings_in_which_blocks_differ(pair, tmp_path, capsys):
    other = write(tmp_path / "other", SCORES["fedavg"], data={"name": "mnist"})
    changed = {"model": {"name": "large"}, "local": {"lr": 0.3}}
    saved = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(saved | changed))
    lines = call(capsys, pair, other).splitlines()
    headings = [line for line in lines if line.startswith("==")]
    assert headings == [
        "== toy, IID, 3 clients; local.lr=0.1 model.name=mlp ==",
        "== MNIST, IID, 3 clients; local.lr=0.3 model.name=large ==",
    ]
    latex = call(capsys, pair, other, "--format=latex")
    assert r"\caption{MNIST, IID, 3 clients; local.lr=0.3 model.name=large: accuracy" in latex
    caption = call(capsys, pair, other, "--pivot")
    assert "MNIST, IID, 3 clients: local.lr=0.3 model.name=large." in caption


def test_an_interval_of_a_percentage_stays_within_0_and_100(tmp_path, capsys):
    write(tmp_path / "a", {0: (0, 0, 99.0), 1: (0, 0, 90.0)})
    (spread,) = (entry.measures["accuracy.mean"] for entry in entries_of(tmp_path).values())
    low, high = stats.t.interval(0.95, 1, 94.5, stats.sem([99.0, 90.0]))
    assert high > 100 and (spread.low, spread.high) == (pytest.approx(low), 100.0)
    assert f"{low:.2f} to 100.00" in call(capsys, tmp_path)


def test_only_shared_seeds_are_paired(pair, tmp_path, capsys):
    write(tmp_path / "c", {1: (1, 2, 73), 5: (1, 2, 3)}, method="moon")
    out = call(capsys, pair, tmp_path / "c")
    assert "only shared seeds are paired: 0, 1, 2 (2 rows); 1, 5 (1 row)" in out
    (line,) = (line.split() for line in out.splitlines() if re.match(r"MOON +1 +2.00", line))
    assert line[3:] == ["-"] * 5  # undefined for a single seed
    write(tmp_path / "again", {2: (1, 2, 3)})
    assert "both hold seed 2 of fedavg" in refusal(capsys, pair, tmp_path / "again")
    assert runs.find([pair, pair / "a"]) == [pair / "a", pair / "b"]  # each folder once


def test_an_unfinished_run_ends_with_its_last_complete_evaluation(pair, tmp_path, capsys):
    half = json.dumps(evaluation(0, 15, 99.0, 2))
    scores = {0: (50, 60), 1: (51, 61)}
    write(tmp_path / "c", scores, done=False, cut=half + '\n{"round": 15, "se', method="moon")
    out = call(capsys, pair, tmp_path / "c")
    assert "c: unfinished; its numbers end with round 10" in out
    ((block,), _) = blocks_of(pair, tmp_path / "c")
    assert [r["round"] for r in block.rows[-1].seeds[0]] == [5, 10]  # 15 lacks seed 1
    started = write(tmp_path / "d", {0: ()}, done=False, method="fedbn")
    (started / "metrics.jsonl").unlink()
    assert "d: left out, because it has not been evaluated yet" in call(capsys, pair, started)
    assert "nothing to compare" in refusal(capsys, started)
    (pair / "a/summary.json").write_text('{"diverged": {"round": 16, "seed": 0}}')
    assert "a: diverged; its numbers end with round 15" in call(capsys, pair)


def test_a_stage_without_scores_has_no_numbers(pair, capsys):
    run = write(pair / "c", {0: (1,)}, done=False, method="client2vec")
    bare = {"round": 1, "seed": 0, "stage": "index", "train_loss": 1.0}
    write_rows(run, [bare | {"bytes_up": 0, "bytes_down": 0, "seconds": 1.0}])
    out = call(capsys, pair, "--target=50")
    assert len(re.findall(r"^Client2Vec +0( +-)+$", out, re.MULTILINE)) == 2  # numbers, pairs
    assert "<title>" in call(capsys, pair, "--target=50", "--format=html")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "no folder is given"),
        (["nowhere"], "does not exist"),
        (["sweep/a/config.json"], "is not a folder"),
        (["sweep", "--baseline=fedprx"], "did you mean 'fedprox'?"),
        (["sweep", "--measure=worst10"], "did you mean 'accuracy.worst10'?"),
        (["sweep", "--way=best_by_validation"], "no run supports --way=best_by_validation"),
        (["sweep", "--out=empty"], "cannot write"),
        (["short"], "lacks bytes_down, bytes_up, seconds"),
    ],
)
def test_bad_input_is_a_one_line_error(arguments, message, pair, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_rows(write(tmp_path / "short", {0: ()}), [{"round": 1, "seed": 0}])
    assert message in refusal(capsys, *arguments)


def test_a_config_that_is_not_of_a_run_is_rejected(tmp_path, capsys):
    wrong = json.dumps(config() | {"method": {"mu": 1}})
    for content in ("", "[]", "{}", '{"seeds": [0]}', wrong):
        (tmp_path / "config.json").write_text(content)
        assert str(tmp_path) in refusal(capsys, tmp_path)


def test_a_baseline_may_be_named_by_its_method(pair, capsys):
    write(pair / "c", SCORES["fedprox"], method="fedprox", mu=0.5)
    for name in ("fedprox mu=0.5", "FedProx mu=0.5"):
        assert "row minus FedProx mu=0.5" in call(capsys, pair, f"--baseline={name}")
    assert "could be 'fedprox mu=0.01' or 'fedprox mu=0.5'" in refusal(
        capsys, pair, "--baseline=fedprox"
    )
    write(pair / "d", SCORES["fedavg"], method="moon")
    ((block,), _) = blocks_of(pair)
    assert compare.find_baseline([block], "moon") == ["moon"]


def test_csv_parses_and_is_exact(pair, capsys):
    text = call(capsys, pair, "--format=csv", "--target=74", "--ddof=0")
    rows = list(csv.DictReader(io.StringIO(text)))
    a, b = (np.array([s[-1] for s in SCORES[name].values()], float) for name in SCORES)
    assert [row["row"] for row in rows] == ["fedavg", "fedprox"]
    assert float(rows[1]["std"]) == b.std() and float(rows[1]["difference mean"]) == (b - a).mean()
    assert rows[1]["p t"] and not rows[0]["p t"]
    assert rows[0]["rounds to target"] == "" and rows[0]["reached"] == "1"
    assert float(rows[0]["domains.north mean"]) == (a - 1).mean()


PAGE_OF = "--format=html", "--target=60"
STRANGE = "a_b & 50% <script>alert('x')</script> #1 {c} \\d~^|` $\\oops$"


def strange_rows(tmp_path):
    write(tmp_path / "a", SCORES["fedavg"])
    write(tmp_path / "b", SCORES["fedprox"], method="fedprox", note=STRANGE)
    return write(tmp_path / "c", SCORES["fedprox"], method="fedprox", note="plain\nline").parent


def test_latex_is_balanced_and_escaped(tmp_path, capsys):
    out = call(capsys, strange_rows(tmp_path), "--format=latex", "--target=60")
    assert out.count(r"\begin{tabular}") == out.count(r"\end{tabular}") == 4
    body = "\n".join(line for line in out.splitlines() if not line.startswith("%"))
    letters = r"\\text(backslash|asciitilde|asciicircum|less|greater|bar){}|\\[&%$#_{}]|\$\\pm\$"
    plain = re.sub(letters, "", body.replace(formats.FIT, "{"))
    assert plain.count("{") == plain.count("}") and not set("%#_~^<>|$") & set(plain)
    parts = re.findall(r"\\begin{tabular}{(lr+)}(.*?)\\end", plain, re.DOTALL)
    assert len(parts) == 4
    for columns, lines in parts:
        rows = [line for line in lines.split("\n") if line.endswith(r"\\")]
        assert len(rows) >= 3 and {row.count("&") for row in rows} == {len(columns) - 1}


def test_the_best_mean_of_each_column_is_bold(tmp_path, capsys):
    """Settings for tables like published ones: population deviations, and every domain."""
    for name, scores in {"fedavg": (80.0, 84.0), "local": (81.0, 83.0)}.items():
        rows = [
            evaluation(seed, 5, a, 2) | {"domains": {"a": a, "b": 90.0 - (name == "local")}}
            for seed, a in enumerate(scores)
        ]
        write_rows(write(tmp_path / name, {0: [0.0], 1: [0.0]}, method=name), rows)
    arguments = tmp_path, "--way=last", "--ddof=0", "--bold"
    lines = call(capsys, *arguments, "--format=markdown").splitlines()
    i = lines.index("|  | a | b |")
    assert lines[i + 2] == "| `FedAvg` | **82.00 +- 2.00** | **90.00 +- 0.00** |"
    assert (
        lines[i + 3] == "| `Local training` | **82.00 +- 1.00** | 89.00 +- 0.00 |"
    )  # equally good
    latex = call(capsys, *arguments, "--format=latex")
    assert r"Local training & \textbf{82.00 $\pm$ 1.00} & 89.00 $\pm$ 0.00 \\" in latex
    assert "**" not in call(capsys, *arguments)
    page = call(capsys, *arguments, "--format=html")
    assert "<td><strong>82.00 ± 1.00</strong></td><td>89.00 ± 0.00</td>" in page
    assert "**" not in call(capsys, *arguments[:-1], "--format=markdown")


def test_rows_of_a_markdown_table_have_equally_many_cells(tmp_path, capsys):
    out = call(capsys, strange_rows(tmp_path), "--format=markdown")
    for table in re.findall(r"(?:^\|.*\n)+", out, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert "<script>" not in re.sub("`[^`]*`", "", out)


class Page(HTMLParser):
    """Checks that tags are closed in order; collects what a browser would fetch or run."""

    VOID = {"meta", "br", "link", "img"}

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.text = [], [], [], [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_html_page_is_well_formed_and_self_contained(tmp_path, capsys):
    assert call(capsys, strange_rows(tmp_path), *PAGE_OF, f"--out={tmp_path / 'page.html'}") == ""
    out = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(out)
    assert not page.open and out.startswith('<!doctype html>\n<html lang="en">')
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert not any(name == "src" or name.startswith("on") for name, _ in page.attributes)
    assert not re.search(r"https?://|@import|url\((?!#)", out)
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert all(value.startswith("#") and value[1:] in page.ids for value in links)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 3 + 3 + 1 + 2  # keys, curves, clients, domains
    assert STRANGE in page.text and "1 x <cpu>" in page.text and "<title>" in out
    for color in (plots.INK, plots.GRID, *plots.COLORS):
        assert color not in re.sub("<style>.*?</style>", "", out, count=1, flags=re.DOTALL)
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", out))
    assert all(f"{name}:" in out for name in used)
    assert "seconds of training" in page.text  # figures hold text, not outlines
    assert len({tuple(plots.look(i).values()) for i in range(28)}) == 28  # no two curves are alike


def test_the_page_has_the_values_of_its_curves(pair, tmp_path, capsys):
    """In an order that the pointer finds: near the place of each point in the picture."""
    write(pair / "c", {0: (1, 2, 3)}, method="fedprox", note="</script>", mu=1.0)
    page = call(capsys, pair, "--format=html")
    scripts = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert len(scripts) == 3 + 1 + 2  # curves, clients, domains
    rounds, megabytes, seconds, *_, south = map(json.loads, scripts)
    assert [text for *_, text in rounds[:3]] == [
        "FedAvg, round 5: 50.33 (49.00 to 52.00)",
        "FedAvg, round 10: 63.00 (60.00 to 66.00)",
        "FedAvg, round 15: 72.00 (70.00 to 75.00)",
    ]
    assert rounds[-1][2].endswith("note=</script>, round 15: 3.00")
    assert megabytes[0][2].startswith("FedAvg, 5 MB: ") and ", 10 s: " in seconds[0][2]
    assert [text for *_, text in south[:2]] == ["FedAvg: 71.00", "FedAvg: 72.00"]
    x, y = np.array([point[:2] for point in rounds]).T
    assert x[0] < x[1] < x[2] and y[0] > y[1] > y[2]  # from the left, and from the top
    assert ((0 < x) & (x < 1) & (0 < y) & (y < 1)).all()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_of_the_page_sorts_rows_and_finds_points():
    cells = {"numbers": ["71.5 ± 2.00", "–", "−3.0", "<0.001", "inf (1e-05)"]}
    cells["words"] = ["moon", "FedAvg", "fedprox mu=0.1"]
    script = Path(page.__file__).with_name("page.js").read_text(encoding="utf-8")
    script += f"""
    const cells = {json.dumps(cells)};
    const of = (name) => [orderOf(cells[name], true), orderOf(cells[name], false)];
    const points = [[0.5, 0.5, "middle"], [0.9, 0.1, "corner"]];
    const near = (x, y) => nearestOf(points, x, y, 100, 200, 40);
    console.log(JSON.stringify([of("numbers"), of("words"), near(88, 30), near(0, 0)]));
    """
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    numbers, words, corner, far = json.loads(done.stdout)
    assert numbers == [[4, 0, 3, 2, 1], [2, 3, 0, 4, 1]]  # what has no number comes last
    assert words == [[0, 2, 1], [1, 2, 0]]
    assert corner == [0.9, 0.1, "corner"] and far is None


def test_curves_have_the_evaluations_that_all_seeds_have(tmp_path):
    write(tmp_path / "a", {0: (50, 60, 70)})
    write(tmp_path / "b", {1: (52, 64)}, done=False)
    ((block,), _) = blocks_of(tmp_path)
    (row,) = block.rows
    got = runs.curve(row, "accuracy.mean")
    np.testing.assert_array_equal(got["rounds"], [5, 10])
    np.testing.assert_array_equal(got["values"], [[50, 60], [52, 64]])
    assert runs.per_client(row, "last", "accuracy.mean") == [60, 70, 80, 54, 64, 74]
    assert tables.MEASURES.keys() >= set(HEADLINES[:4])


def test_runs_of_another_task_are_listed_with_their_measure(tmp_path, capsys):
    write(tmp_path / "a", {0: (50, 60)})
    write(tmp_path / "b", {0: (50, 60)}, partition={"num_clients": 7})
    rows = rows_of(tmp_path / "b")
    for row in rows:
        row["rmse"] = row.pop("accuracy")
        for form in ("domains", "global", "id", "ood"):
            row.pop(form, None)
    write_rows(tmp_path / "b", rows)
    out = call(capsys, tmp_path)
    assert "no run has accuracy.mean; compare its runs with --measure=rmse.mean" in out
    assert "rmse.mean (lower is better), last round" in call(capsys, tmp_path / "b")


def with_metrics(folder, losses, method, brier=None):
    """Writes the folder of a run; `losses` has the loss of each seed in the last evaluation."""
    write(folder, {seed: (50, 60) for seed in losses}, method=method)
    rows = rows_of(folder)
    for row in rows:
        loss = losses[row["seed"]] + (row["round"] == ROUNDS[0])
        row["loss"] = {"mean": loss, "worst10": 2 * loss, "per_client": [loss, None, loss]}
        row |= {"global_loss": None, "domains_loss": {"north": loss}, "global_top5": 90.0}
        row |= {"brier": {"mean": loss / 8, "per_client": [loss / 8] * 3}} if brier else {}
    write_rows(folder, rows)
    if brier:
        (folder / "summary.json").write_text(json.dumps({"lower_is_better": ["loss", "brier"]}))


@pytest.fixture
def losses(tmp_path):
    with_metrics(tmp_path / "a", {0: 0.5, 1: 0.7}, "fedavg", brier=True)
    with_metrics(tmp_path / "b", {0: 0.25, 1: 0.35}, "fedprox")
    return tmp_path


def test_a_loss_is_compared_and_lower_is_better(losses, capsys):
    out = call(capsys, losses, "--measure=loss.mean", "--bold", "--format=markdown", "--target=0.4")
    assert "loss.mean (lower is better)" in out and "loss, last round" in out
    assert re.search(r"FedProx.*\| \*\*0.3000 \+- 0.0707\*\*", out)
    assert re.search(r"FedAvg.*\| 0.6000 \+- 0.1414 ", out)
    assert re.search(r"FedAvg.*\| 0 of 2 \|", out) and re.search(r"FedProx.*\| 2 of 2 \| 10 ", out)
    assert "until loss.mean is 0.4 in the last stage" in out
    assert "accuracy.mean, %" in out  # among the other metrics
    page = call(capsys, losses, "--measure=loss.mean", "--format=html")
    assert "<h1>FedAvg and FedProx on toy, IID, 3 clients</h1>" in page
    assert "Loss, %" not in page and 'aria-label="loss on north by row, last round"' in page


@pytest.mark.parametrize(
    "measure, words",
    [
        ("accuracy.mean", "accuracy, %, mean over clients"),
        ("global", "accuracy, %, global test set"),
        ("domains.north", "accuracy, %, north"),
        ("rmse.worst10", "RMSE, worst 10 % of clients"),
        ("ood_macro_f1", "macro F1, %, unseen domain (ood)"),
        ("brier.mean", "brier, mean over clients"),
        ("accuracy.gini", "gini over clients of the accuracy"),
    ],
)
def test_a_measure_is_described_in_words(measure, words):
    assert tables.described(measure) == words
    label = words.removesuffix(", mean over clients")
    assert tables.axis_label(measure) == label


def test_other_metrics_are_listed_besides_the_accuracy(losses, capsys):
    out = call(capsys, losses, "--bold", "--format=markdown")
    assert "accuracies in percent, last round" in out
    header = next(line for line in out.splitlines() if "loss.mean" in line)
    cells = [cell.strip() for cell in header.split("|")]
    assert cells[2:5] == ["loss.mean", r"global\_top5, %", "brier.mean"]  # a null is left out
    assert re.search(r"`FedAvg` \| 0.6000 \+- 0.1414 \| \*\*90.00 \+- 0.00\*\* \| \*\*0.0750", out)
    blocks, _ = blocks_of(losses)
    assert runs.lower_is_better(blocks) == {"brier", *LOWER_IS_BETTER}
    of_clients = runs.per_client(blocks[0].rows[0], "last", "brier.mean")
    assert of_clients == pytest.approx([0.0625] * 3 + [0.0875] * 3)
    summary = {**metric_rows.summarize(rows_of(losses / "a"), [0, 1]), "seeds": [0, 1]}
    assert summary["last"]["mean"]["global_loss"] is None
    assert summary["max_over_rounds"]["mean"]["loss"] == {"mean": 0.6, "worst10": 1.2}
    table = report.closing_table(summary)
    assert re.search(r"^loss.mean +0.6000 \+- 0.1414", table, re.MULTILINE)
    assert re.search(r"^global_top5, % +90.00 \+- 0.00", table, re.MULTILINE)
    assert "global_loss" not in table


def test_epsilon_is_listed_with_the_accuracy(tmp_path, capsys):
    for method, epsilons in (("fedavg", (1, 2.5)), ("fedprox", (1, None)), ("scaffold", ())):
        folder = write(tmp_path / method, {0: (50, 60)}, method=method)
        rows = rows_of(folder)
        for row, epsilon in zip(rows, epsilons, strict=False):
            row |= {"epsilon": epsilon} | ({"delta": 1e-5} if epsilon else {})
        write_rows(folder, rows)
    for form in ("terminal", "markdown", "latex", "csv", "html"):
        out = call(capsys, tmp_path, f"--format={form}")
        assert ("2.5,1e-05" if form == "csv" else "2.5 (1e-05)") in out and "inf" in out
        assert "epsilon.mean" not in out  # it is not a measure
    assert "FedProx has epsilon (delta) inf" in call(capsys, tmp_path, "--pivot")


def test_clients_with_names_have_a_table_and_are_named_in_the_page(capsys, tmp_path):
    folder = write(tmp_path / "a", {0: (50, 60, 70), 1: (52, 62, 72)})
    named = {"names": ["Berlin", "Oslo", "Rome"], "examples": [1, 2, 3]}
    known = {"domains": ["north", "south"], "clients": {"0": named, "1": named}}
    (folder / "names.json").write_text(json.dumps(known))
    lines = call(capsys, tmp_path).splitlines()
    at = lines.index("accuracy, %, by client, last round")
    assert lines[at + 1].split() == ["Berlin", "Oslo", "Rome"]
    assert "61.00 +- 1.41" in lines[at + 3]
    assert "FedAvg, client Oslo: 70.00" in call(capsys, tmp_path, "--format=html")


def test_clients_with_the_names_of_domains_have_no_table_of_their_own(capsys, tmp_path):
    folder = write(tmp_path / "a", {0: (50, 60, 70)})
    named = {"names": ["north", "south", "south"], "examples": [1, 2, 3]}
    known = {"domains": ["north", "south"], "clients": {"0": named}}
    (folder / "names.json").write_text(json.dumps(known))
    assert "by client" not in call(capsys, tmp_path)


def sentence_of(capsys, *arguments):
    return call(capsys, *arguments).splitlines()[0]


def test_a_report_begins_with_its_result(tmp_path, capsys):
    shifts = {"fedavg": (0, 0, 0), "fedprox": (-2, 3, 1)}
    shifts |= {"ditto": (4.9, 5, 5.1), "moon": (-8.4, -8, -7.6)}
    for method, of_seeds in shifts.items():
        scores = {seed: (0, 0, 70 + shift) for seed, shift in enumerate(of_seeds)}
        write(tmp_path / method, scores, method=method)
    none = "No difference from FedAvg is significant after Holm's correction for 1 comparison."
    assert sentence_of(capsys, tmp_path / "fedavg", tmp_path / "fedprox") == none
    assert sentence_of(capsys, tmp_path) == (
        "Significantly better than FedAvg: Ditto by 5.00 (p < 0.001); worse than FedAvg: MOON by"
        " 8.00 (p = 0.002); accuracy, %, mean over clients, after Holm's correction for 3"
        " comparisons."
    )
    page = call(capsys, tmp_path, "--format=html")
    assert '<p class="result">Significantly better than FedAvg: Ditto by 5.00 (p &lt; 0.0' in page
    assert "<h1>Ditto, FedAvg, FedProx and MOON on toy, IID, 3 clients</h1>" in page


def test_the_result_of_runs_that_cannot_be_tested(tmp_path, capsys):
    write(tmp_path / "a", {0: (50, 60, 70), 1: (50, 60, 72)})
    one = "FedAvg, accuracy, %, mean over clients: 71.00 +- 1.41 over 2 seeds."
    assert sentence_of(capsys, tmp_path) == one
    write(tmp_path / "b", {1: (50, 60, 74)}, method="fedprox")
    shared = "No difference from FedAvg can be tested: a test needs two shared seeds."
    assert sentence_of(capsys, tmp_path) == shared
    write(tmp_path / "same" / "a", {0: (50, 60, 70), 1: (50, 60, 72)})
    write(tmp_path / "same" / "b", {0: (50, 60, 71), 1: (50, 60, 73)}, method="fedprox")
    same = "No difference from FedAvg can be tested: it is the same for all seeds."
    assert sentence_of(capsys, tmp_path / "same") == same
    write(tmp_path / "c", {0: (50, 60, 75)}, method="moon")
    assert sentence_of(capsys, tmp_path / "b", tmp_path / "c") == (
        "The best mean is that of MOON, accuracy, %, mean over clients: 75.00 over 1 seed;"
        " without a baseline it is untested."
    )


def test_a_loss_that_falls_is_better(tmp_path, capsys):
    for method, shift in (("fedavg", 0.0), ("fedprox", -0.5)):
        losses = {seed: 1 + 0.1 * seed + shift * (1 + 0.01 * seed) for seed in range(4)}
        with_metrics(tmp_path / method, losses, method)
    told = sentence_of(capsys, tmp_path, "--measure=loss.mean")
    assert told.startswith("Significantly better than FedAvg: FedProx by 0.5075 (p < 0.001)")


def test_the_result_of_a_table_of_several_federations_has_its_correction(pair, tmp_path, capsys):
    write(pair / "c", SCORES["fedavg"], data={"size": 9})
    write(pair / "d", SCORES["fedprox"], data={"size": 9}, method="fedprox")
    first, second, *_ = call(capsys, pair, "--pivot").splitlines()
    assert first.endswith("significant after Holm's correction for 2 comparisons.")
    assert first.startswith("toy size=8, IID, 3 clients: ") and second.startswith("toy size=9")
    page = call(capsys, pair, "--format=html")
    assert "<h1>FedAvg and FedProx on 2 federations</h1>" in page
    assert "for 1 comparison." in page


def test_numbers_of_clients_and_examples_and_a_key_of_the_columns(tmp_path, capsys):
    folder = write(tmp_path / "a", {0: (50, 60, 70), 1: (52, 62, 72)})
    clients = {"0": {"examples": [900, 200, 10]}, "1": {"examples": [900, 200, 30]}}
    (folder / "names.json").write_text(json.dumps({"domains": ["north"], "clients": clients}))
    told = "3 clients have 1,110 to 1,130 training examples, 10 to 900 each."
    assert f"toy, IID, 3 clients: {told}" in call(capsys, tmp_path)
    out = call(capsys, tmp_path, "--format=html")
    page = Page()
    page.feed(out)
    assert f"<p>{told}</p>" in out
    assert page.tags.count("caption") == page.tags.count("table")
    assert "<dt>global</dt>" in out and "<dt>worst 10 %</dt>" in out and "<dt>id</dt>" not in out
