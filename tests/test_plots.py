"""Checks pictures: labels, values and legends; a run's results do not depend on them."""

import re

import numpy as np
import pytest
from children import run
from PIL import Image

from fedjax_lab.running import plots


def text_by_position(labels):
    return {label.get_position(): label.get_text() for label in labels}


def test_a_heat_map_labels_its_rows_and_columns():
    values = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.9]])
    rows, columns = plots.Side("client", [7, 5]), plots.Side("class", ["a", "_b", "c"])
    figure = plots.draw_heat_maps({"": values}, "share", rows, columns, high=1, written=True)
    axes, bar = figure.axes
    assert text_by_position(axes.get_yticklabels()) == {(0, 0): "7", (0, 1): "5"}
    shown = {(i, 0): text for i, text in enumerate(["a", "\u200b_b", "c"])}
    assert text_by_position(axes.get_xticklabels()) == shown
    assert (axes.get_ylabel(), axes.get_xlabel(), bar.get_ylabel()) == ("Client", "Class", "Share")
    assert axes.images[0].get_clim() == (0, 1)
    written = {text.get_position(): (text.get_text(), text.get_color()) for text in axes.texts}
    assert len(written) == 6
    assert written[2, 0] == ("0.30", "white") and written[2, 1] == ("0.90", "black")


def test_groups_are_labeled_once_and_separated_by_lines():
    """With three clients of `a` and one of `b`, labels are in the middle and a line between."""
    side = plots.Side("by domain", ["a", "b"], [3])
    figure = plots.draw_heat_maps({"": np.eye(4)}, "cosine", side, side)
    axes = figure.axes[0]
    assert text_by_position(axes.get_yticklabels()) == {(0, 1): "a", (0, 3): "b"}
    assert {tuple(line.get_ydata()) for line in axes.lines} == {(2.5, 2.5), (0, 1)}
    each = plots.draw_heat_maps({"": np.eye(4)}, "", plots.Side("", range(4), [3]), side)
    assert [label.get_text() for label in each.axes[0].get_yticklabels()] == list("0123")


def test_heat_maps_share_a_color_scale_and_have_outer_labels():
    maps = {f"round {i}": np.full((2, 3), float(i)) for i in range(5)}
    figure = plots.draw_heat_maps(maps, "", plots.Side("on", "ab"), plots.Side("of", "xyz"))
    panels = figure.axes[:5]
    assert [axes.get_title() for axes in panels] == list(maps)
    assert {axes.images[0].get_clim() for axes in panels} == {(0, 4)}
    assert [axes.get_ylabel() for axes in panels] == ["On", "", "", "On", ""]
    assert [axes.get_xlabel() for axes in panels] == ["", "", "Of", "Of", "Of"]


def test_a_legend_leaves_out_curves_without_points(tmp_path):
    some, none = (np.arange(3), np.ones((2, 3))), (np.zeros(0), np.zeros((0, 0)))
    figure = plots.draw_curves([some, none, some], "round", "accuracy, %", ["a", "b", "_c"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "\u200b_c"]
    colors = [line.get_color() for line in legend.get_lines()]
    assert colors == [plots.COLORS[0], plots.COLORS[2]]
    assert not plots.draw_curves([some], "round", "accuracy, %").legends
    path = plots.save(figure, tmp_path / "curves.png")
    width, height = Image.open(path).size
    assert 700 < width < 1000 and 350 < height < 500


def test_places_are_those_of_the_markers_in_an_svg():
    x, values = np.array([0.0, 5.0, 20.0]), np.array([[10.0, 30.0, 20.0]])
    figure = plots.draw_curves([(x, values)], "round", "accuracy, %", title="a title")
    drawn = plots.svg(figure, "")
    _, _, width, height = map(float, re.search(r'viewBox="([^"]*)"', drawn)[1].split())
    markers = re.findall(r'<use href="[^"]*" x="([\d.]+)" y="([\d.]+)" style="fill', drawn)
    at = [(float(a) / width, float(b) / height) for a, b in markers]
    places = np.array(plots.places(figure, list(zip(x, values[0], strict=True))))
    for place in places:
        assert np.abs(np.array(at) - place).max(1).min() < 0.002
    assert plots.places(figure, []) == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["nonsense", "svg"])
def test_an_unknown_backend_of_matplotlib_is_ignored(backend):
    code = "from fedjax_lab.running import plots"
    code += "; plots.draw_key(0)"
    code += "; import os, matplotlib; print(matplotlib.rcParams._get_backend_or_none() == 'svg')"
    done = run(code, MPLBACKEND=backend)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(backend == "svg")
