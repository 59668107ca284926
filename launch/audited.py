"""The methods and columns of the tables of audits: what a run can do against an attacker."""

import records

from fedjax_lab.analysis import formats

METHODS = (
    "fedavg fedprox scaffold fedopt ditto fedper moon fednova fedproto fedfed fedpcl fedgkt".split()
)
AGAINST: dict[str, dict[str, str]] = {
    "nothing": {},
    "top-k, 5 %": {"compression.name": "top_k", "compression.share": "0.05"},
    "8 bits": {"compression.name": "qsgd"},
    "epsilon 8": {"privacy.name": "central", "privacy.epsilon": "8"},
    "epsilon 2": {"privacy.name": "central", "privacy.epsilon": "2"},
    "secure sum": {"aggregator.name": "secure_sum"},
}


def cells(settings):
    """One cell of MNIST with these settings for each method and column."""
    return [
        records.cell(f"{method}/{name}", f"configs/mnist.py:{method}", (0,), **settings, **against)
        for method in METHODS
        for name, against in AGAINST.items()
    ]


def table(title, text):
    """Methods by columns. text: the name of a cell -> what the table shows of it."""
    rows = [[method, *(text(f"{method}/{name}") for name in AGAINST)] for method in METHODS]
    return formats.Table(title, ["", *AGAINST], rows)
