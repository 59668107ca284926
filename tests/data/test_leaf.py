"""Tests the reader of LEAF's JSON data sets on small files in the format of each."""

import json

import broken
import leaf_files
import numpy as np
import pytest
from inputs import complaint
from token_rows import examples_of_texts

from fedjax_lab.data import safe
from fedjax_lab.data.formats import leaf_json
from fedjax_lab.data.sources.leaf import leaf


def user_rows(data, name, test=False):
    return np.flatnonzero((data.client == data.users.index(name)) & (data.test == test))


@pytest.mark.parametrize("around", [False, True])
def test_femnist_is_read_from_its_folder_or_the_folder_around_it(around, tmp_path):
    file = leaf_files.write_femnist(tmp_path / "data")
    data = leaf(folder=str(tmp_path if around else tmp_path / "data"))
    assert (data.x.shape, data.x.dtype) == ((8, 28, 28, 1), np.uint8)
    assert data.users == ("f0000_14", "f0001_02") and data.domains == ("leaf",)
    assert len(data.classes) == 62 and data.classes[61] == "z"
    for user, values in json.loads(file.read_text())["user_data"].items():
        if values["y"]:
            rows = user_rows(data, user)
            np.testing.assert_allclose(data.x[rows].reshape(3, 784) / 255, values["x"])
            assert data.y[rows].tolist() == values["y"]
    assert [len(user_rows(data, user, test=True)) for user in data.users] == [1, 1]
    assert "LEAF: A Benchmark" in data.citation
    leaf_files.write_femnist(tmp_path / "digits", highest=9)
    assert leaf(folder=str(tmp_path / "digits")).classes == tuple("0123456789")


def test_femnist_has_no_labels_above_61(tmp_path):
    leaf_files.write_femnist(tmp_path, highest=62)
    message = complaint(leaf, folder=str(tmp_path))
    assert "has the label 62" in message and "whose labels are 0 .. 61" in message


def test_pixels_that_are_not_gray_levels_stay_floats(tmp_path):
    users = {"a": leaf_files.characters(2, [0, 1]), "b": leaf_files.characters(1, [2])}
    users["b"]["x"][0][5] = -0.42
    leaf_files.write_leaf(tmp_path / "all_data" / "a.json", users)
    data = leaf(folder=str(tmp_path))
    assert data.x.dtype == np.float32 and not data.test.any()
    np.testing.assert_allclose(data.x[:2].reshape(2, 784), users["a"]["x"], atol=1e-7)
    assert data.x[2].ravel()[5] == np.float32(-0.42)


def test_vectors_of_synthetic_tasks_are_read(tmp_path):
    """The test file has users that the training file lacks, as with LEAF's `-t user`."""
    x = np.random.default_rng(0).normal(size=(3, 60))
    users = {"0": {"x": x.tolist(), "y": [4.0, 0.0, 1.0]}}
    leaf_files.write_leaf(tmp_path / "train" / "a.json", users)
    leaf_files.write_leaf(tmp_path / "test" / "a.json", {"1": {"x": x[:1].tolist(), "y": [2]}})
    data = leaf(folder=str(tmp_path))
    np.testing.assert_allclose(data.x[:3], x, rtol=1e-6)
    assert data.y.tolist() == [4, 0, 1, 2] and data.classes == tuple("01234")
    assert data.client.tolist() == [0, 0, 0, 1] and data.test.tolist() == [False] * 3 + [True]


def test_celeba_images_are_read_from_files_and_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    leaf_files.write_celeba(tmp_path / "data")
    for _ in "decoded", "cached":
        data = leaf(folder=str(tmp_path / "data"), size=8)
        assert data.x.shape == (4, 8, 8, 3) and data.y.tolist() == [0, 1, 0, 1]
        assert data.x[:, 0, 0, 0].tolist() == [150, 50, 100, 200]
        assert data.client.tolist() == [1, 0, 0, 0] and data.test.tolist() == [False] * 3 + [True]
    (tmp_path / "data" / "raw").rename(tmp_path / "raw")
    assert "config.data.images" in complaint(leaf, folder=str(tmp_path / "data"))
    data = leaf(folder=str(tmp_path / "data"), images=str(tmp_path / "raw/img_align_celeba"))
    assert data.x.shape == (4, 84, 84, 3)


