"""The data sources: what they return, that they do so again, and what they say of bad input."""

import gzip
import logging
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data import cache, idx
from fedjax_lab.data import digit_domains as digits
from fedjax_lab.data.arrays import arrays

SMALL = {"size": 28, "train_per_domain": 30, "test_per_domain": 20, "seed": 3}


# Digit domains


@pytest.fixture(scope="module")
def small():
    return digits.generate(28, 30, 20, 3)


def test_digit_domains_shape_and_balance(tmp_path):
    data = digits.digit_domains(**SMALL, cache=str(tmp_path))
    assert data.x.shape == (250, 28, 28, 3)
    assert (data.x.dtype, data.y.dtype, data.domain.dtype, data.test.dtype) == (
        np.uint8,
        np.int32,
        np.int32,
        bool,
    )
    assert data.domains == ("handwritten", "blended", "printed", "street", "postal")
    for domain in range(5):
        for test, each in ((False, 3), (True, 2)):
            rows = (data.domain == domain) & (data.test == test)
            assert np.bincount(data.y[rows]).tolist() == [each] * 10


def test_digit_domains_uneven_count_is_balanced_to_one():
    _, y = digits._split("postal", 16, 17, 0, False)
    assert sorted(np.bincount(y, minlength=10).tolist()) == [1] * 3 + [2] * 7


def test_digit_domains_repeat_bit_for_bit(small):
    again, other = digits.generate(28, 30, 20, 3), digits.generate(28, 30, 20, 4)
    assert all(np.array_equal(small[key], again[key]) for key in small)
    assert not np.array_equal(small["x"], other["x"])


def test_digit_domains_do_not_touch_the_global_generator():
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    digits._split("street", 16, 10, 0, False)
    assert np.random.random() == expected


@pytest.mark.parametrize("size", [16, 32])
def test_digit_domains_other_sizes(size, tmp_path):
    data = digits.digit_domains(
        size=size, train_per_domain=10, test_per_domain=10, cache=str(tmp_path)
    )
    assert data.x.shape == (100, size, size, 3)
    contrast = data.x.max((1, 2, 3)).astype(int) - data.x.min((1, 2, 3))
    assert contrast.min() > 40


def test_source_digits_are_split_once_and_wholly():
    train, test = digits.source_digits(3, False), digits.source_digits(3, True)
    assert not set(train) & set(test)
    assert sorted([*train, *test]) == list(range(1797))
    labels = digits._scanned()[1]
    assert np.bincount(labels[test]).min() >= 34
    assert set(test) != set(digits.source_digits(4, True))


@pytest.mark.parametrize("test", [False, True])
def test_every_handwriting_domain_draws_from_its_split_only(test, monkeypatch):
    labels, pool = digits._scanned()[1], set(digits.source_digits(3, test))
    dealt, deal = [], digits.deal
    monkeypatch.setattr(digits, "deal", lambda *a: dealt.append(deal(*a)) or dealt[-1])
    for name in ("handwritten", "blended", "postal"):
        _, y = digits._split(name, 16, 40, 3, test)
        assert set(dealt[-1]) <= pool
        assert np.array_equal(labels[dealt[-1]], y)
        assert len(set(dealt[-1])) == 40  # none twice while there are others


def test_fonts_are_disjoint_and_used_in_their_own_domain_and_split_only(monkeypatch):
    groups = [set(fonts) for fonts in digits.FONTS.values()]
    assert len(groups) == 4
    assert sum(map(len, groups)) == len(set.union(*groups))
    used, glyph = [], digits._glyph
    monkeypatch.setattr(digits, "_glyph", lambda font, c: used.append(font) or glyph(font, c))
    for (name, test), fonts in digits.FONTS.items():
        used.clear()
        digits._split(name, 16, 60, 0, test)
        assert set(used) == set(fonts)


