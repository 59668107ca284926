"""Fashion-MNIST of the leaderboard: 20 clients under label skew, Dir(0.1), 2,000 images a class.

python -m fedjax_lab.main --config=configs/fmnist_leaderboard.py:fedprox --seeds=0-2

launch/tables/leaderboard.py runs every method on it. The images come from Debian's package
dataset-fashion-mnist, or from the folder config.data.folder.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "fashion_mnist", "train_per_class": 2000},
        "partition": {
            "name": "dirichlet",
            "num_clients": 20,
            "alpha": 0.1,
            "validation": 0.1,
        },
        "model": {"name": "mlp", "width": 128, "depth": 2},
        "method": {"name": method},
        "local": {"momentum": 0.9, "batch_size": 64, "epochs": 1},
        "run": {"rounds": 30, "eval_every": 5},
    }
