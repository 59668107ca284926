"""Fashion-MNIST with label skew: the setting of FedConcat's Table 1 (AAAI 2024), Dir(0.5).

python -m fedjax_lab.main --config=configs/fashion_mnist.py
python -m fedjax_lab.main --config=configs/fashion_mnist.py:fedprox --config.partition.alpha=0.1
python -m fedjax_lab.main --config=configs/fashion_mnist.py \
    --config.partition.name=classes_per_client --config.partition.classes=2

Published for FedAvg after 50 rounds: 87.5 +- 0.3 (global test set). The images come from Debian's
package dataset-fashion-mnist, or from the folder config.data.folder.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "fashion_mnist"},
        "partition": {"name": "dirichlet", "num_clients": 40, "alpha": 0.5},
        "model": {"name": "simple_cnn"},
        "method": {"name": method},
        "local": {
            "lr": 0.01,
            "momentum": 0.9,
            "weight_decay": 1e-5,
            "batch_size": 64,
            "epochs": 10,
        },
        "run": {"rounds": 50, "eval_every": 5},
    }
