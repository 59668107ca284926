"""hFedF's setting (an unseen domain) on the embedded digit domains, small enough for two cores.

python -m fedjax_lab.main --config=configs/hfedf_digits.py:fedprox --config.data.unseen=street
python launch/domain_generalisation.py --config=configs/hfedf_digits.py --out=runs/digits \
    --methods=local,fedavg --domains=1,2

One of the five domains is held by nobody; the other four go to four clients, `domains` to each
(Algorithm 5). `id` is the accuracy on a tenth of each client's examples, `ood` that on all of the
unseen domain. The net has a quarter of the paper's width.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains", "size": 32, "unseen": "printed"},
        "partition": {
            "name": "domains_per_client",
            "num_clients": 4,
            "domains": 1,
            "validation": 0.1,
        },
        "model": {"name": "hfedf_cnn", "width": 8},
        "method": {"name": method},
        "local": {
            "optimizer": "adam",
            "lr": 1e-3,
            "weight_decay": 1e-4,
            "batch_size": 32,
            "epochs": 2,
        },
        "run": {"rounds": 30, "eval_every": 5},
    }
