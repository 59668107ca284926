"""Tests the Tiny-ImageNet source on small data sets in the published format."""

import numpy as np
import pytest
from image_files import check_listing, check_one_domain
from inputs import complaint

from fedjax_lab.data import images, places, tiny_imagenet


@pytest.fixture
def nothing_in_the_usual_places(monkeypatch):
    monkeypatch.setattr(places, "PLACES", ("/nowhere/a", "/nowhere/b"))


WNIDS = ("n02", "n01", "n10")  # not sorted, as in wnids.txt


@pytest.fixture
def tiny(tmp_path):
    """A folder that contains a small tiny-imagenet-200."""
    from PIL import Image

    rng = np.random.default_rng(0)

    def write(file, mode="RGB"):
        file.parent.mkdir(parents=True, exist_ok=True)
        smooth = Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8))
        smooth.resize((64, 64), Image.Resampling.BICUBIC).convert(mode).save(file, quality=90)

    where = tmp_path / "tiny-imagenet-200"
    for name in WNIDS:
        for number in (10, 9):
            write(where / "train" / name / "images" / f"{name}_{number}.JPEG")
        (where / "train" / name / f"{name}_boxes.txt").write_text("")
    write(where / "train" / "n10" / "images" / "n10_0.JPEG", "L")
    for number in range(3):
        write(where / "val" / "images" / f"val_{number}.JPEG")
    (where / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    lines = [f"val_{n}.JPEG\t{name}\t0\t0\t63\t63" for n, name in enumerate(("n10", "n02", "n02"))]
    (where / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


TRAINING = [
    f"train/{name}/images/{name}_{number}.JPEG"
    for name, numbers in (("n01", (10, 9)), ("n02", (10, 9)), ("n10", (0, 10, 9)))
    for number in numbers
]


TESTS = [f"val/images/val_{number}.JPEG" for number in range(3)]


def pixels(folder, name: str) -> np.ndarray:
    """Returns the decoded image [64, 64, 3]."""
    from PIL import Image

    return np.asarray(Image.open(folder / "tiny-imagenet-200" / name).convert("RGB"))


def test_tiny_imagenet_at_full_size_has_the_original_pixels(tiny, empty_cache):
    data = tiny_imagenet.tiny_imagenet(folder=str(tiny), size=64)
    check_one_domain(data, "tiny_imagenet", 7, 10)
    assert np.array_equal(data.x, [pixels(tiny, name) for name in TRAINING + TESTS])
    assert data.files == tuple(str(tiny / "tiny-imagenet-200" / n) for n in TRAINING + TESTS)
    assert data.classes == ("n01", "n02", "n10")
    assert data.y.tolist() == [0, 0, 1, 1, 2, 2, 2] + [2, 1, 1]
    gray = data.x[TRAINING.index("train/n10/images/n10_0.JPEG")]
    assert np.array_equal(gray[..., 0], gray[..., 1]) and np.array_equal(gray[..., 0], gray[..., 2])


def test_tiny_imagenet_can_be_listed_without_decoding(tiny, empty_cache):
    check_listing(tiny_imagenet.tiny_imagenet, folder=str(tiny))


def test_tiny_imagenet_resizes_with_antialiasing(tiny, empty_cache):
    """At half the size the bilinear filter is a triangle four pixels wide."""
    data = tiny_imagenet.tiny_imagenet(folder=str(tiny / "tiny-imagenet-200"))
    assert data.x.shape == (10, 32, 32, 3)
    weights = np.zeros((32, 64))
    for out in range(32):
        distance = np.abs(np.arange(64) + 0.5 - 2 * (out + 0.5)) / 2
        weights[out] = np.maximum(1 - distance, 0)
    weights /= weights.sum(1, keepdims=True)
    for row, name in enumerate(TRAINING + TESTS):
        expected = np.einsum("ai,bj,ijc->abc", weights, weights, pixels(tiny, name).astype(float))
        assert np.abs(data.x[row] - expected).max() < 1.6  # rounded once along each axis


def test_tiny_imagenet_is_decoded_again_only_after_a_change(tiny, empty_cache, monkeypatch):
    calls, decode = [], images.decode
    monkeypatch.setattr(images, "decode", lambda *a: calls.append(a) or decode(*a))
    where = tiny / "tiny-imagenet-200"
    first = tiny_imagenet.tiny_imagenet(folder=str(tiny))
    again = tiny_imagenet.tiny_imagenet(folder=str(where))
    assert len(calls) == 1 and all(map(np.array_equal, first, again))

    tiny_imagenet.tiny_imagenet(folder=str(tiny), size=16)
    assert len(calls) == 2
    file = where / TRAINING[1]
    file.write_bytes((where / TRAINING[0]).read_bytes() + b"\0")
    changed = tiny_imagenet.tiny_imagenet(folder=str(tiny))
    assert len(calls) == 3 and np.array_equal(changed.x[0], changed.x[1])
    table = where / "val" / "val_annotations.txt"
    table.write_text(table.read_text().replace("n10", "n01"))  # the same length
    assert tiny_imagenet.tiny_imagenet(folder=str(tiny)).y[7] == 0 and len(calls) == 4
    file.rename(file.with_name("n01_8.JPEG"))
    tiny_imagenet.tiny_imagenet(folder=str(tiny))
    assert len(calls) == 5 and len(list(empty_cache.iterdir())) == 5


def test_missing_files_and_invalid_sizes_are_rejected(tmp_path, nothing_in_the_usual_places):
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(tiny_imagenet.tiny_imagenet, folder=folder)
        for part in (place, "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "data.folder"):
            assert part in message
    for size in (7, 65):
        assert f"from 8 to 64, got {size}" in complaint(tiny_imagenet.tiny_imagenet, size=size)


BROKEN_TINY = {
    "truncated image": (TRAINING[3], lambda c: c[: len(c) // 2], "truncated"),
    "truncated test image": (TESTS[1], lambda c: c[: len(c) // 2], "truncated"),
    "no image": (TESTS[0], lambda c: b"<html>", "is damaged or not an image"),
    "empty image": (TRAINING[0], lambda c: b"", "is damaged or not an image"),
    "test image missing": (TESTS[2], None, "cannot be read"),
    "no labels": ("val/val_annotations.txt", None, "cannot be read"),
    "empty labels": ("val/val_annotations.txt", lambda c: b"\n", "is empty"),
    "unknown class": (
        "val/val_annotations.txt",
        lambda c: c.replace(b"n02", b"n99", 1),
        "'n99' of 'val_1.JPEG' is not in wnids.txt",
    ),
    "no tabs": ("val/val_annotations.txt", lambda c: c.replace(b"\t", b" "), "'' of 'val_0.JPEG n"),
    "binary labels": ("val/val_annotations.txt", lambda c: b"\xff\xfe", "cannot be read"),
    "no classes": ("wnids.txt", lambda c: b"", "is empty"),
}


@pytest.mark.parametrize("case", BROKEN_TINY)
def test_invalid_tiny_imagenet_files_are_a_one_line_error(case, tiny, empty_cache):
    name, damage, expected = BROKEN_TINY[case]
    file = tiny / "tiny-imagenet-200" / name
    content = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage(content))
    message = complaint(tiny_imagenet.tiny_imagenet, folder=str(tiny))
    assert message.startswith(str(file)) and expected in message and "tiny-imagenet-200" in message
    assert not empty_cache.exists()


def test_a_tiny_imagenet_class_without_images_is_rejected(tiny, empty_cache):
    wnids = tiny / "tiny-imagenet-200" / "wnids.txt"
    wnids.write_text(wnids.read_text() + "n11\n")
    message = complaint(tiny_imagenet.tiny_imagenet, folder=str(tiny))
    assert f"{wnids.parent / 'train' / 'n11' / 'images'} has no images" in message
