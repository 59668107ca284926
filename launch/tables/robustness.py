"""All attacks against all aggregators: FedAvg on MNIST and Fashion-MNIST, a fifth of them attack.

A cell is a federation, an attack and an aggregator. A client makes 10 steps in each of 20 rounds.
Settings are the defaults, except those in ATTACKS and RULES; a twentieth of the training examples
is public, for FLTrust. The numbers are percentages after the last round.

python launch/measure.py robustness --cells='mnist, 20 clients, Dir(1)/*' --seeds=0
"""

import itertools

import records
from records import GridRow

PAGE = "transforms.md"
FEDERATIONS = {
    f"{data}, {clients} clients, Dir({alpha:g})": {
        "data.name": data,
        "partition.num_clients": str(clients),
        "partition.alpha": str(alpha),
    }
    for clients, alpha, data in itertools.product((20, 100), (1.0, 0.1), ("mnist", "fashion_mnist"))
}
ATTACKS: dict[str, dict[str, str]] = {
    "none": {},
    "sign_flip": {},
    "inner_product": {},
    "little_is_enough": {"attack.z": "1.5", "attack.up": "true"},
    "min_max": {},
    "min_sum": {},
    "label_flip": {},
    "backdoor": {"attack.boost": "3"},
    "dba": {"attack.boost": "3"},
    "blended": {"attack.boost": "3"},
    "neurotoxin": {"attack.boost": "3"},
    "semantic": {"attack.boost": "3", "attack.source": "7", "attack.target": "1"},
}
RULES: dict[str, dict[str, str]] = {
    "none": {},
    "median": {},
    "trimmed_mean": {},
    "krum": {},
    "multi_krum": {},
    "geometric_median": {},
    "centered_clipping": {"aggregator.radius": "1"},
    "dnc": {},
    "flame": {},
    "foolsgold": {},
    "fltrust": {},
    "robust_lr": {},
    "median, NNM": {"aggregator.mixing": "nearest_neighbors"},
}
BACKDOORS = ("backdoor", "dba", "blended", "neurotoxin", "semantic")
ACCURACY, SUCCESS = "last/global", "last/global_backdoor_success"
COMMON = {"local.steps": "10", "run.rounds": "20", "run.eval_every": "20"}
COMMON |= {"partition.public": "0.05"}
measured = records.in_rounds("last", measures=("global", "global_backdoor_success"))


def cells(out):
    """One cell for each federation, attack and aggregator."""
    return list(itertools.starmap(_cell, itertools.product(FEDERATIONS, ATTACKS, RULES)))


def _cell(federation, attack, rule):
    names = {"attack.name": attack, "aggregator.name": rule.partition(",")[0]}
    settings = FEDERATIONS[federation] | COMMON | names | ATTACKS[attack] | RULES[rule]
    config = "configs/fashion_mnist_attacks.py:fedavg"
    return records.cell(f"{federation}/{attack}/{rule}", config, (0, 1, 2), **settings)


def tables(of_table):
    """For each federation the accuracy, and the success of the backdoors."""
    return [
        records.grid(
            f"{federation}: accuracy on the global test set, and success of backdoors, in percent",
            [*RULES],
            [GridRow(attack, _row(federation, attack), ACCURACY) for attack in ATTACKS]
            + [
                GridRow(f"{attack}: its success", _row(federation, attack), SUCCESS, best=min)
                for attack in BACKDOORS
            ],
            of_table,
        )
        for federation in FEDERATIONS
    ]


def _row(federation, attack):
    return [f"{federation}/{attack}/{rule}" for rule in RULES]
