"""hFedF's setting (an unseen domain) on the generated digit domains, small enough for two cores.

python -m fedjax_lab.main --config=configs/hfedf_digits.py:fedprox --config.data.unseen=street
python launch/measure.py hfedf --cells='d1/fedavg/*'

One of the five domains is held by no client. The other four are divided among four clients, with
`domains` domains each (Algorithm 5). `id` is the accuracy on a tenth of each client's examples,
`ood` the accuracy on all examples of the unseen domain. The result is that of the last of 200
rounds. The images and the model are smaller than the paper's, which would be
--config.data.size=32 --config.model.name=hfedf_cnn.

Every method has the settings of column PACS of the paper's Table 10, without further tuning
(hfedf_tuning.py is for tuning). The clients' optimizer, which the paper does not name, is Adam.
hFedF's embeddings have one dimension, as in the main results of the paper; its rule
floor(1 + N / 4) would give two dimensions for four clients, which pFedHN has here.
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
    "hfedf": {"server_lr": 1e-3, "server_decay": 1e-5, "ema": 0.95, "embedding_dim": 1},
    "pfedhn": {"server_lr": 1e-2, "server_decay": 1e-3},
}


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    lr, weight_decay = LOCAL.get(method, OTHERS)
    return {
        "data": {
            "name": "digit_domains",
            "size": 16,
            "train_per_domain": 400,
            "unseen": "printed",
        },
        "partition": {
            "name": "domains_per_client",
            "num_clients": 4,
            "domains": 1,
            "validation": 0.1,
        },
        "model": {"name": "simple_cnn"},
        "method": {"name": method, **SETTINGS.get(method, {})},
        "local": {
            "optimizer": "adam",
            "lr": lr,
            "weight_decay": weight_decay,
            "batch_size": 64,
            "epochs": 2,
        },
        "run": {"rounds": 200, "eval_every": 10},
    }
