"""Attacks against aggregators: FedAvg on Fashion-MNIST, four attackers among 20 clients, 30 rounds.

A cell is a pair of an attack and an aggregator, with their default settings except the radius of
centered clipping. The numbers are percentages after the last round: the accuracy on the global test
set and, for the backdoor, its success.
"""

import numpy as np
import records

from fedjax_lab.analysis import formats

PAGE = "transforms.md"
ATTACKS = (
    "none",
    "sign_flip",
    "gaussian",
    "inner_product",
    "little_is_enough",
    "label_flip",
    "backdoor",
)
AGGREGATORS: dict[str, dict[str, str]] = {
    "none": {},
    "median": {},
    "trimmed_mean": {},
    "krum": {},
    "multi_krum": {},
    "geometric_median": {},
    "centered_clipping": {"aggregator.radius": "1"},
    "norm_bound": {},
}
ACCURACY, SUCCESS = "last/global", "last/global_backdoor_success"
measured = records.in_rounds("last", measures=("global", "global_backdoor_success"))


def cells(out):
    """One cell for each attack and aggregator."""
    return [_cell(attack, aggregator) for attack in ATTACKS for aggregator in AGGREGATORS]


def _cell(attack, aggregator):
    names = {"attack.name": attack, "aggregator.name": aggregator}
    config = "configs/fashion_mnist_attacks.py:fedavg"
    return records.cell(
        f"{attack}/{aggregator}", config, (0, 1, 2), **names, **AGGREGATORS[aggregator]
    )


def tables(of_table):
    """A table with the accuracy under each attack in a row, and the backdoor's success in the last.

    The best mean of each row is bold.
    """
    title = (
        "Accuracy in percent on the global test set after the last round: mean (population standard"
        " deviation) over seeds 0, 1, 2. The last line is the success of the backdoor: the"
        " percentage of test images of other classes that the model classifies as the target when"
        " they have the trigger (lower is better)."
    )
    rows = [(attack, attack, ACCURACY, max) for attack in ATTACKS]
    rows.append(("backdoor: its success", "backdoor", SUCCESS, min))
    cells, bold = [], set()
    for i, (label, attack, measure, best) in enumerate(rows):
        names = [f"{attack}/{aggregator}" for aggregator in AGGREGATORS]
        cells.append([label, *(records.spread(of_table, name, measure) for name in names)])
        means = {
            j: np.mean(values)
            for j, name in enumerate(names, 1)
            if (values := records.values(of_table, name, measure))
        }
        bold |= {(i, j) for j, mean in means.items() if mean == best(means.values())}
    return [formats.Table(title, ["", *AGGREGATORS], cells, bold)]
