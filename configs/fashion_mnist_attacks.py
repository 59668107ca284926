"""Fashion-MNIST on 20 clients with mild label skew; a fifth of them attack if an attack is named.

python -m fedjax_lab.main --config=configs/fashion_mnist_attacks.py \
    --config.attack.name=little_is_enough --config.aggregator.name=median
python launch/measure.py attacks     # the table of docs/transforms.md

All clients take part in every round, so that a round has exactly four attackers. The images come
from Debian's package dataset-fashion-mnist, or from the folder config.data.folder.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "fashion_mnist"},
        "partition": {"name": "dirichlet", "num_clients": 20, "alpha": 1.0},
        "model": {"name": "mlp"},
        "method": {"name": method},
        "attack": {"share": 0.2},
        "local": {"lr": 0.03, "momentum": 0.9, "batch_size": 64, "epochs": 1},
        "run": {"rounds": 30, "eval_every": 5},
    }
