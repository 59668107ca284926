"""Five digit domains, one client each: generated data on which every method can run.

python -m fedjax_lab.main --config=configs/digit_domains.py:fedbn --seeds=0,1,2

The data are generated at the first use, without a download. They have the structure of Digits-Five:
the clients differ in the style of their images, not in their labels. The settings of some methods
are for 50 rounds, which are fewer than those of their papers.
"""

SETTINGS = {
    "fedcm": {"alpha": 0.5},
    "hfedf": {"server_lr": 0.01},
    "mime": {"beta": 0.2},
    "mimelite": {"beta": 0.2},
    "pfedhn": {"server_lr": 0.1},
}
# They have a momentum of the server's instead; in the long run one of 0.5 doubles the rate.
PLAIN_SGD = dict.fromkeys(("fedcm", "mime", "mimelite"), {"lr": 0.02, "momentum": 0.0})


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains"},
        "partition": {"name": "by_domain", "num_clients": 5, "validation": 0.1},
        "model": {"name": "digit_cnn"},
        "method": {"name": method, **SETTINGS.get(method, {})},
        "local": {
            **{"lr": 0.01, "momentum": 0.5, "batch_size": 32, "epochs": 1},
            **PLAIN_SGD.get(method, {}),
        },
        "run": {"rounds": 50, "eval_every": 5},
    }
