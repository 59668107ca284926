"""Digits-Five, Office-Caltech-10 and DomainNet: small sets in the true formats."""

import functools
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
from inputs import complaint
from PIL import Image
from scipy.io import savemat

from fedjax_lab.data import dataset, digits_five, domainnet, images, office_caltech
from fedjax_lab.data import places as places_module
from fedjax_lab.experiment import NAMED, load_config, resolve


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def nothing_in_the_usual_places(monkeypatch):
    monkeypatch.setattr(places_module, "PLACES", ("/nowhere/a", "/nowhere/b"))


def write(file: Path, value, protocol: int = 4):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(value, protocol))


@functools.cache
def triangles(old: int, new: int) -> np.ndarray:
    """Pillow's bilinear filter along one axis, [new, old]: a triangle as wide as the step."""
    step = old / new
    distance = np.arange(old) + 0.5 - step * (np.arange(new)[:, None] + 0.5)
    weights = np.maximum(1 - np.abs(distance) / max(step, 1), 0)
    return weights / weights.sum(1, keepdims=True)


def naive_resize(image: np.ndarray, size: int) -> np.ndarray:
    """An image [H, W, C] as [size, size, C], not rounded."""
    rows, columns = (triangles(old, size) for old in image.shape[:2])
    return np.einsum("ai,ijc->ajc", rows, np.einsum("bj,ijc->ibc", columns, image.astype(float)))


def test_sources_have_names():
    for name in ("digits_five", "office_caltech", "domainnet"):
        assert NAMED["data"][name].__name__ == name


def test_first_of_each_class():
    labels = [2, 0, 2, 2, 1, 0, 2]
    assert dataset.first_of_each(labels, 2).tolist() == [0, 1, 2, 4, 5]
    assert dataset.first_of_each(labels, 9).tolist() == list(range(7))


def test_a_pool_has_all_training_examples_first():
    x = np.arange(8)
    made = dataset.pooled(x, [[5, 6], [7]], [[0], [1, 2, 3, 4]])
    assert made["x"] is x and made["y"].tolist() == [5, 6, 7, 0, 1, 2, 3, 4]
    assert made["domain"].tolist() == [0, 0, 1, 0, 1, 1, 1, 1]
    assert made["test"].tolist() == [False] * 3 + [True] * 5
    assert (made["y"].dtype, made["domain"].dtype) == (np.int32, np.int32)


def test_settings_of_the_configs():
    def config(name):
        return resolve(load_config(str(Path(__file__).parent.parent / "configs" / name)))

    office = config("fedc2i_office.py")
    assert (office.data.size, office.data.sampling, office.data.normalize) == (64, "fedc2i", "unit")
    assert (office.run.rounds, office.local.epochs, office.local.optimizer) == (40, 2, "adam")
    assert office.partition.num_clients == len(office_caltech.RELEASE.domains) == 4


# Digits-Five

DOMAINS = ("mnist_m", "mnist", "usps", "synth", "svhn")
SHAPES = {
    "mnist_m": (28, 28, 3),
    "mnist": (28, 28),
    "usps": (16, 16),
    "synth": (32, 32, 3),
    "svhn": (32, 32, 3),
}


def digits(domain: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, DOMAINS.index(domain)])
    shape = (count, *SHAPES[domain])
    return rng.integers(0, 256, shape).astype(np.uint8), rng.integers(0, 10, count)


def three_channels(x: np.ndarray) -> np.ndarray:
    return np.stack([x] * 3, -1) if x.ndim == 3 else x


TRAINING, TESTS = 30, 7
SMALL = {  # for FedPick and FedC2I
    "fedpick": digits_five.Sampling(12, 2, 0, 0),
    "fedc2i": digits_five.Sampling(25, 3, 2, 1),
}


@pytest.fixture
def release(tmp_path, monkeypatch):
    """A folder around FedBN's release, train.pkl and parts of 10 images."""
    monkeypatch.setattr(digits_five, "SAMPLINGS", SMALL)
    for domain, name in digits_five.FOLDERS.items():
        folder = tmp_path / "digits_five" / name
        x, y = digits(domain, TRAINING, 0)
        write(folder / "train.pkl", (x, y))
        for part in range(3):
            rows = slice(10 * part, 10 * part + 10)
            write(folder / "partitions" / f"train_part{part}.pkl", (x[rows], y[rows]))
        write(folder / "test.pkl", digits(domain, TESTS, 1))
    return tmp_path


