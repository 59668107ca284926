"""The digit domains: their arrays, their reproducibility and their cache."""

import sys

import broken
import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data import cache
from fedjax_lab.data.sources import digit_domains as digits

SMALL = {"size": 28, "train_per_domain": 30, "test_per_domain": 20, "seed": 3}


@pytest.fixture(scope="module")
def small():
    return digits.generate(28, 30, 20, 3)


def test_digit_domains_shape_and_balance(tmp_path):
    data = digits.digit_domains(**SMALL, cache=str(tmp_path))
    assert data.x.shape == (250, 28, 28, 3)
    assert (data.x.dtype, data.y.dtype) == (np.uint8, np.int32)
    assert (data.domain.dtype, data.test.dtype) == (np.int32, bool)
    assert data.domains == ("handwritten", "blended", "printed", "street", "postal")
    for domain in range(5):
        for test, each in ((False, 3), (True, 2)):
            rows = (data.domain == domain) & (data.test == test)
            assert np.bincount(data.y[rows]).tolist() == [each] * 10


def test_the_same_seed_gives_the_same_digit_domains_bit_for_bit(small):
    """NumPy's global generator is neither used nor changed."""
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    again, other = digits.generate(28, 30, 20, 3), digits.generate(28, 30, 20, 4)
    assert np.random.random() == expected
    assert all(np.array_equal(small[key], again[key]) for key in small)
    assert not np.array_equal(small["x"], other["x"])


@pytest.mark.parametrize("python", [sys.executable, "/no/python", "/bin/false"])
def test_another_process_draws_the_same_images(small, python, monkeypatch):
    """Without such a process all images are drawn in this one."""
    monkeypatch.setattr(digits, "MANY", 1)
    monkeypatch.setattr(sys, "executable", python)
    made = digits.generate(28, 30, 20, 3)
    assert all(np.array_equal(small[key], made[key]) for key in small)


def test_images_with_fonts_are_drawn_elsewhere(monkeypatch):
    monkeypatch.setattr(digits, "MANY", 1)
    drawn, split = [], digits._split
    monkeypatch.setattr(digits, "_split", lambda *a: drawn.append(a[0]) or split(*a))
    digits.generate(16, 10, 10, 0)
    assert set(drawn) == {"handwritten", "blended", "postal"}


@pytest.mark.parametrize("size", [16, 32])
def test_digit_domains_in_other_image_sizes(size, tmp_path):
    few = {"train_per_domain": 10, "test_per_domain": 10}
    data = digits.digit_domains(size=size, **few, cache=str(tmp_path))
    assert data.x.shape == (100, size, size, 3)
    contrast = data.x.max((1, 2, 3)).astype(int) - data.x.min((1, 2, 3))
    assert contrast.min() > 40
    _, y = digits._split("postal", size, 17, 0, False)
    assert sorted(np.bincount(y, minlength=10).tolist()) == [1] * 3 + [2] * 7  # most equal counts


def test_every_source_digit_is_in_exactly_one_split():
    train, test = digits.source_digits(3, False), digits.source_digits(3, True)
    assert not set(train) & set(test)
    assert sorted([*train, *test]) == list(range(1797))
    labels = digits._labels()
    assert np.bincount(labels[test]).min() >= 34
    assert set(test) != set(digits.source_digits(4, True))


@pytest.mark.parametrize("test", [False, True])
def test_handwriting_domains_use_only_source_digits_of_their_split(test, monkeypatch):
    labels, pool = digits._labels(), set(digits.source_digits(3, test))
    dealt, deal = [], digits.deal
    monkeypatch.setattr(digits, "deal", lambda *a: dealt.append(deal(*a)) or dealt[-1])
    for name in ("handwritten", "blended", "postal"):
        _, y = digits._split(name, 16, 40, 3, test)
        assert set(dealt[-1]) <= pool
        assert np.array_equal(labels[dealt[-1]], y)
        assert len(set(dealt[-1])) == 40  # none is repeated while others are unused


def test_fonts_are_disjoint_and_each_is_used_in_one_domain_and_split(monkeypatch):
    groups = [set(fonts) for fonts in digits.FONTS.values()]
    assert len(groups) == 4
    assert sum(map(len, groups)) == len(set.union(*groups))
    used, glyph = [], digits._glyph
    monkeypatch.setattr(digits, "_glyph", lambda font, c: used.append(font) or glyph(font, c))
    for (name, test), fonts in digits.FONTS.items():
        used.clear()
        digits._split(name, 16, 60, 0, test)
        assert set(used) == set(fonts)


