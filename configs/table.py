"""A table of your own: one row an example, columns of numbers and categories, one to predict.

python -m fedjax_lab.main --config=configs/table.py --config.data.path=FILE.csv \
    --config.data.target=COLUMN --config.task.name=classification
python -m fedjax_lab.main --config=configs/table.py:scaffold --config.data.path=FILE.csv \
    --config.data.target=COLUMN --config.data.client=COLUMN --config.partition.name=by_client
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "table", "path": "", "target": ""},
        "task": {"name": "regression"},
        "partition": {"name": "iid", "num_clients": 10},
        "model": {"name": "mlp"},
        "method": {"name": method},
        "local": {"lr": 0.05, "batch_size": 16},
        "run": {"rounds": 50, "eval_every": 10},
    }