def test_unsafe_image_names_are_rejected(tmp_path):
    leaf_files.write_celeba(tmp_path)
    for name in ("../secret.png", "/etc/secret.png", "a\\b.png", "a\x00.png"):
        users = {"7": {"x": ["1.png", name], "y": [0, 1]}}
        leaf_files.write_leaf(tmp_path / "train" / "t.json", users)
        assert "without a folder" in complaint(leaf, folder=str(tmp_path))


def test_tweets_become_token_ids_and_labels(tmp_path):
    leaf_files.write_tweets(tmp_path)
    data = leaf(folder=str(tmp_path), vocabulary=50)
    texts = ["a good day", "a bad day", "good good good"]
    np.testing.assert_array_equal(data.x, examples_of_texts(texts, "hash", 50, 25))
    assert data.y.tolist() == [1, 0, 1] and data.users == ("ann", "bob")


def test_comments_become_one_example_per_next_word(tmp_path):
    leaf_files.write_reddit(tmp_path)
    data = leaf(folder=str(tmp_path), length=2)
    assert data.classes[2:] == ("<EOS>", "the", "bird", "cat", "dog")
    names = np.array([*" ?", *data.classes[2:]])
    examples = np.concatenate([names[data.x], names[data.y][:, None]], 1)  # two words and the next
    assert [" ".join(row) for row in examples] == [
        "    the",
        "  the cat",
        "the cat the",
        "cat the dog",
        "the dog <EOS>",
        "    the",
        "  the bird",
        "the bird <EOS>",
        "    <EOS>",
        "    the",
        "  the ?",
        "the ? <EOS>",
    ]
    assert data.client.tolist() == [0] * 5 + [1] * 7
    assert data.test.tolist() == [False] * 9 + [True] * 3
    assert leaf(folder=str(tmp_path), vocabulary=4).classes[2:] == ("<EOS>", "the")


@pytest.mark.parametrize("form", ["texts", "lists of words"])
def test_comments_not_cut_into_sequences_give_the_same_examples(form, tmp_path):
    """This is LEAF's Reddit before its last step: x has whole comments, and y their sources."""
    leaf_files.write_reddit(tmp_path / "cut")
    for split in ("train", "test"):
        file = tmp_path / "cut" / split / f"reddit_0_{split}.json"
        users = json.loads(file.read_text())["user_data"]
        for user in users.values():
            cut = [[w for part in comment for w in part if w[0] != "<"] for comment in user["x"]]
            user["x"] = [" ".join(words) for words in cut] if form == "texts" else cut
        leaf_files.write_leaf(tmp_path / "whole" / split / "a.json", users)
    one, other = (leaf(folder=str(tmp_path / name)) for name in ("cut", "whole"))
    np.testing.assert_array_equal(one.x, other.x)
    assert one.classes == other.classes and one.y.tolist() == other.y.tolist()


def test_unpaired_surrogates_become_question_marks(tmp_path):
    """JSON can contain them, but printed names and hashed words cannot."""
    texts = {"x": ["good \ud83d day", "bad"], "y": [1, 0]}
    comments = {"x": [[["<BOS>", "\ud83d", "<EOS>"]]], "y": [{}]}
    leaf_files.write_leaf(tmp_path / "t" / "train" / "a.json", {"\ud800": texts})
    leaf_files.write_leaf(tmp_path / "c" / "train" / "a.json", {"\ud800": comments})
    assert leaf(folder=str(tmp_path / "t")).users == ("?",)
    assert leaf(folder=str(tmp_path / "c")).classes[2:] == ("<EOS>", "?")