def expected_rows(sampling: str, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Of the training and of the test images, by loops."""
    if sampling == "fedpick":
        return np.arange(12), np.arange(TESTS)

    def first(labels, count):
        kept, seen = [], dict.fromkeys(range(10), 0)
        for row, label in enumerate(labels):
            if seen[label] < count:
                kept.append(row)
            seen[label] += 1
        return np.array(kept)

    train, test = digits(domain, TRAINING, 0)[1], digits(domain, TESTS, 1)[1]
    return first(train[:25], 2), first(test, 1)


def check_digits(data, sampling: str):
    """All rows of a set of 32 x 32 pixels: labels, order; pixels where nothing was resized."""
    assert data.domains == DOMAINS and data.classes == tuple("0123456789")
    assert data.x.dtype == np.uint8 and data.x.shape == (len(data.y), 32, 32, 3)
    assert (data.y.dtype, data.domain.dtype, data.test.dtype) == (np.int32, np.int32, bool)
    row = 0
    for test in (False, True):
        for number, domain in enumerate(DOMAINS):
            x, y = digits(domain, TESTS if test else TRAINING, int(test))
            kept = expected_rows(sampling, domain)[test]
            x, y, at = three_channels(x[kept]), y[kept], slice(row, row + len(kept))
            assert data.y[at].tolist() == y.tolist()
            assert set(data.domain[at]) == {number} and set(data.test[at]) == {test}
            for made, image in zip(data.x[at], x, strict=True):
                assert np.abs(made - naive_resize(image, 32)).max() < 1.6
                if image.shape == (32, 32, 3):
                    assert np.array_equal(made, image)
            row += len(kept)
    assert row == len(data.y)


@pytest.mark.parametrize("sampling", SMALL)
@pytest.mark.parametrize("files", ["both", "parts", "train.pkl"])
def test_digits_five_of_fedbn(files, sampling, release):
    for name in digits_five.FOLDERS.values():
        folder = release / "digits_five" / name
        if files == "parts":
            (folder / "train.pkl").unlink()
        if files == "train.pkl":
            (folder / "partitions" / "train_part1.pkl").unlink()
    for folder in (release, release / "digits_five"):
        data = digits_five.digits_five(folder=str(folder), sampling=sampling)
        check_digits(data, sampling)


def test_digits_five_reads_the_true_numbers():
    fedpick, fedc2i = digits_five.SAMPLINGS["fedpick"], digits_five.SAMPLINGS["fedc2i"]
    assert fedpick == (1000, 2, 0, 0) and fedc2i == (7438, 10, 100, 200)
    ends = [int(743.8 * part) for part in range(11)]  # as FedBN cuts train.pkl
    assert ends[fedpick.parts] >= fedpick.pool and ends[fedc2i.parts] == fedc2i.pool


def test_digits_five_in_the_usual_places_and_in_other_sizes(release, monkeypatch):
    monkeypatch.setattr(places_module, "PLACES", ("/nowhere", str(release)))
    data = digits_five.digits_five(size=16)
    assert data.x.shape == (5 * (12 + TESTS), 16, 16, 3)
    usps = data.x[(data.domain == 2) & ~data.test]
    assert np.array_equal(usps, three_channels(digits("usps", TRAINING, 0)[0][:12]))


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("kind", ["lists", "channel", "column", "turned"])
def test_digits_five_takes_other_pickles(kind, protocol, release):
    x, y = digits("mnist", TRAINING, 0)
    change = {
        "lists": lambda x, y: [x, y.tolist()],
        "channel": lambda x, y: (x[..., None], y.astype(np.float32)),
        "column": lambda x, y: (x, y[:, None].astype(np.uint8)),
        "turned": lambda x, y: (np.asfortranarray(x), y.astype(">i8")),
    }[kind]
    folder = release / "digits_five" / "MNIST"
    for part in range(2):
        rows = slice(10 * part, 10 * part + 10)
        write(folder / "partitions" / f"train_part{part}.pkl", change(x[rows], y[rows]), protocol)
    check_digits(digits_five.digits_five(folder=str(release)), "fedpick")


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(10)[labels]


def write_matlab(folder: Path, synth: str = "synth"):
    """The files of KD3A (synth) or M3SDA (syn_number)."""
    pairs = {d: (digits(d, TRAINING, 0), digits(d, TESTS, 1)) for d in DOMAINS}
    folder.mkdir(parents=True, exist_ok=True)
    cells, numbers, mnist, mnist_m = np.empty((2, 2), object), {}, {}, {}
    for row, split in enumerate(("train", "test")):
        x, y = pairs["usps"][row]
        cells[row] = [x[:, None] / 255, y[:, None]]
        x, y = pairs["mnist"][row]
        mnist |= {f"{split}_32": x.astype(float), f"label_{split}": one_hot(y)}
        mnist[f"{split}_28"] = x[..., None]
        x, y = pairs["mnist_m"][row]
        mnist_m |= {split: x, f"label_{split}": one_hot(y)}
        x, y = pairs["synth"][row]
        numbers |= {f"{split}_data": x, f"{split}_label": y[:, None]}
        if synth == "synth":
            content = {"X": x.transpose(1, 2, 3, 0), "y": y[:, None]}
            savemat(folder / f"synth_{split}_32x32.mat", content)
        x, y = pairs["svhn"][row]
        content = {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y)[:, None]}
        savemat(folder / f"svhn_{split}_32x32.mat", content, do_compression=True)
    savemat(folder / "usps_28x28.mat", {"dataset": cells})
    savemat(folder / "mnist_data.mat", mnist)
    savemat(folder / "mnistm_with_label.mat", mnist_m)
    if synth == "syn_number":
        savemat(folder / "syn_number.mat", numbers)


@pytest.mark.parametrize("sampling", SMALL)
@pytest.mark.parametrize("synth", ["synth", "syn_number"])
def test_digits_five_of_m3sda(synth, sampling, tmp_path, monkeypatch):
    """MNIST's and USPS's images are of other sizes here than there: they are read all the same."""
    monkeypatch.setattr(digits_five, "SAMPLINGS", SMALL)
    write_matlab(tmp_path / "Digit-Five", synth)
    for folder, source in ((tmp_path, "auto"), (tmp_path / "Digit-Five", "m3sda")):
        data = digits_five.digits_five(folder=str(folder), sampling=sampling, source=source)
        check_digits(data, sampling)


def test_pixels_that_are_no_bytes_are_rounded():
    made = digits_five._pixels(np.float32([[[0, 0.999, 1]]]), Path("a.mat"))
    assert made.dtype == np.uint8 and made.tolist() == [[[0, 255, 255]]]
    made = digits_five._pixels(np.float32([[[0.4, 1.6, 254.6]]]), Path("a.mat"))
    assert made.tolist() == [[[0, 2, 255]]]
    assert digits_five._pixels(np.array([[[0, 1]]]), Path("a.mat")).tolist() == [[[0, 1]]]


def test_digits_five_prefers_fedbn(release):
    write_matlab(release / "digits_five")
    file = release / "digits_five" / "MNIST" / "test.pkl"
    images, labels = digits("mnist", TESTS, 1)
    write(file, (images[:2], labels[:2]))
    counts = {}
    for source in ("auto", "fedbn", "m3sda"):
        data = digits_five.digits_five(folder=str(release), source=source)
        counts[source] = int(((data.domain == 1) & data.test).sum())
    assert counts == {"auto": 2, "fedbn": 2, "m3sda": TESTS}


def test_digits_five_that_is_not_there(tmp_path, nothing_in_the_usual_places):
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(digits_five.digits_five, folder=folder)
        for part in (place, "MNIST/test.pkl", "https://github.com/med-air/FedBN", "data.folder"):
            assert part in message
    assert "config.data.sampling" in complaint(digits_five.digits_five, sampling="fedavg")
    assert "config.data.source" in complaint(digits_five.digits_five, source="fedbm")
    for source in (digits_five.digits_five, office_caltech.office_caltech, domainnet.domainnet):
        for size in (7, 513):
            assert f"data.size is {size}" in complaint(source, size=size)


ONES = np.ones((2, 28, 28), np.uint8)
BROKEN_DIGITS = {
    "missing": (None, "cannot be read"),
    "one array": (ONES, "is no pair"),
    "triple": ((ONES, [1, 2], [1, 2]), "is no pair"),
    "dictionary": ({"x": ONES}, "is no pair"),
    "text": ((ONES, ["a", "b"]), "its labels are <U1 [2]"),
    "count": ((ONES, [1]), "its labels are int64 [1], not 2"),
    "label": ((ONES, [1, 11]), "label 11 is not in 0 .. 10"),
    "negative": ((ONES, [1, -1]), "label -1 is not"),
    "fraction": ((ONES, [1, 1.5]), "label 1.5 is not"),
    "nested": ((ONES, [[1], [1, 2]]), "no pair of arrays"),
    "axes": ((ONES[0], [1] * 28), "its images are uint8 [28, 28]"),
    "channels": ((np.ones((2, 8, 8, 4), np.uint8), [1, 2]), "its images are uint8 [2, 8, 8, 4]"),
    "none": ((ONES[:0], []), "its images are uint8 [0, 28, 28]"),
    "range": ((ONES * 256.0, [1, 2]), "its pixels are from 256.0 to 256.0"),
    "below": ((ONES * -1.0, [1, 2]), "its pixels are from -1.0"),
    "nan": ((ONES * np.nan, [1, 2]), "its pixels are from nan"),
    "objects": ((np.array([{}, None]), [1, 2]), "not plain data"),
    "hostile": (print, "it asks for builtins.print"),
}


@pytest.mark.parametrize("case", BROKEN_DIGITS)
def test_digits_five_says_what_is_wrong(case, release):
    content, expected = BROKEN_DIGITS[case]
    file = release / "digits_five" / "SVHN" / "test.pkl"
    file.unlink()
    if content is not None:
        write(file, content)
    message = complaint(digits_five.digits_five, folder=str(release))
    assert message.startswith(str(file)) and expected in message and "med-air/FedBN" in message


def test_digits_five_parts_of_several_sizes(release):
    file = release / "digits_five" / "USPS" / "partitions" / "train_part1.pkl"
    write(file, (ONES, [1, 2]))
    assert "of several sizes" in complaint(digits_five.digits_five, folder=str(release))


BROKEN_MATLAB = {
    "svhn_test_32x32.mat": [(None, "is missing"), (b"<html>" * 99, "damaged or has no X and y")],
    "usps_28x28.mat": [
        ({"dataset": np.zeros(3)}, "damaged or has no dataset"),
        ({"a": 1}, "has no"),
    ],
    "mnist_data.mat": [
        ({"train_32": ONES, "label_train": np.ones((3, 1))}, "its labels are float64 [3, 1]"),
        ({"train_32": ONES, "label_train": np.array([[1], [np.nan]])}, "label nan is not"),
        ({"train_28": ONES, "label_train": np.ones((2, 1))}, "train_32 and label_train"),
    ],
    "synth_train_32x32.mat": [({"X": np.ones((4, 4)), "y": 1}, "damaged or has no X and y")],
}


@pytest.mark.parametrize("name", BROKEN_MATLAB)
def test_digits_five_says_what_is_wrong_with_matlab_files(name, tmp_path):
    write_matlab(tmp_path)
    file = tmp_path / name
    for content, expected in BROKEN_MATLAB[name]:
        file.unlink(missing_ok=True)
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif content is not None:
            savemat(file, content)
        message = complaint(digits_five.digits_five, folder=str(tmp_path))
        assert message.startswith(str(file)) and expected in message


# Office-Caltech-10 and DomainNet

SETS = {
    "office_caltech": (office_caltech.office_caltech, office_caltech.RELEASE),
    "domainnet": (domainnet.domainnet, domainnet.RELEASE),
}
SIDE = 24
IN_LISTS = [(3, "train"), (0, "test"), (3, "train"), (9, "train"), (0, "train"), (9, "test")]


def picture(seed: int, mode: str = "RGB") -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, channels)).astype(np.uint8)
    return Image.fromarray(pixels if channels > 1 else pixels[..., 0], mode)


def path_of(release, domain: str, number: int) -> str:
    return f"{domain}/{release.classes[IN_LISTS[number][0]]}/frame_{number:04d}.png"


def make_set(release, folder: Path, lead: bool = True, protocol: int = 4, kind=list, lists="."):
    """Six files a domain and their lists; `lead`: the paths begin with the data set's folder."""
    for seed, domain in enumerate(release.domains):
        for number in range(len(IN_LISTS)):
            file = folder / path_of(release, domain, number)
            file.parent.mkdir(parents=True, exist_ok=True)
            picture(100 * seed + number).save(file)
        for part in ("train", "test"):
            rows = [n for n, (_, where) in enumerate(IN_LISTS) if where == part]
            head = f"{release.folder}/" if lead else ""
            paths = [head + path_of(release, domain, n) for n in rows]
            names = [release.classes[IN_LISTS[n][0]] for n in rows]
            write(folder / lists / f"{domain}_{part}.pkl", (kind(paths), kind(names)), protocol)
    return folder


def check_set(data, release):
    assert data.domains == release.domains and data.classes == release.classes
    row = 0
    for test, part in enumerate(("train", "test")):
        for seed in range(len(release.domains)):
            for number, (label, where) in enumerate(IN_LISTS):
                if where == part:
                    assert np.array_equal(data.x[row], np.asarray(picture(100 * seed + number)))
                    found = (int(data.y[row]), int(data.domain[row]), bool(data.test[row]))
                    assert found == (label, seed, bool(test))
                    assert data.files[row].endswith(path_of(release, release.domains[seed], number))
                    row += 1
    assert row == len(data.x) == len(data.y) == len(data.files) and data.x.dtype == np.uint8


def texts(values: list[str]) -> np.ndarray:
    return np.array(values)


def raw(values: list[str]) -> np.ndarray:
    return np.array(values, "S")


def objects(values: list[str]) -> np.ndarray:
    return np.array(values, object)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("kind", [list, tuple, texts, raw, objects])
@pytest.mark.parametrize("name", SETS)
def test_lists_of_any_kind(name, kind, protocol, tmp_path, own_cache):
    source, release = SETS[name]
    make_set(release, tmp_path, protocol=protocol, kind=kind)
    check_set(source(folder=str(tmp_path), size=SIDE), release)


@pytest.mark.parametrize("where", ["parent", "usual place", "split", "no leading folder"])
@pytest.mark.parametrize("name", SETS)
def test_places_of_folders_and_lists(name, where, tmp_path, own_cache, monkeypatch):
    source, release = SETS[name]
    monkeypatch.setattr(places_module, "PLACES", ("/nowhere", str(tmp_path)))
    lists = "split" if where == "split" else "."
    make_set(release, tmp_path / release.folder, where != "no leading folder", lists=lists)
    folder = "" if where == "usual place" else str(tmp_path)
    check_set(source(folder=folder, size=SIDE), release)


def test_both_columns_in_one_array(tmp_path, own_cache):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path)
    for file in tmp_path.glob("*.pkl"):
        write(file, np.array(pickle.loads(file.read_bytes())))
    check_set(source(folder=str(tmp_path), size=SIDE), release)