def test_every_font_has_ten_different_digits_inside_their_frame():
    for font in (font for fonts in digits.FONTS.values() for font in fonts):
        glyphs = [digits._glyph(font, label) for label in range(10)]
        assert len({glyph.tobytes() for glyph in glyphs}) == 10, font
        for glyph in glyphs:
            assert max(glyph[[0, -1]].max(), glyph[:, [0, -1]].max()) == 0, font


def test_photo_regions_do_not_overlap():
    for photo, train, test in zip(
        digits._photos(), digits.photo_regions(False), digits.photo_regions(True), strict=True
    ):
        assert train.shape[1] + test.shape[1] == photo.shape[1]
        assert not np.shares_memory(train, test)
        assert np.array_equal(np.concatenate([test, train], 1), photo)


def test_blended_takes_its_patches_from_its_split(monkeypatch):
    asked, regions = [], digits.photo_regions
    monkeypatch.setattr(digits, "photo_regions", lambda test: asked.append(test) or regions(test))
    digits._split("blended", 16, 10, 0, True)
    assert set(asked) == {True}
    digits._split("street", 16, 10, 0, False)
    assert False not in asked  # street has a texture of its own


def test_no_ink_is_cut_off():
    rng = np.random.default_rng(0)
    for label in range(10):
        for image in (digits._glyph("DejaVuSans-Bold", label), digits._scanned()[0][label]):
            ink = digits.pose(rng, image, 15, 0.3, 0.9 * 28)
            drawn = digits.draw(ink, digits.place(rng, ink, 28, 28), 28)
            assert max(drawn[[0, -1]].max(), drawn[:, [0, -1]].max()) < 0.15
            solid = np.count_nonzero(image > 127) * abs(np.linalg.det(ink.linear))
            assert drawn.sum() == pytest.approx(solid, rel=0.1)  # all of it is there


def test_drawn_digit_measures_what_was_asked():
    ink = digits.pose(np.random.default_rng(1), digits._glyph("cmr10", 8), 10, 0.1, 20)
    drawn = digits.draw(ink, np.array([14.0, 12.0]), 28) > 0.3
    down, across = np.flatnonzero(drawn.any(1)), np.flatnonzero(drawn.any(0))
    assert abs(len(down) - 20) <= 1
    assert abs((down[0] + down[-1] + 1) / 2 - 12) <= 1
    assert abs((across[0] + across[-1] + 1) / 2 - 14) <= 1


