"""Few-shot examples of the unseen domain, which are given to the clients."""

import numpy as np
import pytest
from hypernetworks import setting

from fedjax_lab.errors import BadInput


@pytest.mark.parametrize("per, shots, each", [("client", 6, 6), ("class", 2, 8)])
def test_few_shots_are_balanced_disjoint_and_no_longer_unseen(per, shots, each, four_domains):
    """Each of three clients gets six examples, or two of each of four classes."""
    plain, few = (
        setting(four_domains, "fedavg", (0, 1), shots=k, shots_per=per) for k in (0, shots)
    )
    domain, y = few.dataset.domain, few.dataset.y
    dealt = (e.simulation.federations for e in (plain, few))
    for a, b in zip(*dealt, strict=True):
        given = []
        for before, after in zip(np.asarray(a.train), np.asarray(b.train), strict=True):
            new = set(after[after >= 0]) - set(before[before >= 0])
            assert len(new) == each and set(before[before >= 0]) < set(after)
            counts = np.bincount(y[list(new)], minlength=4)
            assert counts.max() - counts.min() <= (per == "client")
            given += new
        assert len(set(given)) == 3 * each and {int(domain[i]) for i in given} == {1}
        unseen = set(np.asarray(b.unseen).tolist())
        assert not set(given) & unseen and set(given) | unseen == set(np.asarray(a.unseen))
        np.testing.assert_array_equal(a.validation, b.validation)
    a, b = (np.sort(np.asarray(seed.federation.unseen)) for seed in few.simulation.seeds)
    np.testing.assert_array_equal(a, b)


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
    rows = [r[r >= 90] for r in np.asarray(e.simulation.seeds[0].federation.train)]
    counts = np.array([np.bincount(y[r], minlength=3) for r in rows])
    assert counts.sum(0).tolist() == [2, 6, 10] and counts.sum(1).tolist() == [6, 6, 6]
    assert (counts.max(0) - counts.min(0) <= 1).all()


def test_impossible_shots_are_an_error(tmp_path, four_domains):
    def refused(match, path, **data):
        with pytest.raises(BadInput, match=match):
            setting(path, "fedavg", **data)

    refused("config.data.shots=40 for 3 clients is more than the 100", four_domains, shots=40)
    refused("needs an unseen domain with examples", four_domains, shots=1, unseen="")
    refused(
        "config.data.shots_per cannot be 'clas'; did you mean 'cla",
        four_domains,
        shots=1,
        shots_per="clas",
    )
    for counts, shots, message in (
        ([6, 5, 9], 2, "more than the 5 unseen examples of class '1'.*shots_per=client"),
        ([6, 9, 0], 1, "more than the 0 unseen examples of class '2'"),
        ([6, 6, 6], 2, "config.data.shots=2 for 3 clients is more than the 18 unseen examples"),
    ):
        refused(message, unequal_classes(tmp_path, counts), shots=shots, shots_per="class")


def test_all_examples_of_a_class_may_be_given_as_shots(tmp_path):
    e = setting(unequal_classes(tmp_path, [6, 6, 7]), "fedavg", shots=2, shots_per="class")
    unseen = np.asarray(e.simulation.seeds[0].federation.unseen)
    assert np.asarray(e.dataset.y)[unseen].tolist() == [2]
