"""Client2Vec's experiment on DomainNet (Guo et al., ICCV 2025): 60 clients, ten of each domain.

python -m fedjax_lab.main --config=configs/client2vec_domainnet.py --config.method.base=fediir \
    --config.embedding.name=clip --config.model.pretrained=mobilenet_v2.safetensors \
    --config.data.normalize=imagenet

The data are 50 of the 345 classes, as images of 64 x 64 pixels for the model (CLIP gets the
original files). The paper's other models are --config.model.name=resnet18
--config.model.stem=imagenet --config.model.pretrained=FILE, and --config.model.name=cct7, trained
from scratch. FedIIR's ema is 0.95, 0.5 or 0.1. All else is as in client2vec_cifar10.py. Without
pretrained weights the experiment runs, but differs from the paper's.
"""

from fedjax_lab.papers.published import CLIENT2VEC_BASES


def get_config(method="client2vec"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "domainnet_full"},
        "partition": {"name": "by_domain", "num_clients": 60},
        "model": {"name": "mobilenet_v2"},
        "method": {"name": method, **CLIENT2VEC_BASES.get(method, {})},
        "local": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-5, "batch_size": 64, "epochs": 5},
        "run": {"rounds": 100, "cohort": 6, "eval_every": 1},
    }
