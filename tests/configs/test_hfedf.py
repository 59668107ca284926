"""hFedF's setting on the digit domains: Table 10's numbers, and the data without the target."""

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab import experiment
from fedjax_lab.config import resolve
from fedjax_lab.configs import hfedf_digits, hfedf_pacs, hfedf_tuning
from fedjax_lab.data.digit_domains import DOMAINS, digit_domains

METHODS = "central", "local", "fedavg", "fedprox", "fedsr", "fedgma", "pfedhn", "hfedf"


@pytest.mark.parametrize("method", METHODS)
def test_the_digits_have_the_settings_of_pacs(method):
    """Table 10's: all that differs is the data, the net, and how many clients there are."""
    here, there = resolve(hfedf_digits.get_config(method)), resolve(hfedf_pacs.get_config(method))
    assert here.local == there.local
    assert here.method.to_dict() == {
        **there.method.to_dict(),
        **({"embedding_dim": 1} if method == "hfedf" else {}),
    }
    assert here.run.rounds == there.run.rounds == 200
    assert (here.partition.num_clients, there.partition.num_clients) == (4, 3)


def test_hfedf_has_the_numbers_of_table_10():
    config = resolve(hfedf_digits.get_config("hfedf"))
    assert (config.method.server_lr, config.local.lr, config.local.weight_decay) == (1e-3,) * 3
    assert (config.method.server_decay, config.method.ema) == (1e-5, 0.95)
    assert (config.local.batch_size, config.run.rounds, config.method.embedding_dim) == (64, 200, 1)


@pytest.mark.parametrize("target", ["handwritten", "street"])
def test_the_target_is_not_in_the_data_of_a_choice(target):
    whole = digit_domains(size=16, train_per_domain=400)
    made = hfedf_tuning.digit_domains_without(target=target, size=16, train_per_domain=400)
    assert made.domains == tuple(name for name in DOMAINS if name != target)
    for name in made.domains:
        here, there = made.domain == made.domains.index(name), whole.domain == DOMAINS.index(name)
        assert np.array_equal(made.x[here], whole.x[there])
        assert np.array_equal(made.y[here], whole.y[there])
        assert np.array_equal(made.test[here], whole.test[there])
    assert len(made.y) == 4 * 900


def test_an_unknown_target_is_named():
    said = complaint(hfedf_tuning.digit_domains_without, target="stret")
    assert said.startswith("config.data.target") and "street" in said


def test_each_target_has_another_domain_in_its_place():
    assert set(hfedf_tuning.HELD_OUT) == set(hfedf_tuning.HELD_OUT.values()) == set(DOMAINS)
    assert all(target != held_out for target, held_out in hfedf_tuning.HELD_OUT.items())
    config = resolve(hfedf_tuning.get_config("fedprox"))
    simulation = experiment.build(config, [0]).simulation
    (federation,) = simulation.federations
    assert len(federation.unseen) == 900 and config.data.unseen == "street"
    assert len(federation.train.count) == 3
