"""CIFAR-10 with label skew, the usual benchmark: ten clients, Dir(0.5).

fedjax-lab data get cifar10
python -m fedjax_lab.main --config=configs/cifar10.py
python -m fedjax_lab.main --config=configs/cifar10.py:scaffold --config.partition.alpha=0.1
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "cifar10", "augment": "cifar10"},
        "partition": {"name": "dirichlet", "num_clients": 10, "alpha": 0.5},
        "model": {"name": "simple_cnn"},
        "method": {"name": method},
        "local": {"lr": 0.01, "momentum": 0.9, "batch_size": 64, "epochs": 5},
        "run": {"rounds": 50, "eval_every": 5},
    }
