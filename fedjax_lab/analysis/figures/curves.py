"""Learning curves of runs, finished or not, against rounds, megabytes and seconds of training.

python -m fedjax_lab.figures curves FOLDER... [--measure=accuracy.mean] [--names=fedavg=Ours]

--measure  the measure to draw, as in fedjax_lab.report; default: the runs' headline accuracy
--names    the names to show for methods, data sources and partitions, as in fedjax_lab.report

rounds.png, megabytes.png, seconds.png and, for runs with a clock, virtual_seconds.png have a line
for each config: the mean over seeds, shaded from the lowest to the highest seed. FOLDER may be a
run, or a folder that contains runs, such as a sweep. Each data set and partition has separate
pictures, whose names end in a number.

learning_curve.png is drawn if there is a single run, as in the run's folder `plots`. It also shows
the accuracy by domain and the training loss.
"""

from pathlib import Path

from matplotlib.figure import Figure

from fedjax_lab.analysis import compare, runs
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.analysis.tables import axis_label
from fedjax_lab.experiment import titles
from fedjax_lab.running import plots


def draw(*workdirs: Path, measure: str = "", names: str = "") -> Drawn:
    """The learning curves of all runs in the folders. Raises BadInput if no run has the measure."""
    whole, damaged = runs.read_all(runs.find(workdirs))
    called = titles.parse(names, [run.config for run in whole])
    blocks, notes = runs.arrange(whole, called)
    measure = compare.choose(blocks, "last", measure or None)
    pictures: dict[str, Figure] = {}
    named: list[str] = []
    for number, block in enumerate(blocks, 1):
        suffix = f"-{number}" if len(blocks) > 1 else ""
        named += [f"{number}: {block.heading}"] if suffix else []
        pictures |= {f"{axis}{suffix}": of for axis, of in _curves(block, measure).items()}
    if len(whole) == 1:
        title = titles.run_title(whole[0].config, called)
        pictures["learning_curve"] = plots.learning_curve(whole[0].rows, title)
    return Drawn(pictures, text="\n".join([*damaged, *notes, *named]))


def _curves(block, measure):
    """A picture for each kind of x axis."""
    curves = [runs.curve(row, measure) for row in block.rows]
    value = axis_label(measure)
    names = [row.title for row in block.rows] if len(block.rows) > 1 else []
    return {
        axis: plots.draw_curves(
            [(curve[axis], curve["values"]) for curve in curves], label, value, names, block.heading
        )
        for axis, label in runs.axes(curves).items()
    }
