"""hFedF's experiment on PACS (Bartholet et al. 2024, arXiv 2402.06974): an unseen domain.

python -m fedjax_lab.main --config=configs/hfedf_pacs.py:fedavg --seeds=0,1,2
python launch/domain_generalization.py --config=configs/hfedf_pacs.py --out=runs/pacs \
    --methods=local,fedavg,fedprox

Three clients hold `domains` of the three other domains each (Algorithm 5), a tenth of every
client's images is for validation (`id`), all of the unseen domain is the test (`ood`); 200 rounds,
the last one counts. The first command is the cell "photo, d = 1", published for FedAvg: id 67.3,
ood 57.8. The second makes all four targets and d = 1, 2, 3. The other data sets are hfedf_vlcs.py
and hfedf_office_home.py.

The paper does not name the clients' optimizer; its grid of learning rates is Adam's. Images are
32x32 in 0..1, not augmented. `local` and `central` take FedAvg's settings.
What the methods themselves are told is in SETTINGS, otherwise their defaults.
"""

# Table 10: learning rate and weight decay of the clients.
LOCAL = {
    "fedsr": (1e-3, 1e-5),
    "hfedf": (1e-3, 1e-3),
    "pfedhn": (1e-3, 1e-5),
}
OTHERS = (1e-3, 1e-4)
# The paper's FedGMA makes steps of 1.
SETTINGS = {
    "fedgma": {"tau": 0.7},
    "fedprox": {"mu": 1e-2},
    "fedsr": {"l2r": 0.1},
    "hfedf": {"server_lr": 1e-3, "server_decay": 1e-5, "ema": 0.95},
    "pfedhn": {"server_lr": 1e-2, "server_decay": 1e-3},
}


def get_config(method="fedavg"):
    """fedjax_lab/config.py has all keys and their defaults."""
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
