"""Synthetic(1, 1) of FedProx (Li et al., MLSys 2020): 30 users, logistic regression.

python -m fedjax_lab.main --config=configs/synthetic.py:fedavg --seeds=0,1,2,3,4
python -m fedjax_lab.main --config=configs/synthetic.py:fedprox --seeds=0,1,2,3,4
python -m fedjax_lab.main --config=configs/synthetic.py:fedavg --config.run.dropout=0.9
python -m fedjax_lab.main --config=configs/synthetic.py:fedprox --config.run.straggler=0.9

The settings are those of the paper and of its code. In the last two commands, clients are too slow
for all 20 passes with a probability of 90 %: FedAvg drops them (run.dropout), and FedProx uses
their partial work (run.straggler). In the paper exactly nine of the ten clients of every round are
slow; here each client is slow by chance.
"""

SETTINGS = {"fedprox": {"mu": 1.0}}  # the best of 0.001, 0.01, 0.1 and 1 in the paper


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "synthetic", "alpha": 1.0, "beta": 1.0},
        "partition": {"name": "by_client"},
        "model": {"name": "mlp", "depth": 0},
        "method": {"name": method, **SETTINGS.get(method, {})},
        "local": {"lr": 0.01, "batch_size": 10, "epochs": 20},
        "run": {"rounds": 200, "cohort": 10, "eval_every": 5},
    }
