"""Loans by state, chemistry scores by school and flights by destination: is a federation worth it?

Local training, FedAvg and one model on the pooled examples, with the settings of the configs.
"""

import records

from fedjax_lab.analysis import formats

PAGE = "data.md"
METHODS = "local", "fedavg", "central"
COLUMNS = {  # the config and the measure of each column
    "loans, RMSE in points": ("loans", "last/rmse.mean"),
    "chemistry, RMSE in grade points": ("chemistry", "last/rmse.mean"),
    "flights, AUROC in %": ("flights", "last/auroc.mean"),
}
SEEDS = 0, 1, 2, 3, 4
measured = records.in_rounds("last", measures=("rmse.*", "auroc.*", "accuracy.mean", "global*"))


def cells(out):
    """One cell for each method on each table."""
    return [
        records.cell(f"{name}/{method}", f"configs/{name}.py:{method}", SEEDS)
        for name, _ in COLUMNS.values()
        for method in METHODS
    ]


def tables(of_table):
    """The mean over the users of their models' error, or area under the curve."""
    title = (
        "Mean over users on their own test rows, after the last round: mean (population standard"
        " deviation) over seeds 0 to 4."
    )
    rows = [
        [m, *(records.spread(of_table, f"{name}/{m}", key, 2) for name, key in COLUMNS.values())]
        for m in METHODS
    ]
    return [formats.Table(title, ["", *COLUMNS], rows)]
