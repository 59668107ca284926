"""Client2Vec's experiment on CIFAR-10 (Guo et al., ICCV 2025): 100 clients of LDA with alpha = 0.1.

python -m fedjax_lab.main --config=configs/client2vec_cifar10.py --config.method.base=fedavgm \
    --config.embedding.name=clip

Without --config.method.base, Client2Vec improves FedAvg. The settings local_training=False,
aggregation=False and sampling=False switch off its three case studies. The paper sweeps
sampling_tau over 0.1, 0.5, 1, 2; history_gamma over 0.1, 0.5, 0.9; FedAvgM's beta over 0.1, 0.5, 1;
and MOON's mu over 0.01, 0.1, 1 (with --config.method.projection=mlp256). It reports the best round:
compare `max_over_rounds`. The paper does not state whether the ResNet-18 is pretrained, nor its
normalization: this config trains from scratch with batch normalization; --config.model.norm=group
selects group normalization.
"""

from fedjax_lab.papers.published import CLIENT2VEC_BASES


def get_config(method="client2vec"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "cifar10"},
        "partition": {"name": "client_dirichlet", "num_clients": 100, "alpha": 0.1},
        "model": {"name": "resnet18"},
        "method": {"name": method, **CLIENT2VEC_BASES.get(method, {})},
        "local": {"lr": 0.01, "momentum": 0.0, "weight_decay": 5e-5, "batch_size": 64, "epochs": 5},
        "run": {"rounds": 100, "cohort": 10, "eval_every": 1},
    }
