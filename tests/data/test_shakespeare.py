"""Tests LEAF's Shakespeare on small files in its format: reading, sampling and clients."""

import json
import logging
from functools import partial
from pathlib import Path

import broken
import numpy as np
import pytest
from inputs import complaint
from leaf_files import write_leaf as write

from fedjax_lab.data import places
from fedjax_lab.data.partitions import partitioning
from fedjax_lab.data.sources.shakespeare import ALPHABET, shakespeare
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve

COUNTS = {"HAMLET_GHOST": 500, "LEAR_FOOL": 420, "EMMA_\u00c9LISE": 1000, "SILENT": 30}


def speech(user: str, count: int) -> dict[str, list[str]]:
    """Returns the texts of a user, cut from one long speech as in LEAF."""
    rng = np.random.default_rng(list(user.encode()))
    spoken = "".join(rng.choice(list(ALPHABET), count + 80))
    return {
        "x": [spoken[i : i + 80] for i in range(count)],
        "y": [spoken[i + 80] for i in range(count)],
    }


SPEECHES = {user: speech(user, count) for user, count in COUNTS.items()}


def cut(user: str, start: int, stop: int) -> dict[str, list[str]]:
    return {key: values[start:stop] for key, values in SPEECHES[user].items()}


def parts(user: str) -> dict[str, dict]:
    """The first 80 % of a user's texts are for training; the next 79 are left out."""
    count, first = COUNTS[user], COUNTS[user] * 4 // 5
    return {"train": cut(user, 0, first), "test": cut(user, first + 79, count)}


def check_split(data):
    for user in data.domains:
        for test, wanted in enumerate(parts(user).values()):
            rows = (data.domain == data.domains.index(user)) & (data.test == test)
            assert ["".join(ALPHABET[n] for n in text) for text in data.x[rows]] == wanted["x"]
            assert [ALPHABET[n] for n in data.y[rows]] == wanted["y"]


PLACES = {"": "{}", "data": "{}", "shakespeare/data": "{}", "shakespeare": ""}


@pytest.mark.parametrize("place", PLACES)
def test_the_texts_of_each_user_are_split_in_order(place, tmp_path, monkeypatch):
    write(tmp_path / place / "all_data" / "all_data.json", SPEECHES)
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(tmp_path)))
    data = shakespeare(folder=PLACES[place].format(tmp_path), fraction=1.0)
    assert (data.x.dtype, data.y.dtype, data.domain.dtype) == (np.int8, np.int32, np.int32)
    assert data.domains == ("EMMA_\u00c9LISE", "HAMLET_GHOST", "LEAR_FOOL")  # SILENT has too few
    assert data.classes == tuple(ALPHABET) and data.x.shape == (len(data.y), 80)
    assert data.test.tolist() == sorted(data.test.tolist())  # training rows first
    check_split(data)
    assert data.test.sum() == (200 - 79) + (100 - 79) + (84 - 79)


def test_users_are_drawn_until_there_are_enough_texts(tmp_path):
    """The last user is truncated; it is dropped if its test texts would all lie in the gap."""
    users = {f"U{i:02}": speech(f"U{i:02}", 600) for i in range(9)} | {"SMALL": speech("S", 395)}
    write(tmp_path / "all_data" / "all_data_0.json", dict(list(users.items())[:4]))
    write(tmp_path / "all_data" / "all_data_1.json", dict(list(users.items())[4:]))
    assert sum(len(data["y"]) for data in users.values()) == 5795
    drawn = {}
    for seed in range(8):
        data = shakespeare(folder=str(tmp_path), fraction=0.3, seed=seed)  # 1738 texts
        again = shakespeare(folder=str(tmp_path), fraction=0.3, seed=seed)
        assert data.domains == again.domains and np.array_equal(data.x, again.x)
        drawn[seed] = data.domains
        sizes = np.bincount(data.domain[~data.test])
        tests = np.bincount(data.domain[data.test])
        assert "SMALL" not in data.domains
        cut_short = sizes[sizes != 480].tolist()
        if len(sizes) == 3:  # 600 + 600 + 538
            assert cut_short == [430] and tests[sizes == 430] == 538 - 430 - 79
        else:  # SMALL came first: 395 + 600 + 600 + 143, too few for a test
            assert len(sizes) == 2 and cut_short == []
        assert set(tests[sizes == 480]) == {41}
    assert len(set(drawn.values())) > 4
    full = shakespeare(folder=str(tmp_path), fraction=1.0)
    assert full.domains == tuple(f"U{i:02}" for i in range(9))


