"""FedPick's setting on three real domains of Digits-Five: MNIST-M, MNIST and USPS.

Everything is as in the paper, with 300 rounds, but the two missing domains, the model (digit_cnn
instead of one with 18 million parameters) and the scored rounds: every fifth. The numbers are test
accuracies in percent, each domain's best over the scored rounds, as the paper reports them.

python launch/measure.py digits_three --seeds=0
"""

import math

import records

from fedjax_lab.analysis import formats
from fedjax_lab.papers import published

METHODS = "fedpick", "fedbn", "fedavg", "lg_fedavg", "local", "fedrep"
DOMAINS = "mnist_m", "mnist", "usps"
REAL = {"data.name": "digits_five", "partition.num_clients": "3", "run.eval_every": "5"}
measured = records.in_rounds("max_per_domain", "last", measures=("accuracy.mean", "domains.*"))


def cells(out):
    """One cell for each method."""
    config = "configs/fedpick_digits.py"
    return [records.cell(m, f"{config}:{m}", (0, 1, 2), **REAL) for m in METHODS]


def tables(of_table):
    """For each domain, and as their mean, the published number and the measured one."""
    title = (
        "Three domains of Digits-Five: test accuracy in percent, each domain's best of every fifth"
        " of 300 rounds (chosen on the test set itself), published / here: mean (population"
        " standard deviation) over seeds."
    )
    rows = [[m, *(_place(of_table, m, domain) for domain in (*DOMAINS, ""))] for m in METHODS]
    return [formats.Table(title, ["", *DOMAINS, "mean of the three"], rows)]


def _place(of_table, method, domain):
    """The published and the measured number of one domain, or of all for domain ""."""
    measure = f"domains.{domain}" if domain else "accuracy.mean"
    here = records.spread(of_table, method, f"max_per_domain/{measure}")
    each = [_published(method, name) for name in ([domain] if domain else DOMAINS)]
    return f"{math.fsum(each) / len(each):.1f} / {here}" if here != formats.NONE else here


def _published(method, domain):
    (mean,) = [
        r.mean
        for r in published.find("fedpick", "II")
        if (r.dataset, r.method, r.variant, r.column) == ("digits_five", method, "", domain)
    ]
    return mean
