"""Clients with three unlike nets on images of digits: about a minute on two cores.

python -m fedjax_lab.main --config=configs/unlike_digits.py
python -m fedjax_lab.main --config=configs/unlike_digits.py:fml --seeds=0,1,2

A small sister of configs/unlike_models.py: two perceptrons and a convolutional net, each with four
of twelve clients.
"""

from fedjax_lab.models import nets


def deep_mlp(num_classes):
    """A perceptron with three narrow layers."""
    return nets.mlp(num_classes, width=64, depth=3)


def narrow_cnn(num_classes):
    """The net of the quickstart with fewer channels."""
    return nets.digit_cnn(num_classes, width=4)


def get_config(method="fedproto"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains", "train_per_domain": 300},
        "partition": {"name": "dirichlet", "num_clients": 12, "alpha": 0.3},
        "model": {"name": "mlp", "kinds": (deep_mlp, narrow_cnn)},
        "method": {"name": method},
        "local": {"lr": 0.05, "momentum": 0.9, "batch_size": 32, "epochs": 1},
        "run": {"rounds": 20, "eval_every": 5},
    }