def test_photo_regions_do_not_overlap_and_only_blended_uses_those_of_its_split(monkeypatch):
    regions, asked = digits.photo_regions, []
    for photo, train, test in zip(digits._photos(), regions(False), regions(True), strict=True):
        assert not np.shares_memory(train, test)
        assert np.array_equal(np.concatenate([test, train], 1), photo)
    monkeypatch.setattr(digits, "photo_regions", lambda test: asked.append(test) or regions(test))
    digits._split("blended", 16, 10, 0, True)
    digits._split("street", 16, 10, 0, False)
    assert set(asked) == {True}


def test_no_ink_is_cut_off():
    rng = np.random.default_rng(0)
    for label in range(10):
        for image in (digits._glyph("DejaVuSans-Bold", label), digits._scanned()[label]):
            ink = digits.pose(rng, image, 15, 0.3, 0.9 * 28)
            drawn = digits.draw(ink, digits.place(rng, ink, 28, 28), 28)
            assert max(drawn[[0, -1]].max(), drawn[:, [0, -1]].max()) < 0.15
            solid = np.count_nonzero(image > 127) * abs(np.linalg.det(ink.linear))
            assert drawn.sum() == pytest.approx(solid, rel=0.1)  # no ink is missing


def test_digit_domains_are_cached_for_each_setting_and_version(tmp_path, small, monkeypatch):
    first = digits.digit_domains(**SMALL, cache=str(tmp_path))
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]  # no partial file is left
    made = []
    monkeypatch.setattr(digits, "generate", lambda *given: made.append(given) or small)
    second = digits.digit_domains(**SMALL, cache=str(tmp_path))
    for a, b in zip(first[:4], second[:4], strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    assert not made
    for change in ({"size": 32}, {"train_per_domain": 31}, {"test_per_domain": 21}, {"seed": 4}):
        digits.digit_domains(**{**SMALL, **change}, cache=str(tmp_path))
    monkeypatch.setattr(digits, "VERSION", digits.VERSION + 1)
    digits.digit_domains(**SMALL, cache=str(tmp_path))
    assert len(made) == 5 and len(list(tmp_path.iterdir())) == 6


def test_the_cache_folder_comes_from_the_environment(tmp_path, small, monkeypatch):
    monkeypatch.setattr(digits, "generate", lambda *_: small)
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "a" / "b"))
    digits.digit_domains(**SMALL)
    assert len(list((tmp_path / "a" / "b").iterdir())) == 1
    monkeypatch.delenv("FEDJAX_LAB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    digits.digit_domains(**SMALL)
    assert len(list((tmp_path / ".cache" / "fedjax_lab").iterdir())) == 1


def test_a_damaged_cache_file_is_replaced(tmp_path, small, monkeypatch, caplog):
    monkeypatch.setattr(digits, "generate", lambda *_: small)
    digits.digit_domains(**SMALL, cache=str(tmp_path))
    (file,) = tmp_path.iterdir()
    flipped = lambda c: c[:5000] + bytes([c[5000] ^ 1]) + c[5001:]  # noqa: E731
    for damage in (flipped, broken.half, b"", lambda c: bytes(len(c))):
        broken.replace(file, damage)
        caplog.clear()
        data = digits.digit_domains(**SMALL, cache=str(tmp_path))
        assert len(caplog.records) == 1 and file.name in caplog.text
        assert np.array_equal(data.x, small["x"])
        assert np.array_equal(cache.load(file)["x"], small["x"])
        assert list(tmp_path.iterdir()) == [file]
    np.savez(file, **small | {"y": small["y"][::-1]}, sha256=np.array(cache.checksum(small)))
    assert cache.load(file) is None and "checksum" in caplog.text


def test_a_failed_write_keeps_the_old_cache_file(tmp_path, small, monkeypatch, caplog):
    file = tmp_path / "a.npz"
    cache.save(file, small)
    before = file.read_bytes()

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    cache.save(file, {**small, "y": small["y"] + 1})
    assert list(tmp_path.iterdir()) == [file] and file.read_bytes() == before
    assert "no space left" in caplog.text


@pytest.mark.parametrize("key, value", [("size", 15), ("train_per_domain", 9), ("seed", -1)])
def test_an_error_names_the_invalid_setting(key, value):
    message = complaint(digits.digit_domains, **{**SMALL, key: value})
    assert f"config.data.{key} must" in message and message.endswith(f"got {value}")


def test_contact_sheet_shows_the_examples(tmp_path, small):
    from PIL import Image

    data = digits.Dataset(**small, classes=digits.CLASSES, domains=digits.DOMAINS)
    digits.contact_sheet(data, tmp_path / "sheet.png", per_domain_rows=2, columns=10)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    first = data.x[np.flatnonzero((data.domain == 2) & (data.y == 0))[0]]
    shown = sheet[2 * (2 * 58 + 6) :][:56:2, 130 : 130 + 56 : 2]
    assert np.abs(shown.astype(int) - first).max() < 8
