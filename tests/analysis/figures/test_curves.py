"""Figures of learning curves: their lines, and the runs that the lines show."""

import numpy as np
from run_folders import ROUNDS, SCORES, write

from fedjax_lab.analysis.figures import curves
from fedjax_lab.commands import figures


def lines_of(figure):
    return [line.get_xydata() for line in figure.axes[0].lines]


def test_each_row_of_the_report_is_a_line_averaged_over_seeds(tmp_path):
    write(tmp_path / "a", SCORES["fedavg"])
    write(tmp_path / "b", SCORES["fedprox"], method="fedprox", done=False)
    drawn = curves.draw(tmp_path)
    assert list(drawn.pictures) == ["rounds", "megabytes", "seconds"]
    assert "unfinished" in drawn.text
    for figure, scale in zip(drawn.pictures.values(), (1, 1, 2), strict=True):
        x = scale * np.array(ROUNDS)
        first, second = lines_of(figure)
        np.testing.assert_allclose(first, np.c_[x, np.mean(list(SCORES["fedavg"].values()), 0)])
        np.testing.assert_allclose(second, np.c_[x, np.mean(list(SCORES["fedprox"].values()), 0)])
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["FedAvg", "FedProx"]
    axes = drawn.pictures["rounds"].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Round", "Accuracy, %")
    assert axes.get_title() == "toy, IID, 3 clients"
    half = curves.draw(tmp_path, measure="global").pictures["rounds"]
    np.testing.assert_allclose(lines_of(half)[0][:, 1] * 2, lines_of(figure)[0][:, 1])


def test_federations_have_separate_pictures_and_a_run_has_a_learning_curve(tmp_path, capsys):
    write(tmp_path / "a", SCORES["fedavg"])
    assert figures.main(["curves", str(tmp_path / "a"), "--format=svg"]) == 0
    names = {path.name for path in (tmp_path / "a/figures").iterdir()}
    assert names == {"rounds.svg", "megabytes.svg", "seconds.svg", "learning_curve.svg"}
    write(tmp_path / "b", SCORES["fedprox"], partition={"name": "dirichlet"})
    drawn = curves.draw(tmp_path)
    assert list(drawn.pictures)[:2] == ["rounds-1", "megabytes-1"] and len(drawn.pictures) == 6
    assert drawn.text.endswith("2: toy, Dir(alpha), 3 clients")
    capsys.readouterr()
    assert figures.main(["curves", str(tmp_path), "--measure=globl"]) == 2
    assert "did you mean 'global'?" in capsys.readouterr().err
