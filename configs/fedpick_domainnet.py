"""FedPick's experiment on DomainNet (Zhu et al.), ten classes in FedBN's split (to download).

python -m fedjax_lab.main --config=configs/fedpick_domainnet.py:fedrep --seeds=0,1,2,3,4

One client per domain with 500 images, one local epoch, 300 rounds, every round scored; LG-FedAvg
starts with 20 rounds of full averaging. The paper reports each domain's best test accuracy over the
rounds: compare `max_per_domain`, which is chosen on the test set. The head of a model is its last
layer.
"""

SETTINGS = {
    "fedprox": {"mu": 0.01},
    "fedrep": {"head_epochs": 4, "body_epochs": 1},
    "lg_fedavg": {"pretrain_rounds": 20},
}


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "domainnet", "augment": "office"},
        "partition": {"name": "by_domain", "num_clients": 6},
        "model": {"name": "alexnet_bn"},
        "method": {"name": method, **SETTINGS.get(method, {})},
        "local": {"lr": 0.01, "momentum": 0.5, "batch_size": 64, "epochs": 1},
        "run": {"rounds": 300, "eval_every": 1},
    }
