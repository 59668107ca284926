"""Parts of one model on two federations: four methods under three mixtures of levels.

Levels a to e are 1, 1/2, 1/4, 1/8 and 1/16 of the channels. FedAvg with a smaller width is what
every client of a mixture could train. The numbers are accuracies in percent after the last round.
"""

from typing import NamedTuple

import records

from fedjax_lab.analysis import formats

PAGE = "unlike_clients.md"
CONFIG = "configs/heterofl.py"
MIXTURES = {  # {label: capacities, the smallest last}, in equal shares
    "a-b": (1.0, 0.5),
    "a-e": (1.0, 0.0625),
    "a-b-c-d-e": (1.0, 0.5, 0.25, 0.125, 0.0625),
}
METHODS: dict[str, dict[str, str]] = {
    "heterofl": {},
    "fedrolex": {},
    "federated_dropout": {},
    "fjord": {"method.widths": "(0.0625, 0.125, 0.25, 0.5, 1.0)"},
}
SEEDS = 0, 1, 2
WHOLE, MEAN = "last/global", "last/accuracy.mean"
measured = records.in_rounds("last", measures=("global", "accuracy.mean", "levels.*"))


class Federation(NamedTuple):
    """Data, clients and a model on which the methods are compared."""

    title: str
    prefix: str  # of the names of its cells
    width: int  # of the whole model
    settings: dict[str, str]
    of_methods: dict[str, dict[str, str]] = {}  # settings of some methods


FEDERATIONS = (
    Federation(
        "Fashion-MNIST, perceptron",
        prefix="",
        width=64,
        settings={
            "data.name": "fashion_mnist",
            "partition.name": "dirichlet",
            "partition.alpha": "0.5",
            "partition.num_clients": "100",
            "run.rounds": "150",
            "run.eval_every": "150",
        },
    ),
    Federation(
        "Color images, convolutional net",
        prefix="images/",
        width=16,
        settings={
            "data.size": "32",
            "data.train_per_domain": "500",
            "model.name": "digit_cnn",
            "partition.name": "dirichlet",
            "partition.alpha": "0.5",
            "local.epochs": "1",
            "run.rounds": "50",
            "run.eval_every": "50",
        },
        of_methods={"heterofl": {"method.scaler": "True", "method.static_norm": "True"}},
    ),
)


def cells(out):
    """For each federation FedAvg with each width, and each method under each mixture."""
    return [cell for federation in FEDERATIONS for cell in _cells(federation)]


def _cells(federation):
    smallest = sorted({levels[-1] for levels in MIXTURES.values()} | {1.0}, reverse=True)
    widths = [f"{federation.width * level:g}" for level in smallest]
    made = [_cell(federation, f"fedavg/{width}", "fedavg", width, ()) for width in widths]
    return made + [
        _cell(federation, f"{method}/{label}", method, str(federation.width), levels, **settings)
        for label, levels in MIXTURES.items()
        for method, settings in METHODS.items()
    ]


def _cell(federation, name, method, width, levels, **settings):
    shared = federation.settings | {"model.width": width, "partition.capacity": str(levels)}
    shared |= federation.of_methods.get(method, {})
    return records.cell(federation.prefix + name, f"{CONFIG}:{method}", SEEDS, **shared, **settings)


def tables(of_table):
    """A table for each federation."""
    return [_table(of_table, federation) for federation in FEDERATIONS]


def _table(of_table, federation):
    """The whole model and the narrowest parts under each mixture, with FedAvg's for comparison."""
    title = (
        f"{federation.title}: accuracy in percent, mean (population standard deviation) over seeds"
        " 0, 1, 2, of the whole model on the global test set, and of the narrowest parts on the"
        " test images of their clients."
    )

    def row(of_mixture):
        named = {label: federation.prefix + of_mixture(label) for label in MIXTURES}
        return _row(of_table, named)

    def smallest(label):
        return f"fedavg/{federation.width * MIXTURES[label][-1]:g}"

    rows = [
        ["fedavg, all the whole", *row(lambda label: f"fedavg/{federation.width}")],
        ["fedavg, all the smallest", *row(smallest)],
        *([method, *row(lambda label, m=method: f"{m}/{label}")] for method in METHODS),
    ]
    header = ["", *MIXTURES, *(f"{label}, narrowest" for label in MIXTURES)]
    return formats.Table(title, header, rows)


def _row(of_table, cells):
    """The numbers of a cell under each mixture, {label: cell}."""
    whole = [records.spread(of_table, cell, WHOLE) for cell in cells.values()]
    return whole + [
        records.spread(of_table, cell, MEAN if "fedavg" in cell else f"last/levels.{levels[-1]}")
        for cell, levels in zip(cells.values(), MIXTURES.values(), strict=True)
    ]
