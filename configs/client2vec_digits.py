"""Client2Vec on the five digit domains: 50 clients, ten of each domain, a tenth of them a round.

python -m fedjax_lab.main --config=configs/client2vec_digits.py --config.method.base=fediir
python -m fedjax_lab.main --config=configs/client2vec_digits.py:fediir

The paper's DomainNet setting with a small model and, because it needs no CLIP weights, a substitute
for CLIP (embedding/stand_in.py). It shows whether the method works, but not the paper's numbers.
"""

from fedjax_lab.papers.published import CLIENT2VEC_BASES


def get_config(method="client2vec"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains"},
        "partition": {"name": "by_domain", "num_clients": 50},
        "model": {"name": "digit_cnn"},
        "method": {"name": method, **CLIENT2VEC_BASES.get(method, {})},
        "local": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-5, "batch_size": 64, "epochs": 5},
        "run": {"rounds": 100, "cohort": 5, "eval_every": 5},
    }
