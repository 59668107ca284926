"""Five clients, one digit domain each: the first config to run. About a minute on two cores.

python -m fedjax_lab.main --config=configs/quickstart.py
python -m fedjax_lab.main --config=configs/quickstart.py:client2vec

Client2Vec trains its client index for 20 epochs on embeddings with 64 dimensions; the paper's 500
epochs on 512 dimensions take about ten minutes before the first round. With the paper's loss weight
of 5 the model does not learn within these few rounds; 0.02 was the best of five weights that were
tried with one seed.
"""

METHOD = {"client2vec": {"index_epochs": 20, "local_weight": 0.02}}
EMBEDDING = {"client2vec": {"size": 64}}


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains"},
        "partition": {"name": "by_domain", "num_clients": 5, "validation": 0.1},
        "model": {"name": "digit_cnn"},
        "embedding": EMBEDDING.get(method, {}),
        "method": {"name": method, **METHOD.get(method, {})},
        "local": {"lr": 0.03, "momentum": 0.9, "batch_size": 32, "epochs": 1},
        "run": {"rounds": 20, "eval_every": 2},
    }
