"""FedC2I's experiment on Office-Caltech-10 (arXiv:2410.03315), in FedBN's split (to download).

python -m fedjax_lab.main --config=configs/fedc2i_office.py:fedrod --seeds=0,1,2

One client per site with 20 images per class, two local epochs of Adam, 40 rounds. The paper scores
the models after the last round (compare `last`): the global model for FedAvg and FedProx, the
locally trained model for Local and FedProto, the shared body with the client's head for FedRep, and
both heads for FedRoD. Its images have 64x64 pixels from 0 to 1; at that size the LeNet has the
paper's 4,336,906 parameters.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "office_caltech", "size": 64, "sampling": "fedc2i"},
        "partition": {"name": "by_domain", "num_clients": 4},
        "model": {"name": "lenet"},
        "method": {"name": method},
        "local": {"optimizer": "adam", "lr": 1e-3, "batch_size": 32, "epochs": 2},
        "run": {"rounds": 40, "eval_every": 5},
    }
