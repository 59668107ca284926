"""Learning curves of runs, finished or not: against rounds, megabytes and seconds of training.

python -m fedjax_lab.figures curves FOLDER... [--measure=accuracy.mean]

--measure  what is drawn, as in fedjax_lab.report; by default what the runs are known by

rounds.png, megabytes.png, seconds.png: a line for each config, its mean over seeds, shaded from the
lowest seed to the highest. FOLDER may also hold runs, as a sweep's does. Runs of other data or
partitions have pictures of their own, whose names end in a number.

learning_curve.png: of a single run, as in its folder `plots`: also by domain, and the training
loss.
"""

from pathlib import Path

from matplotlib.figure import Figure

from fedjax_lab.analysis import compare, plots, runs
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.analysis.tables import with_unit


def draw(*workdirs: Path, measure: str = "") -> Drawn:
    """The learning curves of all runs in the folders. BadInput where no run has the measure."""
    whole, damaged = runs.read_all(runs.find(workdirs))
    blocks, notes = runs.arrange(whole)
    measure = compare.choose(blocks, "last", measure or None)
    pictures: dict[str, Figure] = {}
    named: list[str] = []
    for number, block in enumerate(blocks, 1):
        suffix = f"-{number}" if len(blocks) > 1 else ""
        named += [f"{number}: {block.name}"] if suffix else []
        pictures |= {f"{axis}{suffix}": of for axis, of in _curves(block, measure).items()}
    if len(whole) == 1:
        name = whole[0].config["method"]["name"]
        pictures["learning_curve"] = plots.learning_curve(whole[0].rows, runs.shown(name))
    return Drawn(pictures, text="\n".join([*damaged, *notes, *named]))


def _curves(block, measure):
    """A picture for each axis."""
    curves = [runs.curve(row, measure) for row in block.rows]
    names = [row.name for row in block.rows] if len(block.rows) > 1 else []
    return {
        axis: plots.draw_curves(
            [(curve[axis], curve["values"]) for curve in curves], label, with_unit(measure), names
        )
        for axis, label in runs.AXES.items()
    }