def long_lists(release, folder: Path, counts: dict[str, list[int]]):
    """One file of each class; the lists name it as often as `counts` of a domain say."""
    for domain in release.domains:
        paths = {c: f"{release.folder}/{domain}/{c}/0.png" for c in release.classes}
        for seed, name in enumerate(release.classes):
            file = folder / domain / name / "0.png"
            file.parent.mkdir(parents=True)
            picture(seed).save(file)
        names = [n for c, n in zip(counts[domain], release.classes, strict=True) for _ in range(c)]
        for part, shown in (("train", names[::-1]), ("test", names[:30])):
            write(folder / f"{domain}_{part}.pkl", ([paths[n] for n in shown], shown))


def test_office_samplings(tmp_path, own_cache):
    """The counts of FedBN's split: FedC2I's Table 6 has 200, 200, 125 and 197 images."""
    source, release = SETS["office_caltech"]
    counts = {
        "amazon": [76] * 9 + [82],
        "caltech": [90] * 9 + [88],
        "dslr": [12] * 9 + [17],
        "webcam": [24] * 9 + [17],
    }
    long_lists(release, tmp_path, counts)
    taken = {}
    for sampling in ("fedpick", "fedc2i"):
        data = source(folder=str(tmp_path), size=8, sampling=sampling)
        taken[sampling] = np.bincount(data.domain[~data.test]).tolist()
        assert np.bincount(data.domain[data.test]).tolist() == [30] * 4
    assert taken == {"fedpick": [125] * 4, "fedc2i": [200, 200, 125, 197]}
    amazon = data.y[(data.domain == 0) & ~data.test]
    assert amazon.tolist() == sorted(list(range(10)) * 20)[::-1]
    first = source(folder=str(tmp_path), size=8).y[:125]
    assert first.tolist() == [9] * 82 + [8] * 43
    assert len(list(own_cache.iterdir())) == 2


