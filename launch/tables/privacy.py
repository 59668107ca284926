"""Client-level privacy: FedAvg, FedProx and SCAFFOLD on Fashion-MNIST with three epsilons.

The numbers are accuracies in percent on the global test set, after the last of 200 rounds and at
their maximum over the evaluations.
"""

import records

from fedjax_lab.analysis import formats

PAGE = "privacy.md"
METHODS = "fedavg", "fedprox", "scaffold"
EPSILONS = {"2": "epsilon 2", "8": "epsilon 8", "inf": "epsilon infinity: clipping only"}
CAPACITY = "129"  # m plus three standard deviations; the default of today is larger
measured = records.in_rounds("last", "max_over_rounds", measures=("global",))


def cells(out):
    """One cell for each method and epsilon."""
    return [
        records.cell(
            f"{method}/{epsilon}",
            f"configs/fashion_mnist_private.py:{method}",
            (0, 1, 2),
            **{"privacy.epsilon": epsilon, "privacy.capacity": CAPACITY},
        )
        for method in METHODS
        for epsilon in EPSILONS
    ]


def tables(of_table):
    """The final accuracy of each method and epsilon."""
    title = (
        "Accuracy in percent on the global test set after 200 rounds: mean (population standard"
        " deviation) over seeds 0, 1, 2."
    )
    rows = [
        [method, *(records.spread(of_table, f"{method}/{e}", "last/global") for e in EPSILONS)]
        for method in METHODS
    ]
    return [formats.Table(title, ["", *EPSILONS.values()], rows)]
