"""Gradient inversion of twelve methods, with what a run can do against it: the page docs/audit.md.

A cell trains a perceptron on MNIST for 20 rounds, which gives the accuracy in percent on the global
test set. The attack is on the round before any training, from which most is learned. Each of the 5
clients of a round makes one step with 2 examples; the attacker knows their labels. The numbers are
PSNR in dB and SSIM, which are 5.1 and 0.01 for random images.

With privacy (central noise) and secure sums the server's method only sees one update of all 5
clients, from which the 10 images are looked for together.
"""

import records

import fedjax_lab
from fedjax_lab.analysis import formats, runs

PAGE = "audit.md"
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
RUN = {
    "model.name": "mlp",
    "partition.name": "iid",
    "partition.num_clients": "50",
    "run.cohort": "5",
    "run.rounds": "20",
    "run.eval_every": "20",
    "local.lr": "0.05",
    "local.epochs": "1",
}
ATTACK = {"examples": 2, "knows": ("labels",), "iterations": 300, "restarts": 1}
MEASURES = "psnr", "ssim", "seconds"


def cells(out):
    """One cell for each method and column."""
    return [
        records.cell(f"{method}/{name}", f"configs/mnist.py:{method}", (0,), **RUN, **settings)
        for method in METHODS
        for name, settings in AGAINST.items()
    ]


def measured(row):
    """The accuracy after the last round, and the means of the attack's measures."""
    (run,) = row.runs
    found = fedjax_lab.audit(run.folder, "inversion", rounds=0, **ATTACK).rows[0]
    score = runs.measures(run.rows[-1])
    accuracy = score.get("global", score.get("accuracy.mean"))
    return {0: {"accuracy": accuracy, **{name: found[name] for name in MEASURES}}}


def tables(of_table):
    """Methods by columns: PSNR and SSIM of the attack, and the accuracy."""
    return [formats.Table(TITLE, ["", *AGAINST], [_row(of_table, name) for name in METHODS])]


TITLE = (
    "Images from one round: PSNR in dB / SSIM, and in parentheses the accuracy in percent after 20"
    " rounds."
)


def _row(of_table, method):
    def text(name):
        cell = f"{method}/{name}"
        alike = [records.spread(of_table, cell, m, p) for m, p in (("psnr", 1), ("ssim", 2))]
        accuracy = records.spread(of_table, cell, "accuracy", 0)
        return formats.NONE if formats.NONE in alike else f"{' / '.join(alike)} ({accuracy})"

    return [method, *map(text, AGAINST)]