VECTOR = [0.5, 1.0]
UNREADABLE = "user 'a' cannot be read"
DAMAGED = [  # (x and y of a user, words of the error)
    ([VECTOR, [0.5, 1e39]], [0, 1], "x must hold finite numbers"),
    ([VECTOR, ["b", "c"]], [0, 1], UNREADABLE),
    ([VECTOR] * 2, [0, 0.5], "labels are not integers"),
    ([VECTOR] * 2, [0, 10**400], UNREADABLE),
    ([VECTOR] * 2, [0], "no lists x and y of equal length"),
    (["b", 3], [0, 1], "some x is neither a text nor a row"),
    ([[["b"]], [[3]]], [{}, {}], "some x is neither a text nor a list"),
]


@pytest.mark.parametrize("x, y, expected", DAMAGED, ids=range(len(DAMAGED)))
def test_files_not_in_leafs_format_are_rejected(x, y, expected, tmp_path):
    leaf_files.write_leaf(tmp_path / "train" / "a.json", {"a": {"x": x, "y": y}})
    broken.check(leaf, tmp_path, expected, folder=str(tmp_path))


def test_missing_and_mixed_files_and_those_of_other_sources_are_rejected(tmp_path):
    assert "is not a folder" in complaint(leaf, folder=str(tmp_path / "none"))
    assert "no train/*.json or all_data/*.json" in complaint(leaf, folder=str(tmp_path))
    users = {"a": {"x": [VECTOR], "y": [0]}, "b": {"x": [[1.0]], "y": [0]}}
    leaf_files.write_leaf(tmp_path / "train" / "a.json", users)
    message = complaint(leaf, folder=str(tmp_path))
    assert "user 'a' have shape [2], but those of user 'b' have [1]" in message
    users = {"HAMLET": {"x": ["a" * 80], "y": ["b"]}}
    leaf_files.write_leaf(tmp_path / "train" / "a.json", users)
    assert "config.data.name=shakespeare" in complaint(leaf, folder=str(tmp_path))


def test_reading_stops_before_the_memory_is_full(tmp_path, monkeypatch):
    """The file itself fits in memory, but the data of its second user do not."""
    file = leaf_files.write_femnist(tmp_path)
    monkeypatch.setattr(safe, "SMALL", 0)
    monkeypatch.setattr(safe, "free_memory", lambda: 12 * file.stat().st_size)
    leaf(folder=str(tmp_path))
    monkeypatch.setattr("fedjax_lab.data.formats.user_rows.OBJECT", 4 * file.stat().st_size)
    assert "user 'f0000_14' does not fit in memory" in complaint(leaf, folder=str(tmp_path))
    monkeypatch.setattr(safe, "free_memory", lambda: 9 * file.stat().st_size)
    assert f"{file} does not fit in memory" in complaint(leaf, folder=str(tmp_path))


def test_members_may_have_any_order_and_white_space_between_them(tmp_path):
    users = {name: {"x": [[1]], "y": [0]} for name in "abc"}
    for order in (("users", "user_data"), ("user_data", "users")):
        content = {"users": list(users), "user_data": users}
        file = tmp_path / "a.json"
        file.write_text(json.dumps({key: content[key] for key in order}, indent=3))
        for user, name in zip(leaf_json.users_of(file), "abc", strict=True):
            assert user.name == name and user.x == [[1]]


INVALID = [
    '{"users": ["a"], "user_data": {"a": {"x": [], "y": []}}} more',
    '{"users": ["a"], "user_data": {"a": {"x": [], "y": []}',
    '{"users": ["a"], "user_data": {3: {"x": [], "y": []}}}',
    "{",
]


def test_invalid_json_is_rejected(tmp_path):
    file = tmp_path / "a.json"
    for text in INVALID:
        file.write_text(text)
        said = f"{file} cannot be read as JSON ("
        broken.check(lambda: list(leaf_json.users_of(file)), file, said)
