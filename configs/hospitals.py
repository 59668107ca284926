"""Generated hospitals with unlike patients and devices: the days of a stay, a regression.

python -m fedjax_lab.main --config=configs/hospitals.py
python -m fedjax_lab.main --config=configs/hospitals.py:ditto --config.data.device=0.5
python -m fedjax_lab.main --config=configs/hospitals.py --config.data.longer_than=10 \
    --config.task.name=binary
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "hospitals"},
        "task": {"name": "regression"},
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"name": "mlp"},
        "method": {"name": method},
        "local": {"lr": 0.05, "batch_size": 16},
        "run": {"rounds": 50, "eval_every": 10},
    }
