"""A federation of the size of FEMNIST: 3,500 users with different handwriting, 100 in a round.

python -m fedjax_lab.main --config=configs/writers.py

The data are generated in seconds, without a download. The batch size of 20 and the single epoch are
those of Reddi et al. (ICLR 2021) on FEMNIST; their model also has two convolutions.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "writers"},
        "partition": {"name": "by_client"},
        "model": {"name": "simple_cnn"},
        "method": {"name": method},
        "local": {"lr": 0.1, "batch_size": 20, "epochs": 1},
        "run": {"rounds": 100, "cohort": 100, "eval_every": 20},
    }
