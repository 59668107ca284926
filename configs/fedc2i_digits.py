"""FedC2I's experiment on Digit-5 (arXiv:2410.03315), on the five embedded digit domains.

python -m fedjax_lab.main --config=configs/fedc2i_digits.py:fedrod --seeds=0,1,2

One client per domain with 100 images a class, two local epochs of Adam, 20 rounds. The paper scores
the last round: compare `last`. Its images are 64x64 (--config.data.size=64 makes the LeNet its
4,336,906 parameters); at 32x32, for two cores, the net is FedProto's of 797,962.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment.py has all keys and their defaults."""
    return {
        "data": {
            "name": "digit_domains",
            "size": 32,
            "train_per_domain": 1000,
            "test_per_domain": 2000,
            "normalize": "half",
        },
        "partition": {"name": "by_domain", "num_clients": 5},
        "model": {"name": "lenet"},
        "method": {"name": method},
        "local": {"optimizer": "adam", "lr": 1e-3, "batch_size": 32, "epochs": 2},
        "run": {"rounds": 20, "eval_every": 5},
    }
