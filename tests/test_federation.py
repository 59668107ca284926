"""Which client holds which example; a federation is made from values, without a config."""

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.normalize import scale_of
from fedjax_lab.data.partitions import partitioning
from fedjax_lab.experiment import federation
from fedjax_lab.experiment.federation import make_federations

RNG = np.random.default_rng(0)
DATASET = Dataset(  # 300 images 4x4, three classes, three domains, a fifth for testing
    x=RNG.integers(0, 256, (300, 4, 4, 1), dtype=np.uint8),
    y=RNG.integers(0, 3, 300).astype(np.int32),
    domain=(np.arange(300) % 3).astype(np.int32),
    test=np.arange(300) % 5 == 0,
    classes=("0", "1", "2"),
    domains=("a", "b", "c"),
)


def make(seeds=(0,), deal=partitioning.iid, num_clients=4, **values):
    return make_federations(DATASET, deal, seeds, num_clients=num_clients, **values)


def held(rows):
    rows = np.asarray(rows)
    return rows[rows >= 0]


def test_every_example_is_held_by_one_client_in_one_split():
    (f,) = make(validation=0.25)
    train, validation = held(f.train), held(f.validation)
    assert not set(train) & set(validation)
    assert sorted([*train, *validation]) == np.flatnonzero(~DATASET.test).tolist()
    assert sorted(held(f.test)) == np.flatnonzero(DATASET.test).tolist()
    np.testing.assert_array_equal(f.global_test, np.flatnonzero(DATASET.test))
    assert f.unseen is None and len(validation) == 60
    counts = federation.class_counts(f.train, f.y, 3)
    expected = [np.bincount(DATASET.y[held(rows)], minlength=3) for rows in f.train]
    np.testing.assert_array_equal(counts, expected)
    (f,) = make()
    federation.check_scored(f)
    nothing = f._replace(global_test=None)
    assert "nothing to score" in complaint(federation.check_scored, nothing)


@pytest.mark.parametrize(
    "shape, dtype",
    [((28, 28, 1), "uint8"), ((8, 8, 3), "uint8"), ((80,), "int8"), ((5,), "float32")],
)
def test_the_pool_of_examples_is_flat_and_keeps_its_dtype(shape, dtype):
    """The examples of a data source are neither converted nor changed before they are fetched."""
    x = RNG.integers(0, 100, (300, *shape)).astype(dtype)
    (f,) = make_federations(DATASET._replace(x=x), partitioning.iid, (0,), num_clients=4)
    assert f.x.dtype == x.dtype and f.x.shape == (300, np.prod(shape))
    np.testing.assert_array_equal(f.x.reshape(x.shape), x)


def test_no_split_contains_the_unseen_domain():
    (f,) = make(unseen="b", validation=0.1)
    for rows in (f.train, f.validation, f.test, f.global_test):
        assert 1 not in DATASET.domain[held(rows)]
    np.testing.assert_array_equal(f.unseen, np.flatnonzero(DATASET.domain == 1))
    assert "config.data.unseen: no domain 'd'" in complaint(make, unseen="d")


def test_seeds_share_the_pool_and_have_rows_of_equal_width():
    """Sizes differ between seeds. A seed alone has the same rows, apart from their padding."""
    a, b = make((3, 4), deal=partitioning.quantity)
    assert a.x is b.x and a.global_test is b.global_test and a.train.shape == b.train.shape
    (alone,) = make((4,), deal=partitioning.quantity)
    width, rows = alone.train.longest, np.asarray(b.train)
    np.testing.assert_array_equal(rows[:, :width], alone.train)
    assert (rows[:, width:] == -1).all()


@pytest.mark.parametrize("normalize, low, high", [("unit", 0, 1), ("half", -1, 1)])
def test_pixels_are_normalized(normalize, low, high):
    (f,) = make(scale=scale_of(DATASET.x, normalize))
    assert float((0 - f.center) * f.scale) == low
    assert float((255 - f.center) * f.scale) == pytest.approx(high)