def test_users_with_fewer_than_396_texts_are_dropped(tmp_path):
    users = {f"U{count}": speech("U", count) for count in (395, 396)}
    write(tmp_path / "all_data" / "a.json", users)
    assert shakespeare(folder=str(tmp_path), fraction=1.0).domains == ("U396",)
    write(tmp_path / "all_data" / "a.json", {"U": speech("U", 395)})
    message = complaint(shakespeare, folder=str(tmp_path), fraction=1.0)
    assert "has no user with enough texts for a test set" in message


def write_ready(folder: Path) -> Path:
    """Writes train/ and test/ as LEAF's split_data.py does."""
    for part in ("train", "test"):
        users = {user: parts(user)[part] for user in COUNTS if user != "SILENT"}
        write(folder / part / f"all_data_niid_1_keep_40_{part}_8.json", users)
    return folder


def test_an_existing_split_is_used_unchanged(tmp_path, caplog):
    write_ready(tmp_path / "data")
    write(tmp_path / "data" / "all_data" / "all_data.json", {"OTHER": speech("O", 900)})
    with caplog.at_level(logging.WARNING):
        data = shakespeare(folder=str(tmp_path))
    assert not caplog.records
    assert data.domains == ("EMMA_\u00c9LISE", "HAMLET_GHOST", "LEAR_FOOL")
    check_split(data)
    for setting in ({"fraction": 0.2}, {"seed": 1}):
        message = complaint(shakespeare, folder=str(tmp_path), **setting)
        assert "is already split" in message and "config.data.fraction" in message


def test_a_split_made_with_a_single_dash_before_tf_logs_a_warning(tmp_path, caplog):
    user = "EMMA_\u00c9LISE"
    write(tmp_path / "train" / "all_data_train_9.json", {user: cut(user, 0, 900)})
    write(tmp_path / "test" / "all_data_test_9.json", {user: cut(user, 979, 1000)})
    with caplog.at_level(logging.WARNING):
        data = shakespeare(folder=str(tmp_path))
    assert "--tf 0.8 (two dashes)" in caplog.text and len(caplog.records) == 1
    assert (~data.test).sum() == 900


def test_unknown_characters_become_spaces(tmp_path):
    texts = speech("U", 500)
    texts["x"][0] = "\u00e9{\u4e00\U0001f600\x7f\x00" + texts["x"][0][6:]
    texts["x"][1] = "\ud800}~" + texts["x"][1][3:]  # half of a surrogate pair: JSON allows it
    texts["y"][0] = "\u2014"
    write(tmp_path / "all_data" / "a.json", {"U": texts})
    data = shakespeare(folder=str(tmp_path), fraction=1.0)
    space = ALPHABET.index(" ")
    assert len(set(ALPHABET)) == len(ALPHABET) == 80
    assert (space, ALPHABET.index("A"), ALPHABET.index("a")) == (1, 25, 53)
    assert data.x[0, :6].tolist() == [space] * 6 and data.y[0] == space
    assert data.x[1, :3].tolist() == [space, 79, space]
    assert data.x.shape == (400 + 21, 80) and data.x.min() >= 0 and data.x.max() == 79


