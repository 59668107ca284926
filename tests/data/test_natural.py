"""Tests natural users: each becomes one client with the user's training and test examples."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from inputs import complaint
from toys import write_config, write_examples

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.partitions.natural import SOURCES, by_client
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment, references, registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.experiment.federation import make_federations
from fedjax_lab.testing import CheckFailed, check_source

RNG = np.random.default_rng(0)
SIZES = np.array([40, 3, 0, 25, 12, 30])  # training examples of each user; the third has none
CLIENT = RNG.permutation(np.repeat(np.arange(6), SIZES + 5)).astype(np.int32)  # and 5 test examples
DATASET = Dataset(
    x=RNG.normal(size=(140, 4)).astype(np.float32),
    y=RNG.integers(0, 3, 140).astype(np.int32),
    domain=CLIENT // 3,
    test=np.array([np.sum(CLIENT[:i] == CLIENT[i]) < 5 for i in range(140)]),
    classes=("0", "1", "2"),
    domains=("a", "b"),
    client=CLIENT,
    users=tuple("uvwxyz"),
)


def make(seeds=(0,), deal=by_client, num_clients=0, dataset=DATASET, **values):
    return make_federations(dataset, deal, seeds, num_clients=num_clients, **values)


def users_of(rows, dataset=DATASET):
    return [set(dataset.client[held[held >= 0]].tolist()) for held in np.asarray(rows)]


def sizes_of(rows):
    return np.asarray(rows.count).tolist()


def test_each_user_with_training_examples_is_a_client():
    (f,) = make()
    assert users_of(f.train) == users_of(f.test) == [{0}, {1}, {3}, {4}, {5}]
    assert sizes_of(f.train) == [40, 3, 25, 12, 30] and sizes_of(f.test) == [5] * 5
    np.testing.assert_array_equal(f.global_test, np.flatnonzero(DATASET.test))
    held = np.asarray(f.train)[0]
    assert (np.diff(held) < 0).any()  # in random order


def bound(**settings):
    section = {"name": "by_client", "num_clients": 0, "min_examples": 1, **settings}
    return registry.bind("partition", section)


def test_users_with_few_examples_are_left_out_unless_too_few_are_left():
    (f,) = make(deal=bound(min_examples=12))
    assert users_of(f.train) == users_of(f.test) == [{0}, {3}, {4}, {5}]
    error = partial(complaint, make)
    section = {"name": "by_client", "min_examples": 0}
    refused = complaint(resolve, {"partition": section})
    assert "min_examples must be at least 1, got 0" in refused
    message = error(deal=bound(min_examples=41))
    assert "0 of 6 users have that many, and the largest has 40; lower it" in message
    said = "needs at least 3 users with at least 26 training examples"
    assert said in error(deal=bound(min_examples=26, num_clients=3), num_clients=3)


def test_the_seed_draws_a_subsample_of_users_which_keep_their_order():
    a, b = make((0, 1), num_clients=3)
    for f in (a, b):
        assert len(f.train) == 3 and users_of(f.train) == users_of(f.test)
        assert users_of(f.train) == sorted(users_of(f.train), key=min)
    assert users_of(a.train) != users_of(b.train)
    (again,) = make((1,), num_clients=3)
    assert users_of(again.train) == users_of(b.train)


def test_validation_new_clients_shots_and_unseen_domain_respect_users():
    (f,) = make(validation=0.25, new_clients=0.4)
    everybody = [*users_of(f.train), *users_of(f.new_train)]
    assert len(f.train) == 3 and sorted(map(min, everybody)) == [0, 1, 3, 4, 5]
    assert users_of(f.validation) == users_of(f.train)
    assert users_of(f.new_test) == users_of(f.new_train)
    (f,) = make(unseen="b", shots=2)
    assert [held & {0, 1, 2} for held in users_of(f.train)] == [{0}, {1}]
    assert sizes_of(f.train) == [42, 5] and users_of(f.test) == [{0}, {1}]


def test_clients_have_no_test_examples_if_the_data_are_split_by_user():
    """LEAF can split by user. New clients are then evaluated on held-out training examples."""
    data = DATASET._replace(test=CLIENT >= 4)
    (f,) = make(dataset=data, validation=0.25, new_clients=0.5)
    assert len(f.train) == len(f.new_train) == 2 and f.test is None
    assert users_of(f.new_test) == users_of(f.new_train)
    assert set(data.client[f.global_test]) == {4, 5}


def test_test_examples_follow_labels_if_users_are_divided_or_ignored():
    def halves(examples, num_clients, rng):
        return np.array_split(rng.permutation(len(examples.y)), num_clients)

    (f,) = make(deal=halves, num_clients=2)
    assert users_of(f.train)[0] & users_of(f.train)[1] and sum(sizes_of(f.test)) == 30
    plain = DATASET._replace(client=None, users=())
    first = registry.bind("partition", {"name": "by_domain"})
    both = (make(deal=first, num_clients=2, dataset=d) for d in (DATASET, plain))
    (with_users,), (without,) = both
    np.testing.assert_array_equal(with_users.test, without.test)


def test_a_partition_of_examples_receives_all_fields_and_embeddings():
    train = np.flatnonzero(~DATASET.test)

    def check_examples(examples, num_clients, rng):
        np.testing.assert_array_equal(examples.x[np.arange(9)], DATASET.x[train[:9]])
        np.testing.assert_array_equal(np.asarray(examples.x), DATASET.x[train])
        for name in ("y", "domain", "client"):
            np.testing.assert_array_equal(getattr(examples, name), getattr(DATASET, name)[train])
        np.testing.assert_array_equal(examples.embed(), 2 * DATASET.x[train])
        assert examples.users == DATASET.users
        return [np.arange(len(train))]

    make(deal=check_examples, num_clients=1, embed=lambda: 2 * DATASET.x)
    message = complaint(make, deal=check_examples, num_clients=1)
    assert "needs embeddings (config.embedding)" in message


def test_the_error_for_data_without_users_names_alternatives():
    message = complaint(make, dataset=DATASET._replace(client=None))
    assert "such as dirichlet or by_domain" in message and "arrays" in message
    assert set(SOURCES) <= set(registry.NAMED["data"])


def test_seeds_with_different_numbers_of_clients_are_rejected():
    def any_number(examples, num_clients, rng):
        return np.array_split(np.arange(len(examples.y)), rng.integers(1, 99))

    message = complaint(make, (0, 1, 2), any_number, name="own.py:any_number")
    assert "the seeds of a run must have equally many" in message
    message = complaint(make, deal=lambda examples, num_clients, rng: [])
    assert "must return a list of one or more arrays" in message


def test_the_number_of_clients_is_optional_for_by_client_only(tmp_path):
    config = load_config(write_config(tmp_path))  # of six clients
    override = [("partition.name", "by_client")]
    assert resolve(config, override).partition.num_clients == 0
    assert resolve(config, [*override, ("partition.num_clients", "7")]).partition.num_clients == 7
    assert resolve(config, [("partition.name", "quantity")]).partition.num_clients == 6
    none = [("partition.num_clients", "0")]
    assert "config.partition.num_clients must be above 0" in complaint(resolve, config, none)
    below = [*override, ("partition.num_clients", "-1")]
    assert "num_clients must be at least 0, got -1" in complaint(resolve, config, below)


def test_a_cohort_larger_than_the_users_is_rejected_before_compilation(tmp_path):
    write_examples(tmp_path / "data.npz", client=np.arange(300) % 5)
    config = load_config(write_config(tmp_path, partition={"name": "by_client", "num_clients": 0}))
    message = complaint(experiment.build, resolve(config, [("run.cohort", "6")]))
    assert "config.run.cohort=6 is more than the 5 clients" in message
    assert experiment.build(resolve(config)).simulation.plan.cohort == 5


OWN = """
import numpy as np
def by_parity(examples, rng, *, num_clients: int = 0, odd: bool = False):
    return [np.flatnonzero(examples.client % 2 == odd)]
