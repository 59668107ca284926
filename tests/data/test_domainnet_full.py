"""DomainNet with the official lists: a small data set in the original layout."""

from pathlib import Path

import numpy as np
import pytest
from image_files import check_listing
from inputs import complaint
from PIL import Image

from fedjax_lab.data import images, places
from fedjax_lab.data.domainnet import RELEASE, domainnet_full

DOMAINS = RELEASE.domains
NAMES = ("aircraft_carrier", "airplane", "The_Mona_Lisa", "t-shirt", "zigzag")  # by label
SIDE = 16


@pytest.fixture(autouse=True)
def empty_places(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "PLACES", ("/nowhere/a", "/nowhere/b"))


def pixels(domain: str, label: int, number: int) -> np.ndarray:
    rng = np.random.default_rng([DOMAINS.index(domain), label, number])
    return rng.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)


def path_of(domain: str, label: int, number: int) -> str:
    return f"{domain}/{NAMES[label]}/{domain}_{label + 1:03d}_{number:06d}.png"


def numbers(domain: str, part: str) -> list[tuple[int, int]]:
    """(label, number) of the lines of a list; every second domain trains on one more per class."""
    more = DOMAINS.index(domain) % 2
    count = range(3 + more) if part == "train" else range(8, 10)
    return [(label, number) for label in range(len(NAMES)) for number in count]


def make_set(folder: Path, lists: str = ".") -> Path:
    for domain in DOMAINS:
        for part in ("train", "test"):
            lines = []
            for label, number in numbers(domain, part):
                path = path_of(domain, label, number)
                file = folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels(domain, label, number)).save(file)
                lines.append(f"{path} {label}\n")
            file = folder / lists / f"{domain}_{part}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(lines))
    return folder


@pytest.mark.parametrize("lists", [".", "splits"])
def test_the_lists_determine_the_training_and_test_images(lists, tmp_path):
    make_set(tmp_path / "DomainNet", lists)
    for folder in (tmp_path, tmp_path / "DomainNet"):
        data = domainnet_full(folder=str(folder), size=SIDE, classes=3, classes_seed=4)
        kept = [NAMES.index(name) for name in data.classes]
        assert len(kept) == 3 and kept == sorted(kept)
        assert data.domains == DOMAINS and data.x.dtype == np.uint8
        row = 0
        for test, part in enumerate(("train", "test")):
            for domain in DOMAINS:
                for label, number in numbers(domain, part):
                    if label in kept:
                        assert np.array_equal(data.x[row], pixels(domain, label, number))
                        actual = (data.y[row], data.domain[row], data.test[row])
                        assert actual == (kept.index(label), DOMAINS.index(domain), test)
                        row += 1
        assert row == len(data.x) == len(data.y)


def test_images_can_be_listed_without_decoding(tmp_path):
    check_listing(domainnet_full, folder=str(make_set(tmp_path)), size=8, classes=3)


def test_the_seed_determines_the_drawn_classes(tmp_path, monkeypatch):
    make_set(tmp_path)
    shapes = []

    def decode(files, size, *rest):
        shapes.append(size)
        return np.zeros((len(files), size, size, 3), np.uint8)

    monkeypatch.setattr(images, "decode", decode)
    drawn = [
        domainnet_full(folder=str(tmp_path), classes=2, classes_seed=seed).classes
        for seed in (0, 0, *range(1, 10))
    ]
    assert drawn[0] == drawn[1] and len(set(drawn)) > 3
    assert set(shapes) == {64} and len(shapes) == len(set(drawn))  # otherwise from the cache
    assert domainnet_full(folder=str(tmp_path), classes=5).classes == NAMES


CARRIER = "clipart/aircraft_carrier/clipart_001_000000.png"
BAD_LINES = {
    "no label": (CARRIER, "is not a path and a label"),
    "text": (f"{CARRIER} zero", "is not a path and a label"),
    "negative": (f"{CARRIER} -1", "is not a path and a label"),
    "digit": (f"{CARRIER} \u00b2", "is not a path and a label"),
    "absolute": ("/etc/passwd 0", "is not in the data set's folder"),
    "upwards": ("clipart/../../secret.png 0", "is not in the data set's folder"),
    "control": ("clipart/aircraft_carrier/a\0.png 0", "is not in the data set's folder"),
    "other domain": ("real/aircraft_carrier/a.png 0", "is not clipart/CLASS/IMAGE"),
    "short": ("clipart/a.png 0", "is not clipart/CLASS/IMAGE"),
    "deep": ("clipart/aircraft_carrier/a/b.png 0", "is not clipart/CLASS/IMAGE"),
    "two names": (f"{CARRIER} 1", "label 1 stands for 'airplane' and 'aircraft_carrier'"),
    "new label": (f"{CARRIER} 7", "the labels of 5 classes are not 0, 1, .."),
    "gap": ("clipart/zoo/a.png 345", "the labels of 6 classes are not 0, 1, .."),
    "empty": (None, "is empty"),
    "missing": ("", "cannot be read"),
    "no text": (b"\xff\xfe", "cannot be read"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_lines_of_a_list_are_errors(case, tmp_path, monkeypatch):
    line, expected = BAD_LINES[case]
    file = make_set(tmp_path) / "clipart_test.txt"
    if case == "missing":
        file.unlink()
    else:
        first = line if isinstance(line, bytes) else (line or "").encode()
        file.write_bytes(first + b"\n" + (file.read_bytes() if line else b""))
    opened = []
    monkeypatch.setattr(images, "decode", lambda *a: opened.append(a))
    message = complaint(domainnet_full, folder=str(tmp_path), classes=2)
    assert message.startswith(str(tmp_path)) and expected in message and "M3SDA" in message
    assert not opened


def test_bad_images_and_settings_are_errors(tmp_path):
    assert "no clipart_train.txt" in complaint(domainnet_full, folder=str(tmp_path))
    assert "/nowhere/a or /nowhere/b" in complaint(domainnet_full)
    make_set(tmp_path)
    settings = {"size": (7, 513), "classes": (0, 6), "classes_seed": (-1,)}
    for key, values in settings.items():
        for value in values:
            message = complaint(
                domainnet_full, **{"folder": str(tmp_path), "classes": 5, key: value}
            )
            assert f"data.{key} " in message and str(value) in message
    file = tmp_path / path_of("sketch", 2, 9)
    file.write_bytes(b"<html>")
    assert complaint(domainnet_full, folder=str(tmp_path), classes=5).startswith(str(file))
    file.unlink()
    assert complaint(domainnet_full, folder=str(tmp_path), classes=5).startswith(str(file))
