"""Five clients, one digit domain each; the first thing to run. Under a minute on two cores.

python -m fedjax_lab.main --config=configs/quickstart.py
python -m fedjax_lab.main --config=configs/quickstart.py:client2vec

Client2Vec finds its index in 20 epochs on embeddings of 64 numbers, instead of the paper's 500
epochs on 512, which take ten minutes before the first round. A loss weight of 5, the paper's, would
drown the classification loss here: local_weight is 0.02.
"""

METHOD = {"client2vec": {"index_epochs": 20, "local_weight": 0.02}}
EMBEDDING = {"client2vec": {"size": 64}}


def get_config(method="fedavg"):
    """fedjax_lab/experiment.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains"},
        "partition": {"name": "by_domain", "num_clients": 5, "validation": 0.1},
        "model": {"name": "digit_cnn"},
        "embedding": EMBEDDING.get(method, {}),
        "method": {"name": method, **METHOD.get(method, {})},
        "local": {"lr": 0.03, "momentum": 0.9, "batch_size": 32, "epochs": 1},
        "run": {"rounds": 20, "eval_every": 2},
    }
