"""FedPick's setting on the five digit domains at the paper's length: 300 rounds, 32x32, batch 64.

The numbers are test accuracies in percent, each domain's best over all rounds, as the paper reports
them. The table shows whether the paper's order of methods, which 30 rounds (fedpick_digits) do not
fully reproduce, holds after 300.
"""

import math

import records

from fedjax_lab.papers import published

METHODS = "fedpick", "fedbn", "fedavg", "lg_fedavg", "local"
measured = records.in_rounds(
    "max_per_domain", "last", "max_over_rounds", measures=("accuracy.mean", "domains.*")
)


def cells(out):
    """One cell for each method, with the settings of the config file."""
    config = "configs/fedpick_digits.py"
    return [records.cell(method, f"{config}:{method}", (0, 1, 2)) for method in METHODS]


def tables(of_table):
    """One table with the mean of the domains' best accuracies beside that on Digits-Five."""
    title = (
        "Test accuracy in percent, each domain's best of 300 rounds (chosen on the test set"
        " itself), averaged over domains: mean (population standard deviation) over seeds 0, 1, 2."
    )
    mean = "max_per_domain/accuracy.mean"
    made = records.table(title, METHODS, {"mean": mean}, of_table, by_mean=mean)
    header = [*made.header, "published mean, Digits-Five"]
    return [made._replace(header=header, cells=[[*row, _published(row[0])] for row in made.cells])]


def _published(method):
    each = [r.mean for r in published.find("fedpick", "II") if _is_of(r, method)]
    return f"{math.fsum(each) / len(each):.1f}"


def _is_of(result, method):
    return (result.dataset, result.method, result.variant) == ("digits_five", method, "")
