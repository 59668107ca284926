"""Fashion-MNIST on 1,000 clients of 60 images each, 100 a round, with client-level privacy.

python -m fedjax_lab.main --config=configs/fashion_mnist_private.py --config.privacy.epsilon=2
python -m fedjax_lab.sweep --config=configs/fashion_mnist_private.py --out=runs/private \
    --methods=fedavg,fedprox,scaffold --grid=privacy.epsilon=2,8,inf --seeds=0,1,2

The clip is near the median norm of the clients' updates without privacy (0.39 for FedAvg, 0.48 for
SCAFFOLD, after round 50). The images come from Debian's package dataset-fashion-mnist, or from the
folder config.data.folder.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "fashion_mnist"},
        "partition": {"name": "client_dirichlet", "num_clients": 1000, "alpha": 0.5},
        "model": {"name": "mlp", "width": 32},
        "method": {"name": method},
        "privacy": {"name": "central", "clip": 0.5, "epsilon": 8.0},
        "local": {"lr": 0.1, "batch_size": 20, "epochs": 2},
        "run": {"cohort": 100, "rounds": 200, "eval_every": 20},
    }
