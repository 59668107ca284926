"""CIFAR-10 and CIFAR-100: small data sets in the original formats."""

import pickle
import tarfile

import numpy as np
import pytest
from image_files import FLAT, IMAGES, LABELS, Call, check_one_domain, python2
from inputs import complaint

from fedjax_lab.data import cifar, places
from fedjax_lab.registry import NAMED


@pytest.fixture
def nothing_in_the_usual_places(monkeypatch):
    monkeypatch.setattr(places, "PLACES", ("/nowhere/a", "/nowhere/b"))


def test_sources_are_registered_under_their_names():
    for name in ("cifar10", "cifar100", "svhn", "tiny_imagenet", "tfds"):
        assert NAMED["data"][name].__name__ == name


def cifar10_parts() -> dict[str, dict]:
    parts = {
        f"data_batch_{n + 1}": {
            "batch_label": f"training batch {n + 1} of 5",
            "labels": LABELS[n : n + 1],
            "data": FLAT[n : n + 1],
            "filenames": [f"{n}.png"],
        }
        for n in range(5)
    }
    parts["test_batch"] = {"labels": LABELS[5:], "data": FLAT[5:]}
    parts["batches.meta"] = {"num_cases_per_batch": 1, "label_names": [f"c{n}" for n in range(10)]}
    return parts


def cifar100_parts() -> dict[str, dict]:
    names = {"fine_label_names": [f"f{n}" for n in range(100)], "coarse_label_names": ["c"] * 20}
    return {
        "train": {"fine_labels": [99, 0, 7, 7, 7], "coarse_labels": [1] * 5, "data": FLAT[:5]},
        "test": {"fine_labels": [50, 1], "coarse_labels": [2] * 2, "data": FLAT[5:]},
        "meta": names,
    }


SETS = {
    "cifar10": (cifar.cifar10, cifar.CIFAR10, cifar10_parts),
    "cifar100": (cifar.cifar100, cifar.CIFAR100, cifar100_parts),
}


def unpack(parts: dict[str, dict], folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        (folder / name).write_bytes(python2(part))
    return folder


@pytest.mark.parametrize("where", ["itself", "parent", "archive", "usual place"])
@pytest.mark.parametrize("name", SETS)
def test_cifar_is_read_from_a_folder_or_an_archive(name, where, tmp_path, monkeypatch):
    source, release, parts = SETS[name]
    inner = unpack(parts(), tmp_path / release.folder)
    if where == "archive":
        with tarfile.open(tmp_path / release.archive, "w:gz") as members:
            members.add(inner, release.folder)
        inner.rename(tmp_path / "away")
    folder = {"itself": str(inner), "usual place": ""}.get(where, str(tmp_path))
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(tmp_path)))
    data = source(folder=folder)
    check_one_domain(data, name, 5, 7)
    assert np.array_equal(data.x, IMAGES)
    assert data.y.tolist() == (LABELS if name == "cifar10" else [99, 0, 7, 7, 7, 50, 1])
    count = release.num_classes
    assert data.classes == tuple(f"{'c' if count == 10 else 'f'}{n}" for n in range(count))
    left = {"away", release.archive} if where == "archive" else {release.folder}
    assert {file.name for file in tmp_path.iterdir()} == left  # nothing was unpacked


@pytest.mark.parametrize("name", SETS)
def test_missing_cifar_is_an_error_with_instructions(name, tmp_path, nothing_in_the_usual_places):
    source, release, _ = SETS[name]
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(source, folder=folder)
        for part in (place, "https://www.cs.toronto.edu/~kriz/cifar.html", release.archive):
            assert part in message
        assert f"{release.folder}/" in message and "--config.data.folder" in message
        assert ", ".join((*release.train, release.test, release.meta)) in message
    assert "/nowhere/c is not a folder" in complaint(source, folder="/nowhere/c")


BROKEN_CIFAR = {
    "missing": ("test_batch", None, "cannot be read"),
    "meta missing": ("batches.meta", None, "cannot be read"),
    "list": ("data_batch_2", [1, 2], "not a dictionary with data and labels"),
    "no data": ("data_batch_2", {"labels": [1]}, "not a dictionary with data and labels"),
    "no labels": ("data_batch_2", {"data": FLAT[:1]}, "not a dictionary with data and labels"),
    "data a list": ("data_batch_2", {"data": [[1], []], "labels": [1]}, "data is not an array"),
    "floats": (
        "data_batch_2",
        {"data": FLAT[:1].astype(float), "labels": [1]},
        "data is float64 [1, 3072]",
    ),
    "shape": ("data_batch_2", {"data": FLAT[:1, :9], "labels": [1]}, "data is uint8 [1, 9]"),
    "no rows": ("data_batch_2", {"data": FLAT[:0], "labels": []}, "data is uint8 [0, 3072]"),
    "count": ("data_batch_2", {"data": FLAT[:2], "labels": [1]}, "labels is not a list of 2"),
    "label": ("data_batch_2", {"data": FLAT[:1], "labels": [10]}, "10 is not a label of cifar10"),
    "negative": ("test_batch", {"data": FLAT[:1], "labels": [-1]}, "-1 is not a label"),
    "text label": ("test_batch", {"data": FLAT[:1], "labels": ["\n"]}, "b'\\n' is not a label"),
    "no names": ("batches.meta", {"num_vis": 3072}, "has no list label_names"),
    "few names": ("batches.meta", {"label_names": ["a"]}, "has 1 classes, not 10"),
}


@pytest.mark.parametrize("case", BROKEN_CIFAR)
def test_an_error_says_what_is_wrong_with_a_file_of_cifar(case, tmp_path):
    name, part, expected = BROKEN_CIFAR[case]
    folder = unpack(cifar10_parts(), tmp_path)
    (folder / name).unlink()
    if part is not None:
        (folder / name).write_bytes(python2(part))
    message = complaint(cifar.cifar10, folder=str(folder))
    assert message.startswith(str(folder / name)) and expected in message
    assert "cifar.html" in message


def test_truncated_and_hostile_files_of_cifar_are_errors(tmp_path):
    folder = unpack(cifar10_parts(), tmp_path)
    file = folder / "data_batch_3"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert f"{file} is damaged or not plain data" in complaint(cifar.cifar10, folder=str(folder))
    file.write_bytes(pickle.dumps(Call(eval, "1")))
    assert f"{file} is damaged or not plain data" in complaint(cifar.cifar10, folder=str(folder))


@pytest.mark.parametrize("case", ["truncated", "no gzip", "member missing", "hostile member"])
def test_broken_archives_of_cifar_are_errors(case, tmp_path):
    parts = cifar100_parts()
    if case == "member missing":
        del parts["test"]
    inner = unpack(parts, tmp_path / "new")
    if case == "hostile member":
        (inner / "test").write_bytes(pickle.dumps(Call(eval, "1")))
    archive = tmp_path / "cifar-100-python.tar.gz"
    with tarfile.open(archive, "w:gz") as members:
        members.add(inner, "cifar-100-python")
    if case == "truncated":
        archive.write_bytes(archive.read_bytes()[:-2000])
    if case == "no gzip":
        archive.write_bytes(b"<html>")
    message = complaint(cifar.cifar100, folder=str(tmp_path))
    expected = {
        "member missing": f"{archive} has no cifar-100-python/test",
        "hostile member": f"{archive}/test is damaged or not plain data",
    }.get(case, f"{archive} cannot be read")
    assert message.startswith(expected)