def test_each_user_is_a_domain_and_a_client_even_with_new_characters_in_its_test_texts(tmp_path):
    speeches = {user: speech(user, count) for user, count in COUNTS.items()}
    speeches["LEAR_FOOL"]["y"] = ["a"] * 400 + ["z"] * 20
    write(tmp_path / "all_data" / "all_data.json", speeches)
    data = shakespeare(folder=str(tmp_path), fraction=1.0)
    of_fool = data.domain == data.domains.index("LEAR_FOOL")
    assert not set(data.y[of_fool & data.test]) & set(data.y[of_fool & ~data.test])
    assert data.users == data.domains and np.array_equal(data.client, data.domain)
    for partition_of in ({"name": "by_domain", "num_clients": 3}, {"name": "by_client"}):
        (made,) = experiment.deal_dataset(resolve({"partition": partition_of}), data, [0])
        for rows, test in ((made.train, False), (made.test, True)):
            for user, held in enumerate(np.asarray(rows)):
                expected = np.flatnonzero((data.domain == user) & (data.test == test))
                assert sorted(held[held >= 0]) == expected.tolist()


def test_test_labels_without_training_examples_follow_their_domain():
    y, domain = np.zeros(40, int), np.repeat([0, 1], 20)
    parts = [np.arange(15), np.arange(15, 20), np.arange(20, 20)]
    test_y, test_domain = np.array([0] * 8 + [3] * 8 + [3] * 5), np.repeat([0, 0, 1], (8, 8, 5))
    rng = np.random.default_rng(0)
    dealt = partitioning.deal_like(parts, y, domain, test_y, test_domain, rng)
    counts = [np.bincount(test_y[p], minlength=4).tolist() for p in dealt]
    assert counts == [[6, 0, 0, 6], [2, 0, 0, 2], [0, 0, 0, 0]]
    assert all((test_domain[p] == 0).all() for p in dealt)  # no client has the other domain


TEXT = "a" * 80
NO_JSON, NO_LISTS = "cannot be read as JSON", "has no lists x and y"
NO_USERS = "has no list `users` and object `user_data`"


def user_a(**user):
    return {"users": ["A"], "user_data": {"A": user}}


DAMAGED = [  # (content of a file, words of the error)
    (b'{"users": ["A"], "user_da', NO_JSON),
    (b"[" * 10**6, NO_JSON),
    ({"users": {"A": 1}, "user_data": {}}, NO_USERS),
    ({"users": ["A\n"], "user_data": {}}, f"user 'A\\n' {NO_LISTS}"),
    (user_a(x=TEXT, y="a"), NO_LISTS),
    (user_a(x=[TEXT] * 2, y=["a"]), f"{NO_LISTS} of equal length"),
    (user_a(x=[TEXT], y=["a"]) | {"users": ["A", "A"]}, "user 'A' occurs twice"),
    (
        user_a(x=[TEXT] * 499 + ["a" * 79], y=["a"] * 500),
        "x of user 'A' has entries that are not tex",
    ),
]


@pytest.mark.parametrize("content, expected", DAMAGED, ids=range(len(DAMAGED)))
def test_files_not_in_leafs_format_are_rejected(content, expected, tmp_path):
    file = write(tmp_path / "all_data" / "all_data.json", {})
    broken.replace(file, content if isinstance(content, bytes) else json.dumps(content))
    remedy = "preprocess.sh -s niid --sf 0.1 -k 40 -t sample --tf 0.8"
    broken.check(shakespeare, file, expected, remedy, folder=str(tmp_path), fraction=1.0)


def test_inconsistent_existing_splits_are_rejected(tmp_path):
    file = next(iter((write_ready(tmp_path) / "test").iterdir()))
    content = json.loads(file.read_text())["user_data"]
    load = partial(complaint, shakespeare, folder=str(tmp_path))
    write(file, content | {"LEAR_FOOL": {"x": [], "y": []}})
    assert "user 'LEAR_FOOL' has no training texts or no test texts" in load()
    del content["LEAR_FOOL"]
    write(file, content)
    assert "user 'LEAR_FOOL' is not in both train/ and test/" in load()
    file.unlink()
    assert f"{tmp_path / 'test'} has no files *.json" in load() and "-t sample" in load()


def test_invalid_settings_are_rejected():
    for fraction in (0.0, 1.5, -1.0, float("nan")):
        assert "config.data.fraction" in complaint(shakespeare, fraction=fraction)
    assert "config.data.seed" in complaint(shakespeare, seed=-1)
