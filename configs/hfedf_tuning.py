"""hFedF's setting without the unseen domain, to choose learning rates without looking at it.

python -m fedjax_lab.main --config=configs/hfedf_tuning.py:fedavg --config.local.lr=3e-3

The domain `data.target` is removed from the data. One of the remaining four domains replaces it: no
client holds that domain, and `ood` is the accuracy on it. The learning rate with the highest `ood`
is used in hfedf_digits.py with data.unseen=TARGET. The other three domains go to three clients.
HELD_OUT says which domain is held out for which target: the next one in the data's order.
"""

import numpy as np

from fedjax_lab.configs import hfedf_digits
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.sources.digit_domains import DOMAINS, digit_domains
from fedjax_lab.errors import check_choice

HELD_OUT = dict(zip(DOMAINS, (*DOMAINS[1:], DOMAINS[0]), strict=True))  # by target


def digit_domains_without(
    *, target: str = "printed", size: int = 28, train_per_domain: int = 1000
) -> Dataset:
    """The digit domains but one, whose pictures are the same as with it.

    target: the domain that is taken out. size, train_per_domain: as in `digit_domains`.
    """
    check_choice("data.target", target, DOMAINS)
    data = digit_domains(size=size, train_per_domain=train_per_domain)
    kept = tuple(name for name in DOMAINS if name != target)
    rows = data.domain != DOMAINS.index(target)
    domain = np.array([kept.index(name) if name in kept else -1 for name in DOMAINS], np.int32)
    return data._replace(
        x=data.x[rows],
        y=data.y[rows],
        domain=domain[data.domain[rows]],
        test=data.test[rows],
        domains=kept,
    )


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    config = hfedf_digits.get_config(method)
    target = config["data"]["unseen"]
    config["data"] |= {
        "name": "fedjax_lab.configs.hfedf_tuning:digit_domains_without",
        "target": target,
        "unseen": HELD_OUT[target],
    }
    config["partition"]["num_clients"] = 3
    return config
