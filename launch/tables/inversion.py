"""Gradient inversion of twelve methods, with what a run can do against it: the page docs/audit.md.

The federation is MNIST on 50 clients, of which 5 take part in a round and each makes one step with
2 examples; the model is a perceptron. Nothing is trained: the attack is on the first round, from
which most is learned. The attacker knows the labels. The numbers are PSNR in dB and SSIM, which are
5.1 and 0.01 for random images.

With privacy (central noise) and secure sums the server's method only sees one update of all 5
clients, from which the 10 images are looked for together.
"""

import functools

import audited
import records

import fedjax_lab
from fedjax_lab.analysis import formats
from fedjax_lab.auditing.target import untrained
from fedjax_lab.experiment import experiment

PAGE = "audit.md"
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
    return audited.cells(RUN)


def computed(cell):
    """The means of the attack's measures."""
    (seed,) = cell.seeds
    built = experiment.build(cell.config, [seed], _data())
    row = fedjax_lab.audit(untrained(built, None), "inversion", **ATTACK).rows[0]
    return {seed: {name: row[name] for name in MEASURES}}


@functools.cache
def _data():
    return experiment.load_data(cells(None)[0].config.data)


def tables(of_table):
    """PSNR and SSIM of the attack: methods by columns."""
    title = "Images from the first round: PSNR in dB / SSIM."

    def text(cell):
        pairs = (("psnr", 1), ("ssim", 2))
        alike = [records.spread(of_table, cell, *pair) for pair in pairs]
        return formats.NONE if formats.NONE in alike else " / ".join(alike)

    return [audited.table(title, text)]