def test_domainnet_takes_the_first_500(tmp_path, own_cache):
    source, release = SETS["domainnet"]
    long_lists(release, tmp_path, {domain: [51] * 10 for domain in release.domains})
    data = source(folder=str(tmp_path), size=8)
    assert np.bincount(data.domain[~data.test]).tolist() == [500] * 6
    assert data.y[:500].tolist() == sorted(list(range(10)) * 51)[::-1][:500]


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK"])
def test_images_without_three_channels_are_grey(mode, tmp_path, own_cache):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path)
    file = tmp_path / path_of(release, "amazon", 0)
    image = picture(5).convert("P") if mode == "P" else picture(5, mode)
    image.save(file, "JPEG" if mode == "CMYK" else "PNG", quality=100)
    with Image.open(file) as opened:
        assert opened.mode == mode
        expected = np.asarray(opened.convert("L"))
    made = source(folder=str(tmp_path), size=SIDE).x[0]
    for channel in range(3):
        assert np.array_equal(made[..., channel], expected)


def test_pictures_are_resized_with_antialiasing(tmp_path, own_cache):
    source, release = SETS["domainnet"]
    make_set(release, tmp_path)
    for size in (12, 40):
        made = source(folder=str(tmp_path), size=size).x[0]
        assert np.abs(made - naive_resize(np.asarray(picture(0)), size)).max() < 1.6
    half = np.asarray(picture(0))[:, :12]  # not square: each side by its own factor
    Image.fromarray(half).save(tmp_path / path_of(release, "clipart", 0))
    made = source(folder=str(tmp_path), size=16).x[0]
    assert np.abs(made - naive_resize(half, 16)).max() < 1.6


