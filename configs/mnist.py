"""MNIST as in the experiment of FedAvg (McMahan et al. 2017): 100 clients, two digits each.

fedjax-lab data get mnist
python -m fedjax_lab.main --config=configs/mnist.py
python -m fedjax_lab.main --config=configs/mnist.py:fedprox --config.partition.name=iid

Ten clients a round make five passes with batches of ten. The paper tunes the learning rate.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "mnist"},
        "partition": {"name": "shards", "num_clients": 100},
        "model": {"name": "mcmahan_cnn"},
        "method": {"name": method},
        "local": {"lr": 0.05, "batch_size": 10, "epochs": 5},
        "run": {"rounds": 100, "cohort": 10, "eval_every": 10},
    }
