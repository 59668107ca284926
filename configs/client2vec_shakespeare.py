"""Client2Vec's experiment on Shakespeare (Guo et al., ICCV 2025): LEAF's roles, the next character.

python -m fedjax_lab.main --config=configs/client2vec_shakespeare.py \
    --config.partition.num_clients=USERS --config.run.cohort=USERS/10

Each client is a role, and LEAF's sample determines their number; for a wrong number the error
message states the right one. Both parts of the client index are computed from texts ("The next
character of ...", "Character a").
"""

from fedjax_lab.papers.published import CLIENT2VEC_BASES


def get_config(method="client2vec"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "shakespeare"},
        "partition": {"name": "by_domain", "num_clients": 100},
        "model": {"name": "char_lstm"},
        "method": {"name": method, **CLIENT2VEC_BASES.get(method, {})},
        "local": {"lr": 0.01, "momentum": 0.0, "weight_decay": 5e-5, "batch_size": 64, "epochs": 5},
        "run": {"rounds": 100, "cohort": 10, "eval_every": 1},
    }
