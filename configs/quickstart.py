"""Five clients, one digit domain each; the first thing to run. Under a minute on two cores.

python -m fedjax_lab.main --config=configs/quickstart.py
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains"},
        "partition": {"name": "by_domain", "num_clients": 5, "validation": 0.1},
        "model": {"name": "digit_cnn"},
        "method": {"name": method},
        "local": {"lr": 0.03, "momentum": 0.9, "batch_size": 32, "epochs": 1},
        "run": {"rounds": 20, "eval_every": 2},
    }
