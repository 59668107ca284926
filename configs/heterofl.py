"""Clients with parts of one model: HeteroFL's five levels a-e, 1 to 1/16 of the channels.

python -m fedjax_lab.main --config=configs/heterofl.py
python -m fedjax_lab.main --config=configs/heterofl.py:fedrolex --seeds=0,1,2
python -m fedjax_lab.main --config=configs/heterofl.py:heterofl \
    --config.partition.capacity=1,0.0625                         # the mixture a-e
python -m fedjax_lab.main --config=configs/heterofl.py:heterofl \
    --config.data.name=fashion_mnist --config.model.name=mcmahan_cnn     # hours on two cores

The images are those of configs/quickstart.py, divided at random among 20 clients, of whom ten take
part in a round. `--config.partition.capacity=0.25` gives all clients the same level. Nets without
normalization are trained without HeteroFL's scaler.
"""


def get_config(method="heterofl"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains"},
        "partition": {
            "name": "iid",
            "num_clients": 20,
            "capacity": (1.0, 0.5, 0.25, 0.125, 0.0625),
        },
        "model": {"name": "mlp", "width": 128, "depth": 2},
        "method": {"name": method},
        "local": {"lr": 0.05, "momentum": 0.9, "batch_size": 32, "epochs": 2},
        "run": {"rounds": 100, "cohort": 10, "eval_every": 20},
    }
