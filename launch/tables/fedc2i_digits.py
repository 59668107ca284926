"""FedC2I's setting on the five digit domains, with the simple CNN instead of the paper's LeNet.

Adam, two epochs per round, 20 rounds. The number is the test accuracy in percent after the last
round, averaged over the domains.
"""

import records

from fedjax_lab.papers import published

METHODS = "local", "fedavg", "fedprox", "fedrep", "fedrod", "fedproto", "fedc2i"
measured = records.in_rounds("last", measures=("accuracy.mean", "domains.*"))


def cells(out):
    """One cell for each method."""
    model = {"model.name": "simple_cnn"}
    config = "configs/fedc2i_digits.py"
    return [records.cell(m, f"{config}:{m}", (0, 1, 2), **model) for m in METHODS]


def tables(of_table):
    """The measured accuracies beside those published for Digit-5."""
    title = (
        "Test accuracy in percent after the last round, averaged over domains: mean (population"
        " standard deviation) over seeds 0, 1, 2."
    )
    mean = "last/accuracy.mean"
    made = records.table(title, METHODS, {"here": mean}, of_table, by_mean=mean)
    header = [*made.header, "published, Digit-5"]
    return [made._replace(header=header, cells=[[*row, _published(row[0])] for row in made.cells])]


def _published(method):
    (one,) = [
        result
        for result in published.find("fedc2i", "1")
        if (result.dataset, result.method, result.column) == ("digits_five", method, "avg")
    ]
    return f"{one.mean:.1f}"
