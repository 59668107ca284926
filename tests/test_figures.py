"""The command that draws figures from finished runs: its arguments and its output files."""

import json

import numpy as np
import pytest

from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.commands import figures
from fedjax_lab.running import plots

REFUSED = {
    "": "no figures are given",
    "hfed {run}": "no figures 'hfed'; did you mean 'hfedf'?",
    "hfedf": "no folder is given; use `fedjax-lab figures hfedf FOLDER`",
    "fedpick {run} {run}": "`figures fedpick` accepts only one folder of a run, got 2",
    "fedpick {run} --sed=1": "unexpected argument '--sed=1'; did you mean '--seed'?",
    "fedpick {run} --seed=one": "argument --seed: invalid int value: 'one'",
    "fedconcat {run} --seed=1": "unexpected argument '--seed=1'",
    "fedpick {run}/nothing": "nothing does not exist",
    "fedc2i {run} --rounds=1,b": "holds no influence of seed",
    "hfedf {run}": "holds no finished run",
    "curves {run}": "holds no run: there is no config.json in it",
    "curves {run} --format=png,pfd": "--format: no format 'pfd'; did you mean 'pdf'?",
    "client2vec {run} {run}": "several folders have the name",
    "domain_gap {run}": "holds no finished run",
    "encoder_exchange {run}": "holds no finished run",
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_a_one_line_error(words, tmp_path, capsys):
    assert figures.main(words.format(run=tmp_path).split()) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and err.count("\n") == 1
    assert REFUSED[words] in err
    assert not any(tmp_path.iterdir())


def test_the_help_of_figures_lists_all_their_options(capsys):
    assert figures.main(["--help"]) == 0
    names = capsys.readouterr().out
    for name, figure in figures.FIGURES.items():
        assert f"\n{name} " in names
        assert figures.main([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"python -m fedjax_lab.figures {name} FOLDER" in text
        assert all(f"--{option}" in text for option in figures.options_of(figure))


def draw(*folders, seed: int | None = None, domain: str = ""):
    figure = plots.draw_strips({"a": np.ones(3)}, "x", "title")
    (folder,) = folders
    return Drawn({"strip": figure}, {"of": folder.name, "seed": seed}, "three lines")


def test_options_reach_the_figures_and_results_are_written_reproducibly(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(figures.FIGURES, "toy", draw)
    assert figures.main(["toy", str(tmp_path), "--seed=3"]) == 0
    out = tmp_path / "figures"
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["three lines", f"{out / 'numbers.json'}", f"{out / 'strip.png'}"]
    numbers = json.loads((out / "numbers.json").read_text())
    assert numbers == {"of": tmp_path.name, "seed": 3}
    assert (out / "strip.png").stat().st_size > 1000
    written = []
    for out in (tmp_path / "a", tmp_path / "b"):
        assert figures.main(["toy", str(tmp_path), f"--out={out}", "--format=pdf,svg,pdf"]) == 0
        written.append([(out / f"strip.{ending}").read_bytes() for ending in ("pdf", "svg")])
        assert not (out / "strip.png").exists()
    assert written[0] == written[1]
    pdf, svg = written[0]
    assert pdf.startswith(b"%PDF-") and b"/Type3" not in pdf and b"/FontFile2" in pdf  # TrueType
    assert b"<svg" in svg and b">title</text>" in svg
