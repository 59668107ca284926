"""Tests TensorFlow Federated's HDF5 data sets on small files in the format of each."""

import contextlib
from functools import partial

import broken
import leaf_files
import numpy as np
import optional
import pytest
from inputs import complaint

from fedjax_lab.data.sources.shakespeare import ALPHABET
from fedjax_lab.data.sources.tff import tff_hdf5

h5py = optional.module("h5py")


def test_federated_emnist_is_read(tmp_path):
    file = leaf_files.write_fed_emnist(tmp_path)
    data = tff_hdf5(folder=str(tmp_path))
    assert (data.x.shape, data.x.dtype, len(data.classes)) == ((7, 28, 28, 1), np.uint8, 62)
    assert data.users == ("f0000_14", "f0001_02") and data.domains == ("fed_emnist",)
    assert data.client.tolist() == [0, 0, 1, 1, 1, 0, 1]
    assert data.test.tolist() == [False] * 5 + [True] * 2
    assert data.y.tolist() == [9, 10, 9, 10, 11, 9, 9]
    with h5py.File(file) as content:
        pixels = content["examples/f0001_02/pixels"][()]
    np.testing.assert_allclose(data.x[2:5, ..., 0] / 255, pixels, atol=1e-6)


def test_uint8_images_are_kept_unchanged(tmp_path):
    """This holds with and without a channel axis."""
    for gray in (np.full((2, 28, 28), 200, np.uint8), np.full((2, 28, 28, 1), 200, np.uint8)):
        for part in ("train", "test"):
            with h5py.File(tmp_path / f"own_{part}.h5", "w") as file:
                file["examples/a/pixels"], file["examples/a/label"] = gray, [0, 1]
        data = tff_hdf5(folder=str(tmp_path))
        assert data.x.dtype == np.uint8 and data.x.shape == (4, 28, 28, 1)
        assert (data.x == 200).all()


def test_the_data_set_must_be_named_if_there_are_several(tmp_path):
    leaf_files.write_fed_emnist(tmp_path)
    digits = {"a": {"pixels": np.zeros((1, 28, 28), np.float32), "label": [9]}}
    leaf_files.write_hdf5(tmp_path, "fed_emnist_digitsonly", train=digits, test=digits)
    assert "config.data.dataset" in complaint(tff_hdf5, folder=str(tmp_path))
    data = tff_hdf5(folder=str(tmp_path), dataset="fed_emnist_digitsonly")
    assert len(data.x) == 2 and data.classes == tuple("0123456789")
    message = complaint(tff_hdf5, folder=str(tmp_path), dataset="fed_emnist_digitsonl")
    assert "did you mean 'fed_emnist_digitsonly'?" in message


def test_max_users_draws_some_of_the_users(tmp_path):
    user = {"image": np.zeros((2, 32, 32, 3), np.uint8), "label": np.array([[5], [99]])}
    many = {str(number): user for number in range(20)}
    leaf_files.write_hdf5(tmp_path, "fed_cifar100", train=many, test={"0": user})
    some, again = (tff_hdf5(folder=str(tmp_path), max_users=4) for _ in range(2))
    assert some.test.sum() == 2 and len(some.users) == 5 and some.users == again.users
    assert len(some.x) == 10 and some.x.shape[1:] == (32, 32, 3) and len(some.classes) == 100
    # A test client of CIFAR-100 is never a training client, although both may be named 0.
    assert some.users[-1] == "test 0" and (some.client[some.test] == 4).all()
    settings = (("max_users", -1), ("length", 0), ("tags", 0), ("task", "tag"), ("vocabulary", 2))
    for name, setting in settings:
        assert f"config.data.{name}" in complaint(tff_hdf5, folder="", **{name: setting})


def test_shakespeare_snippets_give_next_character_examples(tmp_path):
    rng = np.random.default_rng(0)
    snippets = ["".join(rng.choice(list(ALPHABET), 60)) for _ in range(2)]
    users = {"HAMLET": {"snippets": snippets}, "GHOST": {"snippets": ["Mark me."]}}
    leaf_files.write_hdf5(tmp_path, "shakespeare", train=users, test={"HAMLET": users["HAMLET"]})
    data = tff_hdf5(folder=str(tmp_path))
    whole = "\n".join(snippets)
    assert data.x.shape == (2 * (121 - 80), 80) and data.users == ("HAMLET",)
    shown = ["".join(ALPHABET[n] for n in data.x[row]) for row in (0, 40)]
    assert shown == [whole[:80], whole[40:120]]
    assert "".join(ALPHABET[n] for n in data.y[:41]) == whole[80:]