def reversed_halves(examples, num_clients, rng):
    return np.array_split(np.arange(len(examples.y))[::-1], num_clients)
def bad(examples, rng):
    return []
"""


def test_a_user_defined_partition_can_take_examples(tmp_path):
    (tmp_path / "own.py").write_text(OWN)

    def dealt(name, **settings):
        config = {"partition": {"name": f"{tmp_path}/own.py:{name}", **settings}}
        (f,) = experiment.deal_dataset(resolve(config), DATASET, [0])
        return f

    f = dealt("by_parity", odd=True)
    assert users_of(f.train) == users_of(f.test) == [{1, 3, 5}]
    assert len(dealt("reversed_halves", num_clients=2).train) == 2
    with pytest.raises(BadInput, match=r"must take \(examples, num_clients, rng\), then settings"):
        registry.look_up("partition", f"{tmp_path}/own.py:bad")


EMBEDDED = """
import numpy as np
from fedjax_lab.models.embeddings import Embeddings
calls = []
def doubled(dataset):
    calls.append(len(dataset.y))
    return Embeddings(2 * dataset.x * ~dataset.test[:, None], np.zeros((3, 4), np.float32))
def by_first_number(examples, num_clients, rng):
    return np.array_split(np.argsort(examples.embed()[:, 0]), num_clients)
"""


def test_a_partition_can_use_the_embeddings_which_are_computed_once(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(EMBEDDED)
    names = {"embedding": "doubled", "partition": "by_first_number"}
    config = {section: {"name": f"{own}:{name}"} for section, name in names.items()}
    for f in experiment.deal_dataset(resolve(config), DATASET, [0, 1]):
        first = [DATASET.x[held[held >= 0], 0] for held in np.asarray(f.train)]
        assert len(first) == 10 and all(a.max() <= b.min() for a, b in pairwise(first))
    assert references.find(f"{own}:calls") == [140]


def test_check_source_rejects_invalid_users():
    wrong = {  # {words of the error: changed fields}
        "has client 6, out of range 0..5": {"client": CLIENT + 1},
        "users must be different names": {"users": ("u",) * 6},
        "the dataset's client must be an array": {"client": CLIENT.tolist()},
    }
    for said, changed in wrong.items():
        with pytest.raises(CheckFailed, match=said):
            check_source(lambda: DATASET._replace(**changed))  # noqa: B023
