"""What TPU chips send in a round of FedAvg, with each transform: only as much as it needs."""

from collections import Counter
from typing import NamedTuple

import absent
import hlo
import optional
import pytest
from slow_cases import in_ci

from fedjax_lab import tree
from fedjax_lab.experiment import registry, transforming

pytestmark = [pytest.mark.compilers, pytest.mark.usefixtures("as_users_compile")]

CLIENTS = 8  # all of them in each round, two on a chip


class Sent(NamedTuple):
    """What a chip sends in the collectives of a round, in models; `gathered`: what it receives."""

    summed: float = 1  # all-reduce
    gathered: float = 0  # all-gather
    exchanged: float = 0  # all-to-all


SENT = {  # all other transforms send what FedAvg sends
    # One sum over the clients for each iteration, then FedAvg's sum.
    "centered_clipping": Sent(3 + 1),
    "geometric_median": Sent(5 + 1),
    # The mean, or the mean and variance, that the attackers know; then FedAvg's sum.
    "inner_product": Sent(1 + 1),
    "little_is_enough": Sent(2 + 1),
    # Chips exchange their clients' values to sort each coordinate, twice there and once back.
    "median": Sent(2, exchanged=3 * CLIENTS / 4),
    "trimmed_mean": Sent(2, exchanged=3 * CLIENTS / 4),
    # Each chip receives the updates of all clients, to compute the distances of all pairs.
    "krum": Sent(2, gathered=CLIENTS),
    "multi_krum": Sent(2, gathered=CLIENTS),
    "bulyan": Sent(3, gathered=CLIENTS, exchanged=2 * 3 * CLIENTS / 4),  # and sorts twice
    # It sends what FedAvg sends, but the server's state, with the last noise, is twice as large.
    "banded": Sent(1 / 2),
    # The sum of the words. Its mean needs no other sum, since every chip knows the shares.
    "secure_sum": Sent(1),
}

SMALL = 0.02  # of a model: numbers sent for each client, such as its number of examples


def sent_in_a_round(folder, clients=CLIENTS, **sections):
    """The bytes of each kind of collective in a round with a wide MLP and all clients, in models.

    With correlated noise half of the clients are in a round, because clients take turns.
    """
    sections["model"] = {"name": "mlp", "width": 4096}
    sections["partition"] = {"name": "iid", "num_clients": clients}
    if "bands" in sections.get("privacy", {}):
        sections["run"] = {"cohort": clients // 2}
    (engine,) = absent.engines(absent.config_of(folder, **sections), absent.devices("tpu"))
    (programs,) = engine.lower().values()
    cost = hlo.cost(programs.play.compile().as_text(), lambda depth: 1)
    size = tree.num_bytes(engine.states[0].server)
    return Counter({kind: sent / size for kind, sent in cost.collectives.items()})


def check_sent(sent, expected):
    kinds = sent["all-reduce"], sent["all-gather"], sent["all-to-all"]
    assert kinds == pytest.approx(expected, rel=0.05, abs=SMALL)
    assert sum(sent.values()) - sum(kinds) < SMALL


def test_a_plain_round_sends_little_more_than_the_model(tmp_path):
    sent = sent_in_a_round(tmp_path)
    assert 1 <= sum(sent.values()) <= 1.1


TRANSFORMS = [
    (name, section)
    for section in transforming.TRANSFORMS
    for name in registry.NAMED[section]
    if name not in ("none", "backdoor")  # backdoor needs images; otherwise it is like others
]
# These are like centered_clipping, inner_product, krum and median.
ALIKE = {"bulyan", "geometric_median", "little_is_enough", "multi_krum", "trimmed_mean"}


@pytest.mark.parametrize(("name", "section"), in_ci({*SENT, "top_k"} - ALIKE, TRANSFORMS))
def test_chips_send_no_more_than_the_transform_needs(tmp_path, name, section):
    wrapped = {"name": name}
    if section == "privacy":
        optional.module("dp_accounting")
        wrapped["noise"] = 0.1
    if name == "banded":
        wrapped["bands"] = 2
    if section == "compression":
        wrapped["error_feedback"] = False  # the next test has the residuals
    sent = sent_in_a_round(tmp_path, **{section: wrapped})
    check_sent(sent, SENT.get(name, Sent()))


def test_residuals_stored_on_every_chip_are_gathered(tmp_path):
    """In a small federation each chip stores all clients' residuals and receives the new ones."""
    sent = sent_in_a_round(tmp_path, compression={"name": "sign"})
    check_sent(sent, Sent(gathered=CLIENTS))


@pytest.mark.parametrize(
    ("name", "most"), in_ci(["random_k"], [("random_k", 3), ("qsgd", 1 + SMALL)])
)
def test_a_cohort_not_divisible_by_the_chips_is_not_gathered(tmp_path, name, most):
    """random_k draws the positions again, which takes a few numbers for each value sent."""
    sent = sent_in_a_round(tmp_path, clients=6, compression={"name": name})
    assert sum(sent.values()) < most