def test_pictures_are_decoded_once_until_something_changes(tmp_path, own_cache, monkeypatch):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path)
    calls, decode = [], images.decode
    monkeypatch.setattr(images, "decode", lambda *a: calls.append(a) or decode(*a))
    first = source(folder=str(tmp_path), size=SIDE)
    again = source(folder=str(tmp_path), size=SIDE)
    assert len(calls) == 1 and all(map(np.array_equal, first, again))
    check_set(again, release)
    source(folder=str(tmp_path), size=8)
    assert len(calls) == 2
    file = tmp_path / path_of(release, "webcam", 5)
    file.write_bytes(file.read_bytes() + b"\0")
    source(folder=str(tmp_path), size=SIDE)
    assert len(calls) == 3
    lists = tmp_path / "dslr_train.pkl"
    paths, names = pickle.loads(lists.read_bytes())
    write(lists, (paths[::-1], names[::-1]))
    data = source(folder=str(tmp_path), size=SIDE)
    assert len(calls) == 4 and data.y[(data.domain == 2) & ~data.test].tolist() == [0, 9, 3, 3]
    assert len(list(own_cache.iterdir())) == 4


OUTSIDE = [
    "/etc/passwd",
    "../secret.png",
    "office_caltech_10/../../secret.png",
    "amazon/back_pack/../../../secret.png",
    "amazon/..",
    "amazon/a\0.png",
    "amazon/a\n.png",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_leave_the_folder_are_not_opened(path, tmp_path, own_cache, monkeypatch):
    source, release = SETS["office_caltech"]
    make_set(release, tmp_path / "office_caltech_10")
    picture(0).save(tmp_path / "secret.png")
    file = tmp_path / "office_caltech_10" / "amazon_test.pkl"
    write(file, ([path], ["mug"]))
    opened = []
    monkeypatch.setattr(images, "decode", lambda *a: opened.append(a))
    message = complaint(source, folder=str(tmp_path))
    assert message.startswith(str(file)) and "is no path in the data set's folder" in message
    assert not opened and not own_cache.exists()


BROKEN_LISTS = {
    "missing": (None, "cannot be read"),
    "hostile": (print, "it asks for builtins.print"),
    "number": (3, "is no pair"),
    "one column": ((["a"],), "is no pair"),
    "lengths": ((["a", "b"], ["mug"]), "is no pair"),
    "numbers": ((["a"], [3]), "is no pair"),
    "text": (("a", "b"), "is no pair"),
    "dictionary": ({"a": "mug"}, "is no pair"),
    "empty": (([], []), "is empty"),
    "class": ((["a.png"], ["mugs\n"]), "'mugs\\n' is no class of office_caltech_10"),
}


@pytest.mark.parametrize("case", BROKEN_LISTS)
def test_lists_say_what_is_wrong(case, tmp_path, own_cache):
    source, release = SETS["office_caltech"]
    content, expected = BROKEN_LISTS[case]
    file = make_set(release, tmp_path) / "dslr_test.pkl"
    file.unlink()
    if content is not None:
        write(file, content)
    message = complaint(source, folder=str(tmp_path))
    assert message.startswith(str(file)) and expected in message and "med-air/FedBN" in message
    assert not own_cache.exists()


def damage(file: Path, how: str):
    content = file.read_bytes()
    file.unlink()
    if how == "a folder":
        file.mkdir()
    elif how != "missing":
        file.write_bytes({"cut": content[:-100], "empty": b"", "no image": b"<html>"}[how])


@pytest.mark.parametrize("how", ["missing", "cut", "empty", "no image", "a folder"])
@pytest.mark.parametrize("name", SETS)
def test_images_that_are_missing_or_damaged(name, how, tmp_path, own_cache):
    source, release = SETS[name]
    make_set(release, tmp_path)
    file = tmp_path / path_of(release, release.domains[1], 2)
    damage(file, how)
    message = complaint(source, folder=str(tmp_path))
    expected = "cannot be read" if how == "missing" else "is damaged or no image"
    assert message.startswith(str(file)) and expected in message and release.folder in message
    assert not own_cache.exists()


@pytest.mark.parametrize("name", SETS)
def test_sets_that_are_not_there(name, tmp_path, nothing_in_the_usual_places):
    source, release = SETS[name]
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(source, folder=folder)
        for part in (place, "https://github.com/med-air/FedBN", "data.folder", release.folder):
            assert part in message
        for domain in release.domains:
            assert f"{domain}/" in message
    assert "is not a folder" in complaint(source, folder=str(tmp_path / "none"))
    office = office_caltech.office_caltech
    assert "config.data.sampling" in complaint(office, folder=str(tmp_path), sampling="first")


# Without lists


def folders_only(release, folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Two files of each class, three of the last, and others; a domain's (name, label) in order."""
    made = {}
    for seed, domain in enumerate(release.domains):
        made[domain] = []
        for label, name in enumerate(release.classes):
            for number in range(3 if label == 9 else 2):
                file = folder / domain / name / f"{number}{('.png', '.JPG', '.jpeg')[number]}"
                file.parent.mkdir(parents=True, exist_ok=True)
                kind = "PNG" if number == 0 else "JPEG"
                picture(1000 * seed + 10 * label + number).save(file, kind)
                made[domain].append((str(file), label))
            (file.parent / ".DS_Store").write_bytes(b"\0")
        (folder / domain / "another_class").mkdir()
    return made


@pytest.mark.parametrize("name", SETS)
def test_a_split_of_our_own(name, tmp_path, own_cache, caplog):
    source, release = SETS[name]
    files = folders_only(release, tmp_path)
    with caplog.at_level(logging.WARNING):
        data = source(folder=str(tmp_path), size=SIDE)
    assert "cannot be compared" in caplog.text and len(caplog.records) == 1
    row = 0
    for test in (False, True):
        for number, domain in enumerate(release.domains):
            order = np.random.default_rng(0).permutation(21)
            for at in order[:4] if test else order[4:]:
                file, label = files[domain][at]
                with Image.open(file) as image:
                    assert np.array_equal(data.x[row], np.asarray(image))
                found = (int(data.y[row]), int(data.domain[row]), bool(data.test[row]))
                assert found == (label, number, test)
                row += 1
    assert row == len(data.y)


def test_no_warning_with_lists(tmp_path, own_cache, caplog):
    source, release = SETS["domainnet"]
    make_set(release, tmp_path)
    source(folder=str(tmp_path), size=8)
    assert not caplog.records


def test_a_class_without_images(tmp_path, own_cache):
    source, release = SETS["domainnet"]
    folders_only(release, tmp_path)
    empty = tmp_path / "quickdraw" / "whale"
    for file in empty.iterdir():
        if file.suffix:
            file.unlink()
    assert complaint(source, folder=str(tmp_path)).startswith(f"{empty} has no images")
