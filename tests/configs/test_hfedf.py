"""hFedF's configs for the digit domains: Table 10's settings, and the data without the target."""

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.configs import hfedf_digits, hfedf_pacs, hfedf_tuning
from fedjax_lab.data.sources.digit_domains import DOMAINS, digit_domains
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve

METHODS = "central", "local", "fedavg", "fedprox", "fedsr", "fedgma", "pfedhn", "hfedf"


def test_the_digits_have_the_settings_of_pacs():
    """Only the data, the network, embedding_dim and the number of clients differ."""
    for method in METHODS:
        digits = resolve(hfedf_digits.get_config(method))
        pacs = resolve(hfedf_pacs.get_config(method))
        assert digits.local == pacs.local
        dimension = {"embedding_dim": 1} if method == "hfedf" else {}
        assert digits.method.to_dict() == {**pacs.method.to_dict(), **dimension}
        assert digits.run.rounds == pacs.run.rounds == 200
        assert (digits.partition.num_clients, pacs.partition.num_clients) == (4, 3)


def test_hfedf_has_the_settings_of_table_10():
    config = resolve(hfedf_digits.get_config("hfedf"))
    assert (config.method.server_lr, config.local.lr, config.local.weight_decay) == (1e-3,) * 3
    assert (config.method.server_decay, config.method.ema) == (1e-5, 0.95)
    assert (config.local.batch_size, config.run.rounds, config.method.embedding_dim) == (64, 200, 1)


@pytest.mark.slow
def test_the_data_for_tuning_exclude_the_target_domain():
    whole = digit_domains(size=16, train_per_domain=400)
    made = hfedf_tuning.digit_domains_without(target="street", size=16, train_per_domain=400)
    assert made.domains == tuple(name for name in DOMAINS if name != "street")
    for name in made.domains:
        rows, where = made.domain == made.domains.index(name), whole.domain == DOMAINS.index(name)
        assert np.array_equal(made.x[rows], whole.x[where])
        assert np.array_equal(made.y[rows], whole.y[where])
        assert np.array_equal(made.test[rows], whole.test[where])
    assert len(made.y) == 4 * 900
    message = complaint(hfedf_tuning.digit_domains_without, target="stret")
    assert message.startswith("config.data.target") and "street" in message


def test_tuning_holds_out_another_domain_for_each_target():
    assert set(hfedf_tuning.HELD_OUT) == set(hfedf_tuning.HELD_OUT.values()) == set(DOMAINS)
    assert all(target != held_out for target, held_out in hfedf_tuning.HELD_OUT.items())
    config = resolve(hfedf_tuning.get_config("fedprox"))
    simulation = experiment.build(config, [0]).simulation
    (federation,) = simulation.federations
    assert len(federation.unseen) == 900 and config.data.unseen == "street"
    assert len(federation.train.count) == 3
