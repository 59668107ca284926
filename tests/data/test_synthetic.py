"""Tests the users of Synthetic(alpha, beta) and the distributions of their examples."""

from pathlib import Path

import numpy as np
import pytest
from inputs import complaint

import fedjax_lab
from fedjax_lab import experiment
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.data.partition import skew
from fedjax_lab.data.synthetic import synthetic
from fedjax_lab.federation import parts_of

CONFIG = Path(__file__).parents[2] / "configs" / "synthetic.py"


def of_user(data, user):
    return data.x[data.client == user], data.y[data.client == user]


def test_users_and_splits_follow_the_paper():
    data = synthetic()
    assert data.x.shape[1:] == (60,) and (data.x.dtype, data.y.dtype) == (np.float32, np.int32)
    assert len(data.users) == len(set(data.users)) == 30 and len(data.classes) == 10
    sizes, tests = np.bincount(data.client), np.bincount(data.client, data.test)
    assert sizes.min() >= 50
    assert tests.tolist() == [n - int(0.9 * n) for n in sizes.tolist()]


def test_sizes_are_log_normal_above_50():
    data = synthetic(num_users=400, dimension=1)
    logs = np.log(np.bincount(data.client) - 50 + 0.5)
    assert np.median(logs) == pytest.approx(4, abs=0.3) and logs.std() == pytest.approx(2, abs=0.3)


def test_inputs_have_the_covariance_of_the_paper():
    data = synthetic()
    x, _ = of_user(data, np.argmax(np.bincount(data.client)))
    covariance = np.cov(x, rowvar=False)
    assert np.diag(covariance) == pytest.approx(np.arange(1, 61) ** -1.2, rel=0.3)
    correlation = np.corrcoef(x, rowvar=False) - np.eye(60)
    assert np.abs(correlation).max() < 0.2


def test_beta_spreads_the_means_of_the_users_inputs():
    def means(**settings):
        data = synthetic(**settings)
        return np.array([of_user(data, k)[0].mean() for k in range(30)])  # about B_k

    assert means(beta=0.0).std() < 0.25
    assert means(beta=3.0).std() == pytest.approx(3, rel=0.35)
    assert np.abs(means(iid=True)).max() < 0.1


def emd(**settings):
    """Returns the distance of the users' label distributions from the overall one, 0 to 2."""
    data = synthetic(**settings)
    counts = np.zeros((30, 10), int)
    np.add.at(counts, (data.client, data.y), 1)
    return skew(counts).emd


def test_only_iid_users_have_the_same_classifier():
    assert emd(iid=True) < 0.4
    assert emd(alpha=0.0, beta=0.0) > 1  # the same distribution of inputs does not suffice


def test_alpha_changes_no_label():
    assert np.array_equal(synthetic(alpha=0.0).y, synthetic(alpha=5.0).y)


def test_users_depend_on_the_seed_but_not_on_their_number():
    few, many, other = synthetic(num_users=3), synthetic(num_users=9), synthetic(seed=1)
    for a, b in zip((few.x, few.y, few.test), (many.x, many.y, many.test), strict=True):
        assert np.array_equal(a, b[: len(a)])
    assert not np.array_equal(other.x[:50], few.x[:50])


@pytest.mark.parametrize("source", ["synthetic", "writers"])
def test_by_client_makes_one_client_per_user(source):
    given = {"data": {"name": source, "num_users": 4}, "partition": {"name": "by_client"}}
    config = resolve(given)
    data = experiment.load_data(config.data)
    (federation,) = experiment.deal_dataset(config, data, [0])
    for rows, test in ((federation.train, False), (federation.test, True)):
        of_users = [np.flatnonzero((data.client == k) & (data.test == test)) for k in range(4)]
        for held, expected in zip(parts_of(rows), of_users, strict=True):
            assert np.array_equal(np.sort(held), expected)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alpha": -1.0}, "config.data.alpha must be from 0 to 1,000,000"),
        ({"beta": -1.0}, "config.data.beta must be from 0 to 1,000,000"),
        ({"beta": 1e300}, "config.data.beta must be from 0 to 1,000,000"),
        ({"seed": -1}, "config.data.seed must not be negative"),
        ({"num_users": 0}, "config.data.num_users must be above 0"),
        ({"dimension": 0}, "config.data.dimension must be above 0"),
        ({"num_classes": 1}, "config.data.num_classes must be from 2 to 10,000"),
        ({"test_share": 1.0}, "config.data.test_share must be at least 0 and below 1"),
        ({"num_users": 2**31 - 1}, "num_users=2147483647 do not fit in memory"),
        ({"dimension": 2**31 - 1}, "num_users=30 do not fit in memory"),
    ],
)
def test_invalid_settings_are_named_in_the_error(settings, said):
    assert said in complaint(synthetic, **settings)


@pytest.mark.slow
def test_fedprox_has_a_lower_loss_than_fedavg_as_in_its_paper():
    """Figure 2 of the paper: the loss on Synthetic(1, 1) with mu = 1 is below that with mu = 0."""
    losses = {}
    for method in ("fedavg", "fedprox"):
        config = resolve(load_config(f"{CONFIG}:{method}"), [("run.rounds", "40")])
        result = fedjax_lab.run(config, seeds=[0, 1, 2], quiet=True)
        losses[method] = [row["global_loss"] for row in result.metrics if row["round"] == 40]
    assert max(losses["fedprox"]) < min(losses["fedavg"])
