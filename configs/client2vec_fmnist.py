"""Client2Vec on Fashion-MNIST: 100 clients of LDA with alpha = 0.1, a tenth of them a round.

python -m fedjax_lab.main --config=configs/client2vec_fmnist.py --config.method.base=fedavgm
python -m fedjax_lab.main --config=configs/client2vec_fmnist.py:fedavgm

The paper's CIFAR-10 setting with a small model and, because it needs no CLIP weights, a substitute
for CLIP (embedding/stand_in.py). It shows whether the method works, but not the paper's numbers.
"""

from fedjax_lab.papers.published import CLIENT2VEC_BASES


def get_config(method="client2vec"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "fashion_mnist"},
        "partition": {"name": "client_dirichlet", "num_clients": 100, "alpha": 0.1},
        "model": {"name": "simple_cnn"},
        "method": {"name": method, **CLIENT2VEC_BASES.get(method, {})},
        "local": {"lr": 0.01, "momentum": 0.0, "weight_decay": 5e-5, "batch_size": 64, "epochs": 5},
        "run": {"rounds": 100, "cohort": 10, "eval_every": 5},
    }
