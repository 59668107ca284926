"""hFedF's experiment on PACS (Bartholet et al. 2024, arXiv 2402.06974): an unseen domain.

python -m fedjax_lab.main --config=configs/hfedf_pacs.py:fedavg --seeds=0,1,2
python -m fedjax_lab.paper hfedf table2

Each of three clients holds `domains` of the three other domains (Algorithm 5). A tenth of every
client's images is for validation (`id`), and all images of the unseen domain are for testing
(`ood`). The result is that of the last of 200 rounds. The first command runs the table's cell
"photo, d = 1", for which the paper reports id 67.3 and ood 57.8 for FedAvg. The second command runs
all four unseen domains with d = 1, 2, 3. The configs for the paper's other data sets are
hfedf_vlcs.py and hfedf_office_home.py.

The paper does not name the clients' optimizer; its grid of learning rates is typical of Adam, which
is used here. Images have 32x32 pixels from 0 to 1, without augmentation. `local` and `central` have
FedAvg's settings. The settings of methods are in SETTINGS; all others have their defaults.
"""

# Table 10: learning rate and weight decay of the clients.
LOCAL = {
    "fedsr": (1e-3, 1e-5),
    "hfedf": (1e-3, 1e-3),
    "pfedhn": (1e-3, 1e-5),
}
OTHERS = (1e-3, 1e-4)
# The paper's FedGMA has a server step size of 1.
SETTINGS = {
    "fedgma": {"tau": 0.7},
    "fedprox": {"mu": 1e-2},
    "fedsr": {"l2r": 0.1},
    "hfedf": {"server_lr": 1e-3, "server_decay": 1e-5, "ema": 0.95},
    "pfedhn": {"server_lr": 1e-2, "server_decay": 1e-3},
}


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    lr, weight_decay = LOCAL.get(method, OTHERS)
    return {
        "data": {"name": "pacs", "unseen": "photo"},
        "partition": {
            "name": "domains_per_client",
            "num_clients": 3,
            "domains": 1,
            "validation": 0.1,
        },
        "model": {"name": "hfedf_cnn"},
        "method": {"name": method, **SETTINGS.get(method, {})},
        "local": {
            "optimizer": "adam",
            "lr": lr,
            "weight_decay": weight_decay,
            "batch_size": 64,
            "epochs": 2,
        },
        "run": {"rounds": 200, "eval_every": 5},
    }
