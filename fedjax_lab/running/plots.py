"""Draws the pictures of runs and comparisons in one style.

Colors are Okabe and Ito's (2008), which color-blind people can distinguish, without yellow, which
is hard to see on paper. Lines also differ by dash and marker, for printing in gray.
"""

import contextlib
import io
import itertools
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.data import writing
from fedjax_lab.errors import printable
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation.units import in_words, measure_of, metric_of, sentence

# If there is no such backend, matplotlib cannot be imported; pictures in files need none.
_backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
import matplotlib  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

if _backend:
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = os.environ["MPLBACKEND"] = _backend

INK, GRID = "#222222", "#cccccc"
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
CONTRAST = (COLORS[0], COLORS[4])  # two colors for areas that also differ in gray
DASHES = ("-", "--", ":", "-.")
MARKERS = "os^Dv*P"
DOTS = 60  # up to this many values of a row are also drawn as single points
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.markersize": 4,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.8,
    "legend.fontsize": "small",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, because publishers reject Type 3 fonts
    "svg.hashsalt": "fedjax_lab",
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick")},
    **{f"axes.{part}": INK for part in ("edgecolor", "labelcolor", "titlecolor")},
}
in_style = matplotlib.rc_context(STYLE)


def plain(text: str) -> str:
    """The text without formulas, and without a leading "_", which hides a legend entry."""
    return text.replace("$", r"\$").replace("_", "\u200b_", text.startswith("_"))


def _label(text):  # of an axis
    return plain(sentence(text))