def test_the_error_about_an_empty_client_names_its_partition():
    def to_the_first(y, domain, num_clients, rng):
        return [np.arange(len(y)), *[np.zeros(0, int)] * (num_clients - 1)]

    error = complaint(make, deal=to_the_first)
    assert "partition 'to_the_first' leaves client 1 (and 2 more) without examples" in error


def test_pool_makes_one_client_with_all_training_examples():
    """Those of new clients are left out."""
    federations = make((0, 1), deal=partitioning.quantity, validation=0.2, new_clients=0.4)
    for one, many in zip(federation.pool(federations), federations, strict=True):
        assert len(one.train) == 1
        assert sorted(held(one.train)) == sorted(held(many.train))
        assert one.validation is many.validation
        assert not set(held(one.train)) & set(held(many.new_train))


def dealt(**options):
    """A federation with four new clients out of ten, and the same one without new clients."""
    options = {"num_clients": 10, "validation": 0.2, "deal": partitioning.quantity, **options}
    return make(new_clients=0.4, **options)[0], make(**options)[0]


def sets(rows):
    return [set(of_one[of_one >= 0].tolist()) for of_one in rows]


def test_new_clients_do_not_change_the_examples_of_the_others():
    """The six remaining clients of ten keep their examples and their order."""
    f, whole = dealt()
    trained = [i for i, rows in enumerate(sets(whole.train)) if rows in sets(f.train)]
    assert len(trained) == len(f.train) == 6
    for name in ("train", "validation", "test"):
        every_client = sets(getattr(whole, name))
        assert sets(getattr(f, name)) == [every_client[i] for i in trained]
    others = [i for i in range(10) if i not in trained]
    assert sets(f.new_train) == [sets(whole.train)[i] for i in others]
    assert sets(f.new_test) == [sets(whole.test)[i] for i in others]
    np.testing.assert_array_equal(f.global_test, whole.global_test)
    assert whole.new_train is None and whole.new_test is None


def test_new_clients_differ_between_seeds_and_are_scored_also_without_a_test_set(monkeypatch):
    a, b = make((3, 4), num_clients=10, new_clients=0.35)
    assert len(a.new_train) == len(b.new_train) == 3 and a.new_train.shape == b.new_train.shape
    assert sets(a.new_train) != sets(b.new_train)
    (alone,) = make((4,), num_clients=10, new_clients=0.35)
    assert sets(alone.new_train) == sets(b.new_train)
    monkeypatch.setattr(f"{__name__}.DATASET", DATASET._replace(test=np.zeros(300, bool)))
    f, whole = dealt()
    assert f.test is None and f.new_test is not None
    held_out = sorted(map(sorted, sets(whole.validation)))
    assert sorted(map(sorted, [*sets(f.new_test), *sets(f.validation)])) == held_out
    error = complaint(dealt, validation=0.0)
    assert "new clients of seed 0" in error and "--config.partition.validation=0.1" in error


def test_public_examples_are_held_by_no_client_and_the_same_for_all_seeds():
    first, second = make(seeds=(0, 1), public=0.1, validation=0.25)
    x, y = first.public
    assert len(x) == 24 and second.public is first.public
    rows = [held(rows) for rows in (first.train, first.validation, first.global_test)]
    left = np.setdiff1d(np.arange(300), np.concatenate(rows))
    np.testing.assert_array_equal(x, first.x[left])
    np.testing.assert_array_equal(y, DATASET.y[left])
    assert make()[0].public is None


@pytest.mark.parametrize("key", ["validation", "public"])
@pytest.mark.parametrize("share", [-0.5, 1.0])
def test_a_share_that_leaves_no_training_examples_is_refused(key, share):
    message = complaint(make_federations, None, None, [0], num_clients=2, **{key: share})
    assert message == f"config.partition.{key} must be at least 0 and below 1, got {share}"
