"""Accuracy against megabytes: the table and the figure."""

import matplotlib.pyplot as plt
import megabytes
import numpy as np
import pytest
import toys

CURVES = {
    "none": megabytes.Curve(np.array([10.0, 20.0]), np.array([[70.0, 80.0], [72.0, 82.0]])),
    "sign": megabytes.Curve(np.array([0.4, 0.8]), np.array([[60.0, 75.0], [60.0, 75.0]])),
}


def test_the_table_has_the_final_megabytes_and_accuracy():
    table = megabytes.table("global", CURVES)
    assert table.cells == [["none", "20", "81.00 (1.00)"], ["sign", "0.8", "75.00 (0.00)"]]


def test_the_figure_shows_every_curve_on_a_logarithmic_axis():
    figure = megabytes.picture("global", CURVES)
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert axes.get_xscale() == "log" and low < 0.4 and high > 20
    texts = {t.get_text() for t in figure.findobj(plt.Text)}
    assert {"none", "sign"} <= {text.strip() for text in texts}


@pytest.mark.slow
def test_each_compression_is_a_run_with_its_settings(tmp_path, capsys):
    toys.write_examples(tmp_path / "data.npz")
    config = toys.write_config(tmp_path, run={"rounds": 4, "eval_every": 2})
    names = "--compressions=none qsgd:bits=2"
    command = [f"--config={config}", f"--out={tmp_path / 'out'}", names, "--seeds=0,1"]
    assert megabytes.main(command) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    sent = [float(line.split("|")[2]) for line in lines[2:]]
    assert sent[1] < sent[0] / 4
    assert (tmp_path / "out" / "megabytes.png").exists()
