"""Every transform compiles for four TPU chips, and what the chips then send is what it needs.

Needs libtpu (the extra aot-tpu), no device.
"""

from collections import Counter
from typing import NamedTuple

import absent
import hlo
import pytest
import targets

from fedjax_lab import tree

pytestmark = [
    pytest.mark.compilers,
    pytest.mark.skipif(not targets.installed("v5e:2x2"), reason="libtpu is not installed"),
]

CLIENTS = 8  # all of them in each round, two on a chip


class Sent(NamedTuple):
    """What a chip puts into the collectives of a round, in models; of `gathered` what it gets."""

    summed: float = 1  # all-reduce
    gathered: float = 0  # all-gather
    exchanged: float = 0  # all-to-all


SENT = {  # the others send what FedAvg sends
    # A sum over the clients for each iteration, then FedAvg's.
    "centered_clipping": Sent(3 + 1),
    "geometric_median": Sent(5 + 1),
    # The mean, or the mean and the variance, that attackers know.
    "inner_product": Sent(1 + 1),
    "little_is_enough": Sent(2 + 1),
    # To sort by coordinate the chips exchange their clients' values, twice there and once back.
    "median": Sent(2, exchanged=3 * CLIENTS / 4),
    "trimmed_mean": Sent(2, exchanged=3 * CLIENTS / 4),
    # For the distances of all pairs each chip gets everybody's update.
    "krum": Sent(2, gathered=CLIENTS),
    "multi_krum": Sent(2, gathered=CLIENTS),
    # What FedAvg sends; the server also keeps the last noise, so that it is as large as two models.
    "banded": Sent(1 / 2),
    # Three sums as large as the model, words and masks among them.
    "secure_sum": Sent(2 + 1),
}

# What clients keep, such as the residuals of error feedback, stays where they train.
ON_ITS_CHIP = {"state": "sharded", "data": "sharded", "sampling": "device"}
SMALL = 0.02  # of a model: what is sent for each client, such as its number of examples


@pytest.fixture(scope="module")
def chips(as_users_compile):
    return targets.topology("v5e:2x2", 4)


def sent_in_a_round(folder, chips, clients=CLIENTS, **sections):
    """Bytes by kind of collective in a round of FedAvg, in models."""
    engine = absent.fedavg_with(folder, chips, clients, **sections)
    (programs,) = engine.lower().values()
    cost = hlo.cost(programs.play.compile().as_text(), lambda depth: 1)
    size = tree.num_bytes(engine.states[0].server)
    return Counter({kind: sent / size for kind, sent in cost.collectives.items()})


def check_sent(sent, expected):
    kinds = sent["all-reduce"], sent["all-gather"], sent["all-to-all"]
    assert kinds == pytest.approx(expected, rel=0.05, abs=SMALL)
    assert sum(sent.values()) - sum(kinds) < SMALL


@pytest.mark.parametrize(("section", "name", "settings"), absent.transforms())
def test_no_more_is_sent_than_a_transform_needs(tmp_path, chips, section, name, settings):
    if section == "privacy":
        pytest.importorskip("dp_accounting")
    engine = {} if section == "privacy" else ON_ITS_CHIP  # its cohorts are drawn from everybody
    wrapped = {section: {"name": name, **settings}}
    sent = sent_in_a_round(tmp_path, chips, engine=engine, **wrapped)
    check_sent(sent, SENT.get(name, Sent()))


def test_what_clients_keep_on_every_chip_is_gathered_as_the_private_state_of_a_method(
    tmp_path, chips
):
    """A small federation: each chip has the residuals of all clients, and gets the new ones."""
    sent = sent_in_a_round(tmp_path, chips, compression={"name": "sign"})
    check_sent(sent, Sent(gathered=CLIENTS))


@pytest.mark.parametrize("name", ["random_k", "qsgd"])
def test_a_cohort_that_the_chips_do_not_divide_is_not_gathered_to_be_read(tmp_path, chips, name):
    """The places of a random k are drawn again: a few numbers for each that was sent."""
    sent = sent_in_a_round(tmp_path, chips, clients=6, compression={"name": name})
    assert sum(sent.values()) < (3 if name == "random_k" else 1 + SMALL)
