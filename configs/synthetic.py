"""Synthetic(1, 1) of FedProx (Li et al., MLSys 2020): 30 users, logistic regression.

python -m fedjax_lab.main --config=configs/synthetic.py:fedavg --seeds=0,1,2,3,4
python -m fedjax_lab.main --config=configs/synthetic.py:fedprox --seeds=0,1,2,3,4
python -m fedjax_lab.main --config=configs/synthetic.py:fedavg --config.run.dropout=0.9
python -m fedjax_lab.main --config=configs/synthetic.py:fedprox --config.run.straggler=0.9

The settings are those of the paper and of its code. Of the clients of a round, 90 % may be too slow
to make all 20 passes: FedAvg drops them (run.dropout), FedProx takes what they have done
(run.straggler). Here each client is slow by chance, there it is nine of ten in every round.
"""

SETTINGS = {"fedprox": {"mu": 1.0}}  # the best of 0.001, 0.01, 0.1 and 1 in the paper


def get_config(method="fedavg"):
    """fedjax_lab/config.py has all keys and their defaults."""
    return {
        "data": {"name": "synthetic", "alpha": 1.0, "beta": 1.0},
        "partition": {"name": "by_client"},
        "model": {"name": "mlp", "depth": 0},
        "method": {"name": method, **SETTINGS.get(method, {})},
        "local": {"lr": 0.01, "batch_size": 10, "epochs": 20},
        "run": {"rounds": 200, "cohort": 10, "eval_every": 5},
    }
