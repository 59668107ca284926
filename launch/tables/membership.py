"""Membership inference against twelve methods, with what a run can do against it: docs/audit.md.

A cell trains a perceptron on 1,000 images of MNIST, 100 of each of ten clients, all of whom take
part in every round; the other training images are public and not used. The attack is the likelihood
ratio with 16 reference federations on the global model or, if a method has none, on the clients'
own models. The numbers are the accuracy, the true positives at 1 % false positives and the area
under the ROC curve, in percent, and CPU seconds of the attack.
"""

import time

import audited
import records

import fedjax_lab
from fedjax_lab.analysis import formats, runs
from fedjax_lab.errors import BadInput

PAGE = "audit.md"
RUN = {
    "model.name": "mlp",
    "model.width": "64",
    "partition.name": "iid",
    "partition.num_clients": "10",
    "partition.public": "0.983333",
    "run.cohort": "10",
    "run.rounds": "10",
    "run.eval_every": "10",
    "local.lr": "0.3",
    "local.batch_size": "10",
    "local.epochs": "5",
}
REFERENCES = 16


def cells(out):
    """One cell for each method and column."""
    return audited.cells(RUN)


def measured(row):
    """The accuracy after the last round, and the rates of the attack in percent."""
    (run,) = row.runs
    score, begun = runs.measures(run.rows[-1]), time.process_time()
    rates = {key: 100 * value for key, value in attacked(run.folder).items()}
    accuracy = score.get("global", score.get("accuracy.mean"))
    return {0: {"accuracy": accuracy, **rates, "seconds": time.process_time() - begun}}


def attacked(folder):
    """The rates of the attack on the global model, or else on the clients' models.

    They are {} for a run that is refused, such as one of several stages.
    """
    for view in ("global", "client"):
        try:
            settings = {"view": view, "references": REFERENCES, "chunk": REFERENCES}
            row = fedjax_lab.audit(folder, "lira", **settings).rows[0]
            return {key: row[key] for key in ("auc", "tpr_at_1", "tpr_at_1_low", "tpr_at_1_high")}
        except BadInput as error:
            print(error)
    return {}


def tables(of_table):
    """Methods by columns: true positives and the accuracy."""
    title = (
        "Members that are recognized at 1 % false positives, in percent, and in parentheses the"
        " accuracy in percent after 10 rounds."
    )

    def text(cell):
        rate, accuracy = (records.spread(of_table, cell, m) for m in ("tpr_at_1", "accuracy"))
        return rate if accuracy == formats.NONE else f"{rate} ({accuracy})"

    return [audited.table(title, text)]
