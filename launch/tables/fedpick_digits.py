"""FedPick's setting on the five digit domains, shortened to 30 of 300 rounds and half the width.

The numbers are test accuracies in percent, each domain's best over every fifth round, as the paper
reports them.
"""

import records

METHODS = (
    "fedpick fedproto local central lg_fedavg finetune fedc2i fedrep fedper ifca feddyn scaffold"
    " fedbn fedopt fedavgm fedrod fedlc fednova fedprox fedavg fedrs moon"
).split()
SHORTER = {
    "data.size": "28",
    "model.width": "8",
    "local.batch_size": "32",
    "run.rounds": "30",
    "run.eval_every": "5",
}
measured = records.in_rounds("max_per_domain", "last", measures=("accuracy.mean", "domains.*"))


def cells(out):
    """One cell for each method."""
    config = "configs/fedpick_digits.py"
    return [records.cell(m, f"{config}:{m}", (0, 1, 2), **SHORTER) for m in METHODS]


def tables(of_table):
    """The mean over domains of each method; fedpick_digits_full has the domains."""
    title = (
        "Test accuracy in percent, each domain's best of every fifth round (chosen on the test set"
        " itself), averaged over domains: mean (population standard deviation) over seeds 0, 1, 2."
    )
    mean = "max_per_domain/accuracy.mean"
    return [records.table(title, METHODS, {"mean": mean}, of_table, by_mean=mean)]
