"""Gradient inversion of twelve methods, with what a run can do against it: the page docs/audit.md.

The federation is MNIST on 50 clients, of which 5 take part in a round and each makes one step with
2 examples; the model is a perceptron. Nothing is trained: the attack is on the first round, from
which most is learned. The attacker knows the labels. The numbers are PSNR in dB and SSIM, which are
5.1 and 0.01 for random images.

With privacy (central noise) and secure sums the server's method only sees one update of all 5
clients, from which the 10 images are looked for together.
"""

import functools

import records

import fedjax_lab
from fedjax_lab.analysis import formats
from fedjax_lab.auditing.target import untrained
from fedjax_lab.experiment import experiment

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


def computed(cell):
    """The means of the attack's measures."""
    (seed,) = cell.seeds
    built = experiment.build(cell.config, [seed], _data())
    found = fedjax_lab.audit(untrained(built, None), "inversion", **ATTACK).rows[0]
    return {seed: {name: found[name] for name in MEASURES}}


@functools.cache
def _data():
    return experiment.load_data(cells(None)[0].config.data)


def tables(of_table):
    """PSNR and SSIM of the attack: methods by columns."""
    title = "Images from the first round: PSNR in dB / SSIM."
    return [formats.Table(title, ["", *AGAINST], [_row(of_table, name) for name in METHODS])]


def _row(of_table, method):
    def text(name):
        pairs = (("psnr", 1), ("ssim", 2))
        alike = [records.spread(of_table, f"{method}/{name}", *pair) for pair in pairs]
        return formats.NONE if formats.NONE in alike else " / ".join(alike)

    return [method, *map(text, AGAINST)]
