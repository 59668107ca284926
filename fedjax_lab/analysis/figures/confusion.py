"""The confusion matrix of a run: which classes its model takes for which.

python -m fedjax_lab.figures confusion FOLDER [--client=0] [--seed=0] [--names=fedavg=Ours]

--client  the client whose own model is used; default: the global model
--seed    the seed; default: the run's first seed
--names   the names to show for the method, the data and the partition, as in fedjax_lab.report

confusion.png has a row for each class, with the share of its examples in the global test set that
were predicted to be of each class. numbers.json has the names of the classes and the numbers of
examples. The data of the run are read again.
"""

from pathlib import Path

import numpy as np

from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.errors import shown
from fedjax_lab.experiment import run_names, titles
from fedjax_lab.running import loading, plots

WRITTEN = 12  # the most classes with numbers in the cells


def draw(
    workdir: Path, *, client: int | None = None, seed: int | None = None, names: str = ""
) -> Drawn:
    """The confusion matrix of the global model, or of the model of a client."""
    run = loading.load(workdir)
    counts = run.confusion(client, seed)
    classes = list(map(shown, run.experiment.dataset.classes))
    if len(classes) != len(counts):  # those of a binary task may have none
        classes = [str(i) for i in range(len(counts))]
    of_run = titles.run_title(run.config, titles.parse(names, [run.config]))
    title = f"{of_run}: {_model(run, client, seed)}, round {run.rounds}"
    figure = plots.draw_heat_maps(
        {title: counts / np.maximum(counts.sum(1, keepdims=True), 1)},
        "share of the actual class",
        plots.Side("actual class", classes),
        plots.Side("predicted class", classes),
        high=1.0,
        written=len(classes) <= WRITTEN,
    )
    return Drawn({"confusion": figure}, {"classes": classes, "confusion": counts.tolist()})


def _model(run, client, seed):
    if client is None:
        return "global model"
    federation = run.experiment.simulation.seeds[run.index(seed)].federation
    name = run_names.names(run.experiment.dataset, federation.train)[client]
    return f"model of client {shown(name)}"
