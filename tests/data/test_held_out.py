"""Test examples that are drawn from data without a test set."""

from functools import partial

import numpy as np
import pytest
import toys
from inputs import complaint

from fedjax_lab.data import from_arrays
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.held_out import draw, with_test
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.running.storage import fingerprint

OWN = """
import numpy as np

from fedjax_lab.data.dataset import Dataset


def toy(*, count: int = 120):
    y, domain = np.arange(count) % 3, np.arange(count) % 2
    x = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    return Dataset(x, y, domain, np.zeros(count, bool), ("a", "b", "c"), ("one", "two"))


def with_its_own(*, test: int = 7):
    return toy()._replace(test=np.arange(120) < test)
"""


@pytest.fixture
def config(tmp_path):
    """Resolves a config with a user-defined data source."""
    (tmp_path / "own.py").write_text(OWN)

    def resolved(source="toy", **data):
        name = f"{tmp_path / 'own.py'}:{source}"
        partition = {"name": "iid", "num_clients": 3}
        return resolve({"data": {"name": name, **data}, "partition": partition})

    return resolved


def examples(count=3000, users=40):
    """Labels, domains and users; the domains and users have very different sizes."""
    rng = np.random.default_rng(0)
    client = np.minimum(rng.geometric(0.1, count), users) - 1
    return rng.choice(5, count, p=[0.5, 0.3, 0.1, 0.07, 0.03]), client % 3, client


def differences(test, share, *groups):
    """The distance of each group's test examples from its share."""
    cells = np.stack(groups, 1)
    return [
        abs(test[(cells == cell).all(1)].sum() - share * (cells == cell).all(1).sum())
        for cell in np.unique(cells, axis=0)
    ]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_every_group_gives_its_share(share):
    y, domain, client = examples()
    test = draw(y, domain, None, share, 0)
    for groups in ((y * 0,), (domain,), (domain, y)):
        assert max(differences(test, share, *groups)) < 1
    test = draw(y, domain, client, share, 0)
    for groups in ((y * 0,), (client,), (client, y)):
        assert max(differences(test, share, *groups)) < 1
    assert max(differences(test, share, y)) < 12  # of up to 1500


def test_the_seed_determines_the_test_examples():
    drawn = [draw(*examples(), 0.2, seed) for seed in (0, 0, 1)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])


def test_users_and_classes_keep_a_training_example():
    y, user = np.arange(60) % 2, np.arange(60) // 2
    y[0] = 2  # a class with one example
    for seed in range(5):
        test = draw(y, y * 0, user, 0.9, seed)
        assert not test[0] and np.bincount(user[~test], minlength=30).all()
        assert not draw(y, y * 0, np.arange(60), 0.9, seed).any()  # users with one example


def test_the_rounding_favors_no_class():
    """2,000 users with one example of each class, of which one is drawn."""
    y, user = np.arange(10_000) % 5, np.arange(10_000) // 5
    test = draw(y, y * 0, user, 0.2, 0)
    assert (np.bincount(user[test]) == 1).all()
    assert np.abs(np.bincount(y[test]) - 400).max() < 4 * np.sqrt(320)


def test_lazy_examples_are_not_read():
    def read(_):
        raise AssertionError("examples were read")

    y, domain, client = examples()
    x = LazyArray(read, (len(y), 4), np.uint8, "digest")
    none = np.zeros(len(y), bool)
    data = Dataset(x, y, domain, none, tuple("abcde"), ("one", "two", "three"), client=client)
    made = with_test(data, "toy", 0.2, 3)
    assert made.x is x and np.array_equal(made.test, draw(y, domain, client, 0.2, 3))


def test_a_config_draws_test_examples(config):
    data = experiment.load_data(config(test=0.2).data)
    assert data.test.sum() == 24 and differences(data.test, 0.2, data.domain, data.y) == [0] * 6
    assert not experiment.load_data(config().data).test.any()
    own = config("with_its_own", test=100)  # a source may have a setting of this name
    assert experiment.load_data(own.data).test.sum() == 100


def test_the_fingerprint_of_a_run_depends_on_its_test_examples(config):
    """A resumed run compares these digests."""
    jobs = (experiment.build(config(test=0.2, test_seed=seed)) for seed in (0, 1))
    assert len({fingerprint.compute(job)["test flags"] for job in jobs}) == 2


def test_an_unseen_domain_does_not_change_the_other_test_examples(config):
    drawn = []
    for unseen in ("", "two"):
        resolved = config(test=0.2, unseen=unseen)
        data = experiment.load_data(resolved.data)
        (dealt,) = experiment.deal_dataset(resolved, data, [0])
        drawn.append(np.asarray(dealt.global_test))
    assert np.array_equal(drawn[1], drawn[0][data.domain[drawn[0]] == 0])
    assert np.array_equal(np.asarray(dealt.unseen), np.flatnonzero(data.domain == 1))


def test_impossible_test_shares_are_rejected(config, tmp_path):
    for share in (-0.1, 1.0):
        assert "config.data.test must be at least 0 and below 1" in complaint(config, test=share)
    assert "config.data.test_seed must be at least 0" in complaint(config, test_seed=-1)
    toys.write_examples(tmp_path / "data.npz", split=np.arange(300) % 3 == 0)
    data = {"name": "arrays", "path": str(tmp_path / "data.npz"), "test": 0.2}
    message = complaint(experiment.load_data, resolve({"data": data}).data)
    assert "arrays has 100 test examples; set config.data.test=0" in message
    load = partial(experiment.load_data, config(test=0.001, count=6).data)
    assert "config.data.test=0.001 of 6 examples gives no test example" in complaint(load)
    message = complaint(experiment.build, config())
    assert "nothing to score" in message and "--config.data.test=0.2" in message


def test_all_words_of_a_text_are_in_the_same_split():
    y, zeros = np.array([2, 3, 2, 3]), np.zeros(4, int)
    words = ("<padding>", "<unknown>", "a", "b")
    data = Dataset(y[:, None], y, zeros, zeros > 0, words, ("texts",))
    assert "each word is an example" in complaint(with_test, data, "toy", 0.5, 0)
    made = with_test(data._replace(origin=np.array([7, 7, 4, 4])), "toy", 0.5, 0)
    assert made.test.tolist() in ([True, True, False, False], [False, False, True, True])


def test_whole_amounts_are_drawn_as_amounts_and_not_as_classes():
    days = np.round(np.random.default_rng(0).lognormal(1.5, 1.2, 1000)).astype(int)
    whole, fractions = (from_arrays(np.zeros((1000, 1)), y)["name"]() for y in (days, days + 0.5))
    np.testing.assert_array_equal(whole.test, fractions.test)
    _, amount, count = np.unique(days, return_inverse=True, return_counts=True)
    assert whole.test[count[amount] == 1].any()  # as classes, rare amounts would never be tested
    in_groups = from_arrays(np.zeros((1000, 1)), days, group=np.arange(1000))["name"]()
    np.testing.assert_array_equal(in_groups.test, whole.test)
