"""FedPick's experiment on Digits-Five (Zhu et al.), on the five generated digit domains.

python -m fedjax_lab.main --config=configs/fedpick_digits.py:fedrep --seeds=0,1,2,3,4

One client per domain, one local epoch, 300 rounds, every round scored. The paper reports each
domain's best test accuracy over the rounds: compare `max_per_domain`, which is chosen on the test
set. The model is digit_cnn instead of the paper's model with 18 million parameters. The latter is
--config.model.name=fedbn_cnn, whose head has three dense layers (--config.method.head_layers=3).
--config.data.name=digits_five --config.data.folder=FOLDER runs on the real Digits-Five.
"""

# The head of FedPer, FedPick and FedRep consists of all dense layers, that of LG-FedAvg of the last
# layer.
SETTINGS = {
    "fedper": {"head_layers": 2},
    "fedpick": {"head_layers": 2, "tau": 10.0, "lam_lce": 10.0, "lam_dis": 10.0},
    "fedrep": {"head_layers": 2, "head_epochs": 4, "body_epochs": 1},
}


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains", "size": 32, "normalize": "half"},
        "partition": {"name": "by_domain", "num_clients": 5},
        "model": {"name": "digit_cnn"},
        "method": {"name": method, **SETTINGS.get(method, {})},
        "local": {"lr": 0.01, "momentum": 0.5, "batch_size": 64, "epochs": 1},
        "run": {"rounds": 300, "eval_every": 1},
    }
