"""Tests LEAF's Shakespeare on small files in its format: reading, sampling and clients."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab import experiment
from fedjax_lab.config import resolve
from fedjax_lab.data import partition, places
from fedjax_lab.data.shakespeare import ALPHABET, shakespeare

COUNTS = {"HAMLET_GHOST": 500, "LEAR_FOOL": 420, "EMMA_\u00c9LISE": 1000, "SILENT": 30}


@pytest.fixture(autouse=True)
def nothing_in_the_usual_places(monkeypatch):
    monkeypatch.setattr(places, "PLACES", ("/nowhere/a", "/nowhere/b"))


def speech(user: str, count: int) -> dict[str, list[str]]:
    """Returns the texts of a user, cut from one long speech as in LEAF."""
    rng = np.random.default_rng(list(user.encode()))
    spoken = "".join(rng.choice(list(ALPHABET), count + 80))
    return {
        "x": [spoken[i : i + 80] for i in range(count)],
        "y": [spoken[i + 80] for i in range(count)],
    }


SPEECHES = {user: speech(user, count) for user, count in COUNTS.items()}


def write(file: Path, users: dict) -> Path:
    content = {
        "users": list(users),
        "hierarchies": ["a play"] * len(users),
        "num_samples": [len(data["y"]) + 79 for data in users.values()],  # wrong, as in LEAF
        "user_data": users,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def cut(user: str, start: int, stop: int) -> dict[str, list[str]]:
    return {key: values[start:stop] for key, values in SPEECHES[user].items()}


def check_rows(data, user: str, test: bool, start: int, stop: int):
    """Checks that the rows of a user are this part of the speech, character by character."""
    rows = (data.domain == data.domains.index(user)) & (data.test == test)
    texts, labels = data.x[rows], data.y[rows]
    wanted = cut(user, start, stop)
    assert len(labels) == stop - start
    assert ["".join(ALPHABET[n] for n in text) for text in texts] == wanted["x"]
    assert "".join(ALPHABET[n] for n in labels) == "".join(wanted["y"])


def test_the_alphabet_is_that_of_leaf():
    assert len(set(ALPHABET)) == len(ALPHABET) == 80
    assert (ALPHABET.index(" "), ALPHABET.index("A"), ALPHABET.index("a")) == (1, 25, 53)


@pytest.mark.parametrize("place", ["", "data", "shakespeare/data", "usual place"])
def test_the_texts_of_each_user_are_split_in_order(place, tmp_path, monkeypatch):
    inner = "shakespeare" if place == "usual place" else place
    write(tmp_path / inner / "all_data" / "all_data.json", SPEECHES)
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(tmp_path)))
    data = shakespeare(folder="" if place == "usual place" else str(tmp_path), fraction=1.0)
    assert (data.x.dtype, data.y.dtype, data.domain.dtype) == (np.int8, np.int32, np.int32)
    assert data.domains == ("EMMA_\u00c9LISE", "HAMLET_GHOST", "LEAR_FOOL")  # SILENT has too few
    assert data.classes == tuple(ALPHABET) and data.x.shape == (len(data.y), 80)
    assert data.test.tolist() == sorted(data.test.tolist())  # training rows first
    for user in data.domains:
        count = COUNTS[user]
        check_rows(data, user, False, 0, count * 4 // 5)
        check_rows(data, user, True, count * 4 // 5 + 79, count)
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
    users = {f"U{count}": speech("U", count) for count in (394, 395, 396, 397)}
    write(tmp_path / "all_data" / "a.json", users)
    assert shakespeare(folder=str(tmp_path), fraction=1.0).domains == ("U396", "U397")
    write(tmp_path / "all_data" / "a.json", {"U": speech("U", 395)})
    message = complaint(shakespeare, folder=str(tmp_path), fraction=1.0)
    assert "has no user with enough texts for a test set" in message


def write_ready(folder: Path) -> Path:
    """Writes train/ and test/ as LEAF's split_data.py does."""
    for part in ("train", "test"):
        users = {}
        for user, count in list(COUNTS.items())[:3]:
            first = count * 4 // 5
            span = (0, first) if part == "train" else (first + 79, count)
            users[user] = cut(user, *span)
        write(folder / part / f"all_data_niid_1_keep_40_{part}_8.json", users)
    return folder


