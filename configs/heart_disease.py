"""FLamby's Fed-Heart-Disease (Ogier du Terrail et al., NeurIPS 2022): four hospitals, 740 patients.

python -m fedjax_lab.main --config=configs/heart_disease.py --config.data.folder=FOLDER

Logistic regression, fifteen rounds of 100 steps with four patients each. The paper tunes the
learning rate of each strategy.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "heart_disease"},
        "task": {"name": "binary"},
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"name": "mlp", "depth": 0},
        "method": {"name": method},
        "local": {"lr": 0.01, "batch_size": 4, "steps": 100},
        "run": {"rounds": 15, "eval_every": 5},
    }