def look(i: int) -> dict:
    """Color, dash and marker of the i-th line; unique for each of the first 28 lines."""
    marker = MARKERS[(i + i // len(COLORS)) % len(MARKERS)]
    return {
        "color": COLORS[i % len(COLORS)],
        "linestyle": DASHES[i % len(DASHES)],
        "marker": marker,
    }


def _some(points):  # the interval between markers, for about 20 of them
    return max(1, len(points) // 20)


def _whole(axes):  # puts the ticks of the x axis at whole numbers
    axes.xaxis.get_major_locator().set_params(integer=True)


@in_style
def draw_curves(
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
    xlabel: str,
    ylabel: str,
    names: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draws for each (x [E], values [seeds, E]) the mean over seeds, shaded from the lowest to the
    highest seed. If there are names, a legend is added."""
    figure = Figure((6.0 if names else 4.2, 3.0), layout="constrained")
    axes = figure.subplots()
    for i, (x, values) in enumerate(curves):
        if len(x):
            _draw_curve(axes, i, x, values, linewidth=1.4)
    set_labels(axes, xlabel, ylabel, title)
    axes.set_xlim(left=-0.02 * max([1e-9, *(x.max() for x, _ in curves if len(x))]))
    if all(np.all(x == np.round(x)) for x, _ in curves):
        _whole(axes)
    shown = [name for name, (x, _) in zip(names, curves, strict=False) if len(x)]
    add_legend(figure, axes.lines, shown)
    return figure


def set_labels(axes: Any, xlabel: str, ylabel: str, title: str) -> None:
    """Sets the labels of both axes, with capital letters, and the title in several lines."""
    axes.set(xlabel=_label(xlabel), ylabel=_label(ylabel), title=_wrapped(title))


def _wrapped(title):  # in lines that fit above the narrowest pictures
    return plain("\n".join(textwrap.wrap(title, 52)))


def _draw_curve(axes, i, x, values, **line):
    axes.plot(x, values.mean(0), markevery=_some(x), **look(i), **line)
    axes.fill_between(x, values.min(0), values.max(0), alpha=0.15, color=look(i)["color"])


@in_style
def add_legend(figure: Figure, marks: Sequence, names: Sequence[str]) -> None:
    """Adds a legend on the right of the picture; marks: the artists, one for each name."""
    if names:
        lines = ["\n".join(textwrap.wrap(name, 24)) for name in names]
        figure.legend(marks, [plain(name) for name in lines], loc="outside right upper")


@in_style
def draw_strips(
    rows: dict[str, Sequence[float]], xlabel: str, title: str, box: bool = False
) -> Figure:
    """Draws the values of each row as points on one line, with the mean as a bar, or with a box of
    the quartiles and whiskers at the 5th and 95th percentiles."""
    names = [textwrap.wrap(name, 24, max_lines=3, placeholder=" …") for name in rows]
    height = max([0.28, *(0.14 * len(lines) for lines in names)])
    figure = Figure((4.2, 0.9 + height * len(rows)), layout="constrained")
    axes = figure.subplots()
    for i, values in enumerate(rows.values()):
        if len(values):
            _draw_strip(axes, i, values, box)
    axes.set_yticks(
        range(len(rows)), [plain("\n".join(lines)) for lines in names], fontsize="small"
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=_label(xlabel), title=_wrapped(title))
    return figure


def _draw_strip(axes, i, values, box):
    color = look(i)["color"]
    if box:
        parts = {f"{part}props": {"color": color} for part in ("box", "whisker", "cap")}
        parts["medianprops"] = {"color": INK, "linewidth": 1.4}
        axes.boxplot(
            [values], positions=[i], widths=0.6, whis=(5, 95), sym="", orientation="horizontal",
            manage_ticks=False, **parts,
        )  # fmt: skip
    else:
        axes.plot([np.mean(values)] * 2, [i - 0.3, i + 0.3], color=INK, linewidth=1.4)
    if len(values) <= DOTS:
        axes.plot(
            values,
            [i] * len(values),
            linestyle="none",
            color=color,
            marker=look(i)["marker"],
            markersize=4,
            alpha=0.7,
        )


class Side(NamedTuple):
    """The labels of the rows, or of the columns, of a heat map."""

    label: str
    names: Sequence | np.ndarray  # of the rows; if there are cuts, of the rows or of their groups
    cuts: Sequence[int] | np.ndarray = ()  # the first row of each group, except the first group


def draw_heat_maps(
    maps: dict[str, np.ndarray],
    label: str,
    rows: Side,
    columns: Side,
    *,
    low: float = 0.0,
    high: float | None = None,
    written: bool = False,
) -> Figure:
    """Draws heat maps with a common color scale; lines separate groups of rows or columns.

    Args:
      maps: values [R, C] by title.
      label: the label of the color scale.
      rows: the labels of the rows; names that would overlap are left out.
      columns: the labels of the columns.
      low: the lowest value of the scale.
      high: the highest value of the scale; None: the largest value.
      written: whether to write each number into its cell.
    """
    shape = next(iter(maps.values())).shape
    square, across, down = shape[0] == shape[1], min(3, len(maps)), -(-len(maps) // 3)
    width, height = _size(across, shape, field=0.5 if written else 0.2)
    beside, below = (0.08 * max(len(str(name)) for name in side.names) for side in (rows, columns))
    size = (1.3 + beside + across * (width + 0.1), 0.7 + below + down * (height + 0.3))
    figure = Figure(size, layout="compressed" if square else "constrained")
    panels = figure.subplots(down, across, squeeze=False)
    high = max(np.max(values) for values in maps.values()) if high is None else high
    for k, (axes, (title, values)) in enumerate(zip(panels.flat, maps.items(), strict=False)):
        aspect = "equal" if square else "auto"
        image = axes.imshow(values, "cividis", aspect=aspect, vmin=low, vmax=high)
        name_fields(axes.xaxis, columns, shape[1], width / shape[1], axes.axvline)
        name_fields(axes.yaxis, rows, shape[0], height / shape[0], axes.axhline)
        axes.set_title(_wrapped(title))
        _keep_outer_names(axes, at_left=k % across == 0, below=k + across >= len(maps))
        if written:
            _write_values(axes, values, (low + high) / 2)
    for axes in panels.flat:
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
    for axes in panels.flat[len(maps) :]:
        axes.set_axis_off()
    figure.colorbar(image, ax=panels, label=_label(label), aspect=8 * down * height)
    return figure


def _size(across, shape, field):
    """The inches of one of `across` maps side by side, with cells of `field` inches if they fit."""
    R, C = shape
    width = np.clip(field * C, 1.7, 6 / across)
    return width, width if R == C else np.clip(field * R, 1.7, 8)


def _keep_outer_names(axes, at_left, below):
    """Removes the names of rows and columns from all but the outer maps."""
    if not at_left:
        axes.set_ylabel("")
        axes.tick_params(labelleft=False)
    if not below:
        axes.set_xlabel("")
        axes.tick_params(labelbottom=False)


def _write_values(axes, values, middle):
    """Writes each number into its cell, in white on dark cells, whose values are below `middle`."""
    for (i, j), value in np.ndenumerate(values):
        ink = "white" if value < middle else "black"
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=ink, fontsize="small")


def name_fields(axis, side, count, inches, draw_line):
    """Labels an axis of a heat map and draws lines between its groups.

    A name stands in the middle of its row or group; names less than 0.16 inches apart are left out.

    Args:
      axis: the axis.
      side: its labels.
      count: the number of rows or columns.
      inches: the size of a row or column.
      draw_line: draws a line at a position, with the keyword arguments of matplotlib.
    """
    cuts = list(side.cuts)
    edges = [0, *cuts, count] if len(side.names) == len(cuts) + 1 else range(count + 1)
    places, names = [], []
    for (first, end), name in zip(itertools.pairwise(edges), side.names, strict=True):
        middle = (first + end - 1) / 2
        if not places or (middle - places[-1]) * inches >= 0.16:
            places.append(middle)
            names.append(plain(str(name)))
    flat = axis.axis_name == "y" or max(map(len, names)) <= 2
    axis.set_ticks(places, names, fontsize="small", rotation=0 if flat else 90)
    axis.set_label_text(_label(side.label))
    thick = min(2.4, 10 * inches * count / (len(cuts) + 1))  # thin between narrow groups
    for cut in cuts:  # two colors, to be visible on dark and on light cells
        draw_line(cut - 0.5, color="white", linewidth=thick)
        draw_line(cut - 0.5, color=INK, linewidth=thick / 3)


@in_style
def save(figure: Figure, path: Path) -> Path:
    """Saves a figure in the format of the path's extension; returns the path.

    The same figure always gives the same bytes.
    """
    dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    picture = io.BytesIO()
    form, dates_of_form = path.suffix[1:] or None, dates.get(path.suffix)
    figure.savefig(picture, dpi=150, bbox_inches="tight", format=form, metadata=dates_of_form)
    writing.replace(path, picture.getvalue())
    return path


@in_style
def draw_key(i: int) -> Figure:
    """Draws a sample of the i-th line with its marker, for a legend outside of the picture."""
    figure = Figure((0.5, 0.16))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.plot([0, 1, 2], [0, 0, 0], linewidth=1.4, markevery=[1], **look(i))
    axes.set_axis_off()
    return figure


@in_style
def svg(figure: Figure, label: str) -> str:
    """The figure as an <svg> element for an HTML page, with selectable text and the page's colors.

    Ink, grid and line colors become var(--ink), var(--grid), var(--line-0), ... The ids in it are
    unique among all pictures of this process. label: the text for screen readers.
    """
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"| version="[^"]*"', "", drawn)
    drawn = re.sub(r' (width|height)="[^"]*pt"', "", drawn, count=2)
    prefix = f"p{next(_numbers)}-"
    drawn = re.sub(r'\bid="', f'id="{prefix}', drawn)
    drawn = re.sub(r'(url\(|xlink:href=")#', rf"\1#{prefix}", drawn).replace("xlink:href", "href")
    names = {INK: "ink", GRID: "grid"} | {c: f"line-{i}" for i, c in enumerate(COLORS)}
    for color, name in names.items():
        drawn = drawn.replace(color, f"var(--{name})")
    label = printable(label).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return drawn.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


_numbers = itertools.count()


def places(figure: Figure, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where points of the first axes lie in a figure that `svg` has drawn.

    They are fractions of its width from the left and of its height from the top.
    """
    if not points:
        return []
    to_figure = figure.axes[0].transData + figure.transFigure.inverted()
    return [(float(x), float(1 - y)) for x, y in to_figure.transform(points)]


@in_style
def learning_curve(rows: list[dict], title: str) -> Figure:
    """Draws the accuracy, or the RMSE or loss, and the training loss over rounds.

    Values are means over seeds. The accuracy is also drawn for each domain, if there are several,
    and shaded from the lowest to the highest seed. rows: the rows of a metrics.jsonl.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    rounds = sorted({row["round"] for row in rows})
    for i, (name, values) in enumerate(_curves(rows).items()):
        strong = name in ("mean over clients", "global", "unseen domain")
        of_seeds, width = np.array([*values.values()]).T, 2.2 if strong else 1.2
        _draw_curve(left, i, [*values], of_seeds, linewidth=width, label=plain(name))
    metric = metric_of(metric_rows.headline_measure(rows[-1]) or "accuracy")
    left.set(xlabel="Round", ylabel=_label(in_words(metric)), title=_wrapped(title))
    if left.lines:
        left.legend()
    loss = [np.mean([row["train_loss"] for row in rows if row["round"] == r]) for r in rounds]
    right.plot(rounds, loss, marker=".", markevery=_some(rounds), color=INK)
    right.set(xlabel="Round", ylabel="Training loss", title="Loss of local training")
    for axes in (left, right):
        _whole(axes)
    return figure


_FORMS = {
    "global": "global",
    "ood": "unseen domain",
    "new": "new clients",
    "new_tuned": "new clients, tuned",
}


def _curves(rows):
    """The curves of the headline metric as {name: {round: [value per seed]}}."""
    curves = {}
    for row in rows:
        metric = metric_of(metric_rows.headline_measure(row) or "accuracy")
        points = dict(row.get(measure_of(metric, "domains"), {}))
        if metric in row:
            points["mean over clients"] = row[metric]["mean"]
        forms = {measure_of(metric, form): name for form, name in _FORMS.items()}
        points |= {name: row[key] for key, name in forms.items() if key in row}
        if not points and (measure := metric_rows.validation_measure(row)):
            points["validation"] = row[measure]
        for name, value in points.items():
            curves.setdefault(name, {}).setdefault(row["round"], []).append(value)
    return curves
