"""Scores in A-level chemistry, 31,022 pupils of 2,410 schools (mlmRev): a client for each school.

pip install 'fedjax-lab[natural]' && python -m fedjax_lab.data.natural_tables
python -m fedjax_lab.main --config=configs/chemistry.py

A regression. Schools with fewer than ten pupils to train on are left out.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "natural", "dataset": "chemistry"},
        "task": {"name": "regression"},
        "partition": {"name": "by_client", "num_clients": 0, "min_examples": 10},
        "model": {"name": "mlp"},
        "method": {"name": method},
        "local": {"lr": 0.02, "batch_size": 16},
        "run": {"rounds": 50, "cohort": 100, "eval_every": 10},
    }
