"""Client2Vec's experiment on DomainNet (Guo et al., ICCV 2025): 60 clients, ten of each domain.

python -m fedjax_lab.main --config=configs/client2vec_domainnet.py --config.method.base=fediir \
    --config.embedding.name=clip --config.model.pretrained=mobilenet_v2.safetensors \
    --config.data.normalize=imagenet

50 of the 345 classes, images of 64 x 64 pixels for the model (CLIP sees the original files). Also
--config.model.name=resnet18 --config.model.stem=imagenet --config.model.pretrained=FILE and
--config.model.name=cct7, from scratch. FedIIR's ema is 0.95, 0.5 or 0.1. Otherwise as
client2vec_cifar10.py; the table without pretrained weights runs, but is not the paper's.
"""

from fedjax_lab.analysis.published import CLIENT2VEC_BASES


def get_config(method="client2vec"):
    """fedjax_lab/config.py has all keys and their defaults."""
    return {
        "data": {"name": "domainnet_full"},
        "partition": {"name": "by_domain", "num_clients": 60},
        "model": {"name": "mobilenet_v2"},
        "method": {"name": method, **CLIENT2VEC_BASES.get(method, {})},
        "local": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-5, "batch_size": 64, "epochs": 5},
        "run": {"rounds": 100, "cohort": 6, "eval_every": 1},
    }