SENTENCES = {
    "1": {
        "tokens": ["how to sort a list", "use sort"],
        "title": ["sort list", "sort list"],
        "tags": ["python|list", "python|list"],
    },
    "2": {
        "tokens": ["why is it slow", "no idea"],
        "title": ["slow loop", "rare"],
        "tags": ["java|python|loops", "cobol"],
    },
}
TESTS = {"2": {"tokens": ["sort whales"], "title": ["slow"], "tags": ["list|java"]}}


def write_questions(folder):
    return leaf_files.write_hdf5(folder, "stackoverflow", train=SENTENCES, test=TESTS)


def test_stack_overflow_sentences_give_word_frequencies_and_tags(tmp_path):
    write_questions(tmp_path)
    data = tff_hdf5(folder=str(tmp_path), tags=2, vocabulary=3)
    assert data.classes == ("python", "list")  # the fourth sentence has neither
    assert data.y.tolist() == [0, 0, 0, 1] and data.client.tolist() == [0, 0, 1, 1]
    words = np.asarray(data.x)  # of the most frequent training words: sort, list, slow
    assert data.license == "CC BY-SA 3.0" and "Stack Overflow" in data.citation
    assert words.dtype == np.float32 and words.shape == (4, 3)
    expected = [[2 / 7, 2 / 7, 0], [2 / 4, 1 / 4, 0], [0, 0, 2 / 6], [1 / 3, 0, 1 / 3]]
    np.testing.assert_allclose(words, expected)
    assert len(tff_hdf5(folder=str(tmp_path)).classes) == 5
    none = {"1": SENTENCES["1"] | {"tags": ["", "|"]}}
    leaf_files.write_hdf5(tmp_path, "none", train=none, test=TESTS)
    assert "has a tag" in complaint(tff_hdf5, folder=str(tmp_path), dataset="none")


def test_stack_overflow_sentences_give_next_word_examples(tmp_path):
    write_questions(tmp_path)
    data = tff_hdf5(folder=str(tmp_path), task="next_word", length=3)
    named = [data.classes[number] for number in data.y]
    assert named[:9] == [*"how to sort a list".split(), "<EOS>", *"use sort".split(), "<EOS>"]
    assert [data.classes[n] for n in data.x[3]] == ["how", "to", "sort"]
    assert data.x[0].tolist() == data.x[6].tolist() == [0, 0, 0]
    assert named[-2] == data.classes[1]  # "whales" is unknown
    assert tff_hdf5(folder=str(tmp_path), task="next_word").x.shape[1] == 20


def test_missing_folders_and_files_are_rejected(tmp_path):
    assert "is not a folder" in complaint(tff_hdf5, folder=str(tmp_path / "none"))
    assert "no *_train.h5 in" in complaint(tff_hdf5, folder=str(tmp_path))
    leaf_files.write_fed_emnist(tmp_path)
    (tmp_path / "fed_emnist_test.h5").unlink()
    assert "fed_emnist_test.h5 is missing" in complaint(tff_hdf5, folder=str(tmp_path))


def test_hdf5_data_in_other_files_or_with_huge_declared_shapes_are_rejected(tmp_path):
    file = leaf_files.write_fed_emnist(tmp_path)
    load = partial(complaint, tff_hdf5, folder=str(tmp_path))

    @contextlib.contextmanager
    def user():
        with h5py.File(file, "r+") as content:
            del content["examples/f0000_14/pixels"]
            yield content["examples/f0000_14"]

    with user() as group:
        group["pixels"] = h5py.ExternalLink("other.h5", "/x")
    assert "there is no 'pixels'" in load()
    with user() as group:
        where = [("/etc/passwd", 0, 6272)]
        group.create_dataset("pixels", (2, 28, 28), "f4", external=where)
    assert "is in other files" in load()
    with user() as group:
        group.create_dataset("pixels", (2**30, 28, 28), "f4", chunks=(1, 28, 28))
    assert "it declares" in load()


DAMAGED = {
    "other fields": {"x": [1, 2]},
    "lengths": {"pixels": np.zeros((2, 28, 28), np.float32), "label": [1]},
    "labels": {"pixels": np.zeros((1, 28, 28), np.float32), "label": [-1]},
    "scalars": {"pixels": np.zeros(2, np.float32), "label": [1, 2]},
}


@pytest.mark.parametrize("case", DAMAGED)
def test_files_not_in_tffs_format_are_rejected(case, tmp_path):
    file = leaf_files.write_hdf5(tmp_path, "own", train={"a": DAMAGED[case]}, test={})
    broken.check(tff_hdf5, file, "cannot be read (", "~/.keras/datasets", folder=str(tmp_path))