def test_an_existing_split_is_used_unchanged(tmp_path, caplog):
    write_ready(tmp_path / "data")
    write(tmp_path / "data" / "all_data" / "all_data.json", {"OTHER": speech("O", 900)})
    with caplog.at_level(logging.WARNING):
        data = shakespeare(folder=str(tmp_path))
    assert not caplog.records
    assert data.domains == ("EMMA_\u00c9LISE", "HAMLET_GHOST", "LEAR_FOOL")
    for user in data.domains:
        count = COUNTS[user]
        check_rows(data, user, False, 0, count * 4 // 5)
        check_rows(data, user, True, count * 4 // 5 + 79, count)
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
    assert data.x[0, :6].tolist() == [space] * 6 and data.y[0] == space
    assert data.x[1, :3].tolist() == [space, 79, space]
    assert data.x.shape == (400 + 21, 80) and data.x.min() >= 0 and data.x.max() == 79


# Clients


def federations(data, clients: int, seeds=(0, 1)):
    config = {"partition": {"name": "by_domain", "num_clients": clients}}
    resolved = resolve(config)
    return experiment.deal_dataset(resolved, data, list(seeds))


def test_with_one_client_per_user_each_client_has_the_rows_of_its_user(tmp_path):
    """A client has all of these rows, even if a character is only in the user's test texts."""
    speeches = {user: speech(user, count) for user, count in COUNTS.items()}
    fool = speeches["LEAR_FOOL"]
    fool["y"] = ["a"] * 400 + ["z"] * 20
    write(tmp_path / "all_data" / "all_data.json", speeches)
    data = shakespeare(folder=str(tmp_path), fraction=1.0)
    of_fool = data.domain == data.domains.index("LEAR_FOOL")
    assert not set(data.y[of_fool & data.test]) & set(data.y[of_fool & ~data.test])
    for federation in federations(data, 3):
        for user in range(3):
            for rows, test in ((federation.train, False), (federation.test, True)):
                rows_of_user = np.asarray(rows[user])
                expected = np.flatnonzero((data.domain == user) & (data.test == test))
                assert sorted(rows_of_user[rows_of_user >= 0]) == expected.tolist()
    assert "must be a multiple of 3, the number of domains" in complaint(federations, data, 10)


def test_users_are_natural_users_and_by_domain_is_unaffected(tmp_path):
    write(tmp_path / "all_data" / "all_data.json", SPEECHES)
    data = shakespeare(folder=str(tmp_path), fraction=1.0)
    assert data.users == data.domains
    np.testing.assert_array_equal(data.client, data.domain)
    before = data._replace(client=None, users=())
    for now, then in zip(federations(data, 3), federations(before, 3), strict=True):
        for a, b in zip(now.train, then.train, strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(now.test, then.test)
    resolved = resolve({"partition": {"name": "by_client"}})
    (by_client,) = experiment.deal_dataset(resolved, data, [0])
    (by_domain,) = federations(data, 3, [0])
    for ours, theirs in ((by_client.train, by_domain.train), (by_client.test, by_domain.test)):
        np.testing.assert_array_equal(np.sort(ours), np.sort(theirs))


def test_test_labels_without_training_examples_follow_their_domain():
    y, domain = np.zeros(40, int), np.repeat([0, 1], 20)
    parts = [np.arange(15), np.arange(15, 20), np.arange(20, 20)]
    test_y, test_domain = np.array([0] * 8 + [3] * 8 + [3] * 5), np.repeat([0, 0, 1], (8, 8, 5))
    rng = np.random.default_rng(0)
    dealt = partition.deal_like(parts, y, domain, test_y, test_domain, rng)
    assert [np.bincount(test_y[p], minlength=4).tolist() for p in dealt] == [
        [6, 0, 0, 6],
        [2, 0, 0, 2],
        [0, 0, 0, 0],
    ]
    assert all((test_domain[p] == 0).all() for p in dealt)  # no client has the other domain


# Invalid files

TEXT = "a" * 80
BROKEN = {
    "no json": ("<html>", "cannot be read as JSON"),
    "cut": ('{"users": ["A"], "user_da', "cannot be read as JSON"),
    "no utf-8": (b'{"users": ["\xff"]}', "cannot be read as JSON"),
    "deep": ("[" * 10**6, "cannot be read as JSON"),
    "list": ([], "has no list `users` and object `user_data`"),
    "no users": ({"user_data": {}}, "has no list `users`"),
    "no data": ({"users": ["A"]}, "has no list `users` and object `user_data`"),
    "users an object": ({"users": {"A": 1}, "user_data": {}}, "has no list `users`"),
    "missing user": ({"users": ["A\n"], "user_data": {}}, "user 'A\\n' has no lists x and y"),
    "number": ({"users": [3], "user_data": {"3": {}}}, "user 3 has no lists"),
    "no y": ({"users": ["A"], "user_data": {"A": {"x": []}}}, "has no lists x and y"),
    "raw": ({"users": ["A"], "user_data": {"A": {"raw": "To be"}}}, "has no lists x and y"),
    "text": ({"users": ["A"], "user_data": {"A": {"x": TEXT, "y": "a"}}}, "has no lists x and y"),
    "count": (
        {"users": ["A"], "user_data": {"A": {"x": [TEXT] * 2, "y": ["a"]}}},
        "has no lists x and y of equal length",
    ),
    "twice": (
        {"users": ["A", "A"], "user_data": {"A": {"x": [TEXT], "y": ["a"]}}},
        "user 'A' occurs twice",
    ),
    "short": (
        {"users": ["A"], "user_data": {"A": {"x": [TEXT] * 499 + ["a" * 79], "y": ["a"] * 500}}},
        "x of user 'A' has entries that are not texts of length 80",
    ),
    "label": (
        {"users": ["A"], "user_data": {"A": {"x": [TEXT] * 500, "y": ["ab"] * 500}}},
        "y of user 'A' has entries that are not texts of length 1",
    ),
    "numbers": (
        {"users": ["A"], "user_data": {"A": {"x": [TEXT] * 500, "y": [3] * 500}}},
        "y of user 'A'",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_files_not_in_leafs_format_are_rejected(case, tmp_path):
    content, expected = BROKEN[case]
    file = tmp_path / "all_data" / "all_data.json"
    file.parent.mkdir()
    text = content if isinstance(content, (str, bytes)) else json.dumps(content)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    message = complaint(shakespeare, folder=str(tmp_path), fraction=1.0)
    assert message.startswith(str(file)) and expected in message
    assert "preprocess.sh -s niid --sf 0.1 -k 40 -t sample --tf 0.8" in message


@pytest.mark.parametrize("how", ["no test", "user apart", "empty"])
def test_inconsistent_existing_splits_are_rejected(how, tmp_path):
    file = next(iter((write_ready(tmp_path) / "test").iterdir()))
    content = json.loads(file.read_text())["user_data"]
    if how == "no test":
        file.unlink()
    elif how == "user apart":
        del content["LEAR_FOOL"]
    else:
        content["LEAR_FOOL"] = {"x": [], "y": []}
    if how != "no test":
        write(file, content)
    message = complaint(shakespeare, folder=str(tmp_path))
    expected = {
        "no test": f"{tmp_path / 'test'} has no files *.json",
        "user apart": "user 'LEAR_FOOL' is not in both train/ and test/",
        "empty": "user 'LEAR_FOOL' has no training texts or no test texts",
    }
    assert expected[how] in message and "-t sample" in message


def test_missing_files_and_invalid_settings_are_rejected(tmp_path):
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(shakespeare, folder=folder)
        assert place in message and "shakespeare/train" in message and "--tf 0.8" in message
    assert "is not a folder" in complaint(shakespeare, folder=str(tmp_path / "none"))
    for fraction in (0.0, 1.5, -1.0, float("nan")):
        assert "config.data.fraction" in complaint(shakespeare, fraction=fraction)
    assert "config.data.seed" in complaint(shakespeare, seed=-1)
