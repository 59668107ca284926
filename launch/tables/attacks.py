"""Attacks against aggregators: FedAvg on Fashion-MNIST, four attackers among 20 clients, 30 rounds.

A cell is a pair of an attack and an aggregator, with their default settings except the radius of
centered clipping. The numbers are percentages after the last round: the accuracy on the global test
set and, for the backdoor, its success.
"""

import records
from records import GridRow

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
    rows = [GridRow(attack, _row(attack), ACCURACY) for attack in ATTACKS]
    rows.append(GridRow("backdoor: its success", _row("backdoor"), SUCCESS, best=min))
    return [records.grid(title, [*AGGREGATORS], rows, of_table)]


def _row(attack):
    return [f"{attack}/{aggregator}" for aggregator in AGGREGATORS]
