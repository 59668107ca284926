"""FedC2I's experiment on Digit-5 (arXiv:2410.03315), on the five generated digit domains.

python -m fedjax_lab.main --config=configs/fedc2i_digits.py:fedrod --seeds=0,1,2

One client per domain with 100 images per class, two local epochs of Adam, 20 rounds. The paper
scores the models after the last round (compare `last`): the global model for FedAvg and FedProx,
the locally trained model for Local and FedProto, the shared body with the client's head for FedRep,
and both heads for FedRoD. Its images have 64x64 pixels; with --config.data.size=64 the LeNet has
the paper's 4,336,906 parameters. The default of 32x32 is fast enough for two CPU cores.
For the real Digits-Five use --config.data.name=digits_five --config.data.sampling=fedc2i
--config.data.size=64 --config.data.folder=FOLDER.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
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
