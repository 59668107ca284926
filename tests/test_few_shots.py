"""Few-shot examples of the unseen domain, which are given to the clients."""

import numpy as np
import pytest
from hypernetworks import setting

from fedjax_lab.errors import BadInput


def test_few_shots_are_balanced_disjoint_and_no_longer_unseen(four_domains):
    plain, few = (setting(four_domains, "fedavg", (0, 1), shots=k) for k in (0, 6))
    domain, y = few.dataset.domain, few.dataset.y
    for a, b in zip(plain.simulation.federations, few.simulation.federations, strict=True):
        given = []
        for before, after in zip(np.asarray(a.train), np.asarray(b.train), strict=True):
            new = set(after[after >= 0]) - set(before[before >= 0])
            assert len(new) == 6 and set(before[before >= 0]) < set(after)
            counts = np.bincount(y[list(new)], minlength=4)
            assert counts.max() - counts.min() <= 1
            given += new
        assert len(set(given)) == 18 and {int(domain[i]) for i in given} == {1}
        assert not set(given) & set(np.asarray(b.unseen))
        assert len(b.unseen) == len(a.unseen) - 18
        np.testing.assert_array_equal(a.validation, b.validation)
    a, b = (np.sort(np.asarray(f.unseen)) for f in few.simulation.federations)
    np.testing.assert_array_equal(a, b)
    with pytest.raises(BadInput, match="config.data.shots=40 for 3 clients is more than the 100"):
        setting(four_domains, "fedavg", shots=40)
    with pytest.raises(BadInput, match="needs an unseen domain with examples"):
        setting(four_domains, "fedavg", shots=1, unseen="")


def unequal_classes(path, counts):
    """Writes data with `counts` examples of each class in domain b, and 30 of each in domain a."""
    y = np.concatenate([np.tile([0, 1, 2], 30), np.repeat([0, 1, 2], counts)])
    domain = np.array(["a"] * 90 + ["b"] * sum(counts))
    split = np.where(np.arange(len(y)) < 10, "test", "train")
    x = np.random.default_rng(0).integers(0, 255, (len(y), 4, 4, 1), dtype=np.uint8)
    np.savez(path / "data.npz", x=x, y=y, domain=domain, split=split)
    return path / "data.npz"


def test_few_shots_of_unequal_classes_are_as_balanced_as_possible(tmp_path):
    """The classes have 2, 6 and 92 examples. Three clients with six shots each get 2, 6 and 10."""
    e = setting(unequal_classes(tmp_path, [2, 6, 92]), "fedavg", shots=6)
    y = e.dataset.y
    rows = [r[r >= 90] for r in np.asarray(e.simulation.federations[0].train)]
    counts = np.array([np.bincount(y[r], minlength=3) for r in rows])
    assert counts.sum(0).tolist() == [2, 6, 10] and counts.sum(1).tolist() == [6, 6, 6]
    assert (counts.max(0) - counts.min(0) <= 1).all()


def test_few_shots_per_class_are_disjoint_and_no_longer_unseen(four_domains):
    """Each of three clients gets two examples of each of four classes."""
    plain, few = (
        setting(four_domains, "fedavg", shots=k, shots_per="class").simulation.federations[0]
        for k in (0, 2)
    )
    y, given = np.asarray(plain.y), []
    for before, after in zip(np.asarray(plain.train), np.asarray(few.train), strict=True):
        new = sorted(set(after[after >= 0]) - set(before[before >= 0]))
        assert np.bincount(y[new], minlength=4).tolist() == [2, 2, 2, 2]
        given += new
    assert len(set(given)) == 24
    assert set(given) | set(np.asarray(few.unseen)) == set(np.asarray(plain.unseen))
    assert len(few.unseen) == len(plain.unseen) - 24


@pytest.mark.parametrize(
    "counts, shots, message",
    [
        (
            [6, 5, 9],
            2,
            "config.data.shots=2 of each class for 3 clients is more than the 5 unseen examples of"
            " class '1'; decrease it, or use config.data.shots_per=client",
        ),
        ([6, 9, 0], 1, "is more than the 0 unseen examples of class '2'"),
        ([6, 6, 6], 2, "config.data.shots=2 for 3 clients is more than the 18 unseen examples"),
    ],
)
def test_too_many_shots_per_class_are_an_error(counts, shots, message, tmp_path):
    path = unequal_classes(tmp_path, counts)
    with pytest.raises(BadInput, match=message):
        setting(path, "fedavg", shots=shots, shots_per="class")
    with pytest.raises(BadInput, match="config.data.shots_per cannot be 'clas'; did you mean 'cla"):
        setting(path, "fedavg", shots=shots, shots_per="clas")


def test_all_examples_of_a_class_may_be_given_as_shots(tmp_path):
    e = setting(unequal_classes(tmp_path, [6, 6, 7]), "fedavg", shots=2, shots_per="class")
    assert np.asarray(e.dataset.y)[np.asarray(e.simulation.federations[0].unseen)].tolist() == [2]
