"""Parts of one model on Fashion-MNIST, Dir(0.5): four methods under three mixtures of levels.

Ten of 100 clients train a perceptron of width 64 and depth 2 in each of 150 rounds. The numbers are
accuracies in percent after the last round. Levels a to e are 1, 1/2, 1/4, 1/8 and 1/16 of the
channels. FedAvg with width 4 or 32 is what every client of a mixture could train.
"""

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
WIDTHS = "64", "32", "4"
SEEDS = 0, 1, 2
SHARED = {
    "data.name": "fashion_mnist",
    "partition.name": "dirichlet",
    "partition.alpha": "0.5",
    "partition.num_clients": "100",
    "run.rounds": "150",
    "run.eval_every": "150",
}
WHOLE, MEAN = "last/global", "last/accuracy.mean"
measured = records.in_rounds("last", measures=("global", "accuracy.mean", "levels.*"))


def cells(out):
    """FedAvg with each width, and a cell for each method under each mixture."""
    made = [_cell(f"fedavg/{width}", "fedavg", width, ()) for width in WIDTHS]
    return made + [
        _cell(f"{method}/{label}", method, "64", levels, **settings)
        for label, levels in MIXTURES.items()
        for method, settings in METHODS.items()
    ]


def _cell(name, method, width, levels, **settings):
    shared = SHARED | {"model.width": width, "partition.capacity": str(levels)}
    return records.cell(name, f"{CONFIG}:{method}", SEEDS, **shared, **settings)


def tables(of_table):
    """The whole model and the narrowest parts under each mixture, with FedAvg's for comparison."""
    title = (
        "Accuracy in percent after 150 rounds, mean (population standard deviation) over seeds 0,"
        " 1, 2: the whole model on the global test set, and the narrowest parts on the test images"
        " of their clients."
    )
    smallest = {label: f"fedavg/{64 * levels[-1]:g}" for label, levels in MIXTURES.items()}
    rows = [
        ["fedavg, all the whole", *_row(of_table, dict.fromkeys(MIXTURES, "fedavg/64"))],
        ["fedavg, all the smallest", *_row(of_table, smallest)],
        *([m, *_row(of_table, {label: f"{m}/{label}" for label in MIXTURES})] for m in METHODS),
    ]
    header = ["", *MIXTURES, *(f"{label}, narrowest" for label in MIXTURES)]
    return [formats.Table(title, header, rows)]


def _row(of_table, cells):
    """The numbers of a cell under each mixture, {label: cell}."""
    whole = [records.spread(of_table, cell, WHOLE) for cell in cells.values()]
    return whole + [
        records.spread(of_table, cell, MEAN if "fedavg" in cell else f"last/levels.{levels[-1]}")
        for cell, levels in zip(cells.values(), MIXTURES.values(), strict=True)
    ]
