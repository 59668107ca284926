"""Costs and accuracies of all methods with the settings of the five digit domains' config.

30 rounds and seed 0; FedAvg also has seeds 1 and 2, which show how much seeds differ. The second
table has other settings of some methods, such as the defaults that the config replaces.
"""

import records

from fedjax_lab.analysis import formats
from fedjax_lab.experiment.registry import METHODS
from fedjax_lab.testing.toy import needs_adapters

PAGE = "method_costs.md"
CONFIG = "configs/digit_domains.py"
# Client2Vec trains its index for 500 epochs; some methods need a model with adapters.
NAMES = [name for name in METHODS if name != "client2vec" and not needs_adapters(name)]
OTHERS: dict[str, dict[str, str]] = {
    "fedcm,alpha=0.1": {"method.alpha": "0.1"},
    "fedcm,alpha=0.1,lr=0.1": {"method.alpha": "0.1", "local.lr": "0.1"},
    "fedmgda_plus,server_lr=3": {"method.server_lr": "3"},
    "fedsam,rho=0.01": {"method.rho": "0.01"},
    "hfedf,server_lr=0.001": {"method.server_lr": "0.001"},
    "mimelite,beta=0.9": {"method.beta": "0.9"},
    "mimelite,beta=0.5,lr=0.03": {"method.beta": "0.5", "local.lr": "0.03"},
    "per_fedavg,inner_lr=0.01": {"method.inner_lr": "0.01"},
    "pfedhn,server_lr=0.01": {"method.server_lr": "0.01"},
    "q_ffl,q=1": {"method.q": "1"},
    "q_ffl,q=0.001": {"method.q": "0.001"},
}
LENGTH = {"run.rounds": "30", "run.eval_every": "30"}
ACCURACY = "accuracy.mean"
SENT = "bytes_up", "bytes_down"
HEADER = "up", "down", "accuracy"


def cells(out):
    """One cell for each method, and the cells of OTHERS."""
    settings = {name: records.NEEDED.get(name, {}) for name in NAMES} | OTHERS
    return [_cell(name, **LENGTH, **of_name) for name, of_name in settings.items()]


def _cell(name, **settings):
    method, *_ = name.split(",")
    seeds = (0, 1, 2) if name == "fedavg" else (0,)
    return records.cell(name, f"{CONFIG}:{method}", seeds, **settings)


def measured(row):
    """The accuracies of each seed after the last round, and the bytes of the whole run."""
    last = records.in_rounds("last", measures=(ACCURACY, "global", "domains.*"))(row)
    return {seed: last[seed] | {k: rows[-1][k] for k in SENT} for seed, rows in row.seeds.items()}


def tables(of_table):
    """A table of all methods, and one of the methods with other settings."""
    title = (
        "Bytes sent in each direction as multiples of FedAvg's, and the mean accuracy over clients"
        " in percent after 30 rounds, seed 0."
    )
    of_seed_0 = [record for record in of_table if record.seed == 0]
    rows = [_row(of_seed_0, name) for name in NAMES]
    others = [_row(of_seed_0, name) for name in OTHERS]
    others.append(["fedavg, seeds 0, 1, 2", *_row(of_table, "fedavg")[1:]])
    return [
        formats.Table(title, ["", *HEADER], rows),
        formats.Table("The same with other settings or seeds.", ["", *HEADER], others),
    ]


def _row(of_table, name):
    sent = [_ratio(of_table, name, key) for key in SENT]
    return [name, *sent, records.spread(of_table, name, f"last/{ACCURACY}")]


def _ratio(of_table, name, key):
    """The bytes of a method as a multiple of FedAvg's."""
    sent, plain = (records.values(of_table, each, key)[:1] for each in (name, "fedavg"))
    return f"{sent[0] / plain[0]:.3g}" if sent and plain else formats.NONE
