"""FedConcat's Table 1 on Fashion-MNIST, and three values of MOON's mu under #C=2.

The numbers are accuracies in percent on the global test set after the last round. All runs of a
column send about the same number of bytes.
"""

import records

from fedjax_lab.analysis import formats
from fedjax_lab.papers import published

METHODS = "fedavg", "fedprox", "moon", "fedrs", "fedlc", "fedconcat", "fedconcat_id"
PARTITIONS = {
    "#C=2": {},
    "#C=3": {"partition.classes": "3"},
    "Dir(0.1)": {"partition.name": "dirichlet", "partition.alpha": "0.1"},
    "Dir(0.5)": {"partition.name": "dirichlet", "partition.alpha": "0.5"},
}
OTHER_MU = "0.001", "0.1"  # of MOON under #C=2; its default is 0.01
MEASURE = "last/global"
measured = records.in_rounds("last", measures=("global", "accuracy.mean"))


def cells(out):
    """A cell for each method under each partition; two more values of MOON's mu under #C=2."""
    config, seeds = "configs/fmnist_label_skew.py", (0, 1, 2)
    made = [
        records.cell(f"{skew}/{method}", f"{config}:{method}", seeds, **settings)
        for skew, settings in PARTITIONS.items()
        for method in METHODS
    ]
    return made + [
        records.cell(f"#C=2/moon,mu={mu}", f"{config}:moon", seeds, **{"method.mu": mu})
        for mu in OTHER_MU
    ]


def tables(of_table):
    """A table of measured beside published accuracies."""
    title = (
        "Accuracy in percent on the global test set after the last round: mean (population standard"
        " deviation where there are several) over those of the seeds 0, 1, 2 that are measured, and"
        " as published over three seeds. Partitions without any measured run are left out."
    )
    begun = {record.cell.partition("/")[0] for record in of_table}
    skews = [skew for skew in PARTITIONS if skew in begun]
    header = ["", *(name for skew in skews for name in (skew, "published"))]
    rows = [
        [method, *(text for skew in skews for text in _pair(of_table, skew, method))]
        for method in METHODS
    ]
    return [formats.Table(title, header, rows)]


def _pair(of_table, skew, method):
    """The measured and the published accuracy, formatted."""
    (printed,) = [
        result
        for result in published.find("fedconcat", "1")
        if (result.dataset, result.method, result.variant) == ("fmnist", method, "")
        and f"partition={skew}" in result.setting.split(";")
    ]
    here = records.spread(of_table, f"{skew}/{method}", MEASURE)
    return here, f"{printed.mean:.1f} ({printed.std:.1f})"
