"""The interest rates of 10,000 loans in 50 states (openintro): a regression, a client for a state.

pip install 'fedjax-lab[natural]' && python -m fedjax_lab.data.natural_tables
python -m fedjax_lab.main --config=configs/loans.py
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "natural", "dataset": "loans"},
        "task": {"name": "regression"},
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"name": "mlp"},
        "method": {"name": method},
        "local": {"lr": 0.02, "batch_size": 16},
        "run": {"rounds": 50, "eval_every": 10},
    }