def test_digit_domains_are_kept_and_read_again(tmp_path, monkeypatch):
    first = digits.digit_domains(**SMALL, cache=str(tmp_path))
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]  # nothing half-written left
    monkeypatch.setattr(digits, "generate", lambda *_: pytest.fail("made again"))
    second = digits.digit_domains(**SMALL, cache=str(tmp_path))
    for a, b in zip(first[:4], second[:4], strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


def test_cache_has_one_file_for_each_setting_and_version(tmp_path, small, monkeypatch):
    made = []
    monkeypatch.setattr(digits, "generate", lambda *given: made.append(given) or small)
    changes = ({}, {"size": 32}, {"train_per_domain": 31}, {"test_per_domain": 21}, {"seed": 4})
    for change in changes:
        digits.digit_domains(**{**SMALL, **change}, cache=str(tmp_path))
    monkeypatch.setattr(digits, "VERSION", digits.VERSION + 1)
    digits.digit_domains(**SMALL, cache=str(tmp_path))
    assert len(made) == len(list(tmp_path.iterdir())) == 6


def test_cache_folder_from_the_environment(tmp_path, small, monkeypatch):
    monkeypatch.setattr(digits, "generate", lambda *_: small)
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "a" / "b"))
    digits.digit_domains(**SMALL)
    assert len(list((tmp_path / "a" / "b").iterdir())) == 1
    monkeypatch.delenv("FEDJAX_LAB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    digits.digit_domains(**SMALL)
    assert len(list((tmp_path / ".cache" / "fedjax_lab").iterdir())) == 1


def flip_a_pixel(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


@pytest.mark.parametrize(
    "damage",
    [flip_a_pixel, lambda c: c[: len(c) // 2], lambda c: b"", lambda c: b"\0" * len(c)],
    ids=["flipped", "truncated", "empty", "zeros"],
)
def test_damaged_cache_is_made_again(damage, tmp_path, small, monkeypatch, caplog):
    monkeypatch.setattr(digits, "generate", lambda *_: small)
    digits.digit_domains(**SMALL, cache=str(tmp_path))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING):
        data = digits.digit_domains(**SMALL, cache=str(tmp_path))
    assert len(caplog.records) == 1 and file.name in caplog.text
    assert np.array_equal(data.x, small["x"])
    assert np.array_equal(cache.load(file)["x"], small["x"])
    assert list(tmp_path.iterdir()) == [file]


def test_checksum_is_compared(tmp_path, small, caplog):
    other = {**small, "y": small["y"][::-1]}
    np.savez(tmp_path / "a.npz", **other, sha256=np.array(cache.checksum(small)))
    assert cache.load(tmp_path / "a.npz") is None
    assert "checksum" in caplog.text


def test_write_that_fails_leaves_nothing_and_the_old_file(tmp_path, small, monkeypatch, caplog):
    file = tmp_path / "a.npz"
    cache.save(file, small)
    before = file.read_bytes()

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    cache.save(file, {**small, "y": small["y"] + 1})
    assert list(tmp_path.iterdir()) == [file] and file.read_bytes() == before
    assert "no space left" in caplog.text


def test_unwritable_cache_does_not_stop_the_run(tmp_path, small, monkeypatch, caplog):
    monkeypatch.setattr(digits, "generate", lambda *_: small)
    (tmp_path / "file").write_text("not a folder")
    data = digits.digit_domains(**SMALL, cache=str(tmp_path / "file" / "below"))
    assert np.array_equal(data.x, small["x"]) and len(caplog.records) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("size", 15), ("size", 1000), ("train_per_domain", 9), ("test_per_domain", 0), ("seed", -1)],
)
def test_senseless_settings_are_named(key, value):
    message = complaint(digits.digit_domains, **{**SMALL, key: value})
    assert f"data.{key} is {value}" in message


def test_contact_sheet_shows_the_examples(tmp_path, small):
    from PIL import Image

    data = digits.Dataset(**small, classes=digits.CLASSES, domains=digits.DOMAINS)
    digits.contact_sheet(data, tmp_path / "sheet.png", per_domain_rows=2, columns=10)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    first = data.x[np.flatnonzero((data.domain == 2) & (data.y == 0))[0]]
    shown = sheet[2 * (2 * 58 + 6) :][:56:2, 130 : 130 + 56 : 2]
    assert np.abs(shown.astype(int) - first).max() < 8


# MNIST-format files


def idx_bytes(array: np.ndarray) -> bytes:
    """An array of uint8 as the idx format has it."""
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """A folder with a tiny set, plain training files and gzipped test files; and its arrays."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (7, 28, 28)).astype(np.uint8), np.array([3, 0, 9, 1, 1, 2, 4], "u1")
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, array in zip(idx.FILES, (x[:5], y[:5], x[5:], y[5:]), strict=True):
        if name.startswith("train"):
            (folder / name).write_bytes(idx_bytes(array))
        else:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    return folder, x, y


def test_idx_reads_plain_and_gzipped_files(mnist):
    folder, x, y = mnist
    data = idx.idx(folder=str(folder))
    assert data.x.dtype == np.uint8 and np.array_equal(data.x, x[..., None])
    assert data.y.dtype == np.int32 and np.array_equal(data.y, y)
    assert data.test.tolist() == [False] * 5 + [True] * 2
    assert data.domain.tolist() == [0] * 7 and data.domains == ("tiny",)
    assert data.classes == tuple("0123456789")


def test_idx_counts_the_classes_of_larger_sets(mnist):
    folder, _, _ = mnist
    (folder / idx.FILES[1]).write_bytes(idx_bytes(np.array([46, 1, 2, 3, 4], np.uint8)))
    assert len(idx.idx(folder=str(folder)).classes) == 47


def test_fashion_mnist_from_a_folder_has_named_classes(mnist):
    folder, x, _ = mnist
    data = idx.fashion_mnist(folder=str(folder))
    assert np.array_equal(data.x[..., 0], x)
    assert data.classes[0] == "T-shirt/top" and data.classes[9] == "Ankle boot"


def test_fashion_mnist_is_found_in_the_usual_places(mnist, tmp_path, monkeypatch):
    folder, x, _ = mnist
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / idx.FILES[0]).write_bytes(b"half a download")
    monkeypatch.setattr(idx, "FASHION_FOLDERS", (str(partial), str(folder)))
    assert len(idx.fashion_mnist().x) == len(x)
    monkeypatch.setattr(idx, "FASHION_FOLDERS", ("/nowhere/a", "/nowhere/b"))
    message = complaint(idx.fashion_mnist)
    for part in ("/nowhere/a", "/nowhere/b", "apt install dataset-fashion-mnist", "data.folder"):
        assert part in message


IMAGES, LABELS = idx.FILES[:2]
NINE = idx_bytes(np.zeros((9, 28, 28), np.uint8))
FIVE = idx_bytes(np.zeros((5, 28, 28), np.uint8))
BROKEN = {
    "missing": (IMAGES, None, "is missing"),
    "labels missing": (LABELS, None, "is missing"),
    "truncated": (IMAGES, FIVE[:-1], "truncated, 3919 bytes where 3920 are due"),
    "header truncated": (IMAGES, FIVE[:11], "truncated, 11 bytes"),
    "empty": (IMAGES, b"", "truncated, 0 bytes"),
    "too long": (IMAGES, FIVE + b"x", "too long"),
    "huge counts": (IMAGES, struct.pack(">4I", 0x803, *[2**32 - 1] * 3), "truncated"),
    "no examples": (IMAGES, idx_bytes(np.zeros((0, 28, 28), np.uint8)), "is empty"),
    "wrong magic": (IMAGES, b"PNG!" + FIVE, "holds something else"),
    "labels for images": (IMAGES, idx_bytes(np.zeros(5, np.uint8)), "holds labels, not images"),
    "images for labels": (LABELS, FIVE, "holds images, not labels"),
    "other count": (IMAGES, NINE, "holds 9 images"),
    "other size": (IMAGES, idx_bytes(np.zeros((5, 20, 28), np.uint8)), "20 x 28 and 28 x 28"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_idx_says_what_is_wrong_with_a_file(case, mnist):
    folder, _, _ = mnist
    name, content, expected = BROKEN[case]
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    message = complaint(idx.idx, folder=str(folder))
    assert expected in message and "--config.data.folder" in message
    assert (str(folder) if case == "other size" else str(folder / name)) in message
    assert "apt install dataset-fashion-mnist" in complaint(idx.fashion_mnist, folder=str(folder))


@pytest.mark.parametrize("damage", [lambda c: c[:-20], lambda c: b"no gzip", lambda c: b"\x1f\x8b"])
def test_idx_corrupt_gzip(damage, mnist):
    folder, _, _ = mnist
    file = folder / f"{idx.FILES[2]}.gz"
    file.write_bytes(damage(file.read_bytes()))
    assert f"{file} cannot be read" in complaint(idx.idx, folder=str(folder))


def test_idx_gzip_with_a_flipped_bit(mnist):
    folder, _, _ = mnist
    file = folder / f"{idx.FILES[2]}.gz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)
    assert str(file) in complaint(idx.idx, folder=str(folder))


def test_idx_without_a_folder():
    assert "--config.data.folder" in complaint(idx.idx, folder="")
    assert "/nowhere is not a folder" in complaint(idx.idx, folder="/nowhere")


def test_fashion_mnist_with_labels_of_another_set(mnist):
    folder, _, _ = mnist
    (folder / LABELS).write_bytes(idx_bytes(np.array([46, 1, 2, 3, 4], np.uint8)))
    assert "label 46" in complaint(idx.fashion_mnist, folder=str(folder))


@pytest.mark.skipif(
    not all(idx.find(Path(idx.FASHION_FOLDERS[0]), name) for name in idx.FILES),
    reason="dataset-fashion-mnist is not installed",
)
def test_real_fashion_mnist():
    data = idx.fashion_mnist()
    assert data.x.shape == (70_000, 28, 28, 1) and data.test.sum() == 10_000
    assert np.bincount(data.y).tolist() == [7_000] * 10
    assert not data.test[:60_000].any()


# Arrays


@pytest.fixture
def save(tmp_path):
    """Writes an .npz file of 10 grey images with what is given changed; gives its path."""

    def write(**changed):
        rng = np.random.default_rng(0)
        content = {
            "x": rng.integers(0, 256, (10, 6, 5)).astype(np.uint8),
            "y": np.arange(10) % 3,
            **changed,
        }
        path = tmp_path / "mine.npz"
        np.savez(path, **{key: value for key, value in content.items() if value is not None})
        return str(path)

    return write


def test_arrays_plain(save):
    path = save()
    data = arrays(path=path)
    assert data.x.shape == (10, 6, 5, 1) and data.x.dtype == np.uint8
    assert np.array_equal(data.x[..., 0], np.load(path)["x"])
    assert data.y.tolist() == [0, 1, 2] * 3 + [0] and data.y.dtype == np.int32
    assert data.classes == ("0", "1", "2") and data.domains == ("0",)
    assert data.test.sum() == 2 and data.test.dtype == bool
    assert np.array_equal(arrays(path=path).test, data.test)


def test_arrays_in_full(save):
    data = arrays(
        path=save(
            domain=np.array(["sea", "air"] * 5),
            split=np.array(["train"] * 7 + ["test"] * 3),
            classes=np.array(["a", "b", "c", "never"]),
        )
    )
    assert data.domains == ("air", "sea") and data.domain.tolist() == [1, 0] * 5
    assert data.domain.dtype == np.int32
    assert data.test.tolist() == [False] * 7 + [True] * 3
    assert data.classes == ("a", "b", "c", "never")


@pytest.mark.parametrize("split", [np.arange(10) > 5, (np.arange(10) > 5).astype(int)])
def test_arrays_split_as_bool_or_number(split, save):
    data = arrays(path=save(split=split, domain=np.array([20, 7] * 5)))
    assert data.test.tolist() == [False] * 6 + [True] * 4
    assert data.domains == ("7", "20") and data.domain.tolist() == [1, 0] * 5


def test_arrays_byte_strings(save):
    split = np.array([b"train"] * 5 + [b"test"] * 5)
    data = arrays(path=save(split=split, classes=np.array([b"a", b"b", b"c"])))
    assert data.test.sum() == 5 and data.classes == ("a", "b", "c")


@pytest.mark.parametrize(("shape", "expected"), [((10, 4), (10, 4)), ((10, 4, 4, 3),) * 2])
@pytest.mark.parametrize("kind", ["f8", "i8", "f4", "?"])
def test_arrays_other_numbers_become_float32(shape, expected, kind, save):
    x = (np.arange(np.prod(shape)).reshape(shape) % 100).astype(kind)
    data = arrays(path=save(x=x))
    assert data.x.dtype == np.float32 and data.x.shape == expected
    assert np.array_equal(data.x, x)


def spoiled(value: float) -> np.ndarray:
    x = np.zeros((10, 4, 4))
    x[[6, 8], 1, 2] = value
    return x


def labelled(value: int) -> np.ndarray:
    y = np.arange(10) % 3
    y[4] = value
    return y


WRONG = {
    "no x": ({"x": None, "other": np.zeros(3)}, "no array 'x', it holds: y, other"),
    "no y": ({"y": None}, "no array 'y', it holds: x"),
    "misspelt": (
        {"domains": np.arange(10)},
        "has an array 'domains', which nothing reads; did you mean 'domain'?",
    ),
    "misspelt split": ({"splits": np.arange(10)}, "did you mean 'split'?"),
    "unread": (
        {"client": np.arange(10)},
        "has an array 'client', which nothing reads",
    ),
    "length of y": ({"y": np.arange(9)}, "y has shape [9], but x has 10"),
    "y one-hot": ({"y": np.eye(10, dtype=int)}, "y has shape [10, 10]"),
    "length of domain": ({"domain": np.arange(3)}, "domain has shape [3]"),
    "length of split": ({"split": np.arange(3)}, "split has shape [3]"),
    "x text": ({"x": np.array([["a"]] * 10)}, "x must be numbers"),
    "x objects": ({"x": np.array([{}] * 10)}, "x holds objects"),
    "x complex": ({"x": np.zeros((10, 2), complex)}, "x must be numbers"),
    "x flat": ({"x": np.zeros(10)}, "x has shape [10]"),
    "x empty": ({"x": np.zeros((0, 4))}, "x has shape [0, 4]"),
    "x NaN": ({"x": spoiled(np.nan)}, "first in row 6"),
    "x infinite": ({"x": spoiled(-np.inf)}, "first in row 6"),
    "x beyond float32": ({"x": spoiled(1e200)}, "first in row 6"),
    "y float": ({"y": np.zeros(10)}, "y must be integers"),
    "y text": ({"y": np.array(["cat"] * 10)}, "y must be integers"),
    "y negative": ({"y": labelled(-1)}, "y is -1 in row 4"),
    "y beyond classes": (
        {"y": labelled(3), "classes": np.array(["a", "b", "c"])},
        "y is 3 in row 4, not in 0 .. 2",
    ),
    "y absurd": ({"y": labelled(2**40)}, f"y is {2**40} in row 4"),
    "classes number": ({"classes": np.array(3)}, "classes has shape []"),
    "domain float": ({"domain": np.zeros(10)}, "domain must be integers or strings"),
    "split word": ({"split": np.array(["train"] * 9 + ["valid"])}, "split is valid in row 9"),
    "split number": ({"split": np.arange(10)}, "split is 2 in row 2"),
    "no test": ({"split": np.zeros(10, bool)}, "no test examples"),
    "no training": ({"split": np.array(["test"] * 10)}, "no training examples"),
    "too few": ({"x": np.zeros((4, 2)), "y": np.zeros(4, int)}, "no test examples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_arrays_say_what_is_wrong(case, save):
    changed, expected = WRONG[case]
    path = save(**changed)
    message = complaint(arrays, path=path)
    assert message.startswith(path) and expected in message


def test_arrays_file_missing_or_of_another_kind(tmp_path, save):
    assert "--config.data.path" in complaint(arrays, path="")
    assert "is not a file" in complaint(arrays, path=str(tmp_path / "none.npz"))
    assert "is not a file" in complaint(arrays, path=str(tmp_path))
    (tmp_path / "text.npz").write_text("x,y\n1,2\n")
    assert "is not an .npz file" in complaint(arrays, path=str(tmp_path / "text.npz"))
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert "is not an .npz file" in complaint(arrays, path=str(tmp_path / "one.npy"))


def test_arrays_damaged_file(save):
    path = Path(save())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is damaged" in complaint(arrays, path=str(path))
    start = re.search(rb"x\.npy", whole).end() + 150
    path.write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    assert "x is damaged" in complaint(arrays, path=str(path))


def test_importing_the_sources_is_cheap():
    import subprocess
    import sys

    check = (
        "import sys, fedjax_lab.data.digit_domains, fedjax_lab.data.idx, fedjax_lab.data.arrays;"
        "print([m for m in ('matplotlib', 'sklearn', 'PIL', 'jax') if m in sys.modules])"
    )
    root = Path(digits.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "[]"
