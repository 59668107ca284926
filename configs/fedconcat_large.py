"""FedConcat's Table 3 (Diao et al., AAAI 2024): ResNet-50, 200 clients, 20 % of them a round.

python -m fedjax_lab.main --config=configs/fedconcat_large.py:fedconcat
python -m fedjax_lab.main --config=configs/fedconcat_large.py:fedavg \
    --config.data.name=tiny_imagenet --config.data.normalize=half

The default data are CIFAR-100. The four partitions are #C=2 (the default), #C=3
(--config.partition.classes=3), Dir(0.1) and Dir(0.5) (--config.partition.name=dirichlet
--config.partition.alpha=0.1). The paper's weight decay for FedConcat's encoders is 1e-3 for #C
(the default), 2e-3 for Dir on Tiny-ImageNet, and on CIFAR-100 2e-3 for Dir(0.1) and 5e-3 for
Dir(0.5): use --config.method.encoder_decay=1.99e-3 or 4.99e-3, which is added to the weight decay
of 1e-5 of all methods. A larger weight decay helps most methods; for a fair comparison try 1e-5,
1e-3, 2e-3, 5e-3 and 1e-2 with each (--config.local.weight_decay).
"""

FEDCONCAT = {
    "num_clusters": 2,
    "encoder_rounds": 480,
    "classifier_rounds": 500,
    "balanced": True,
    "classifier_init": "clusters",
    "encoder_decay": 9.9e-4,
}
SETTINGS = {
    "fedconcat": FEDCONCAT,
    "fedconcat_id": FEDCONCAT,
    "scaffold": {"weights": "size"},  # as in NIID-Bench
}


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "cifar100", "augment": "cifar100", "normalize": "cifar100"},
        "partition": {"name": "classes_per_client", "num_clients": 200, "classes": 2},
        "model": {"name": "resnet50"},
        "method": {"name": method, **SETTINGS.get(method, {})},
        "local": {
            "lr": 0.01,
            "momentum": 0.9,
            "weight_decay": 1e-5,
            "batch_size": 64,
            "epochs": 10,
        },
        "run": {"rounds": 500, "cohort": 40, "eval_every": 50},
    }
