"""Digits-Five: small data sets in the original formats."""

import shutil
from functools import partial
from pathlib import Path

import broken
import numpy as np
import pytest
from domain_files import naive_resize, write
from inputs import complaint
from scipy.io import savemat

from fedjax_lab.data.sources import digits_five

DOMAINS = ("mnist_m", "mnist", "usps", "synth", "svhn")
SIZES = (28, 28, 3), (28, 28), (16, 16), (32, 32, 3), (32, 32, 3)
SHAPES = dict(zip(DOMAINS, SIZES, strict=True))


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
    """A folder that contains FedBN's release, with train.pkl and parts of 10 images."""
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
    """The rows of the training and of the test images, computed by loops."""
    if sampling == "fedpick":
        return np.arange(12), np.arange(TESTS)

    def first(labels, count):
        return [i for i, label in enumerate(labels) if sum(labels[:i] == label) < count]

    train, test = digits(domain, TRAINING, 0)[1], digits(domain, TESTS, 1)[1]
    return np.array(first(train[:25], 2)), np.array(first(test, 1))


def check_digits(data, sampling: str):
    """Checks all rows at 32 x 32 pixels: labels, order, and exact pixels if nothing was resized."""
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
@pytest.mark.parametrize("removed", ["none", "train.pkl", "partitions/train_part1.pkl"])
def test_digits_five_reads_the_release_of_fedbn(removed, sampling, release):
    for name in digits_five.FOLDERS.values():
        (release / "digits_five" / name / removed).unlink(missing_ok=True)
    for folder in (release, release / "digits_five"):
        data = digits_five.digits_five(folder=str(folder), sampling=sampling)
        check_digits(data, sampling)


def test_the_samplings_have_the_papers_numbers():
    fedpick, fedc2i = digits_five.SAMPLINGS["fedpick"], digits_five.SAMPLINGS["fedc2i"]
    assert fedpick == (1000, 2, 0, 0) and fedc2i == (7438, 10, 100, 200)
    ends = [int(743.8 * part) for part in range(11)]  # as FedBN cuts train.pkl
    assert ends[fedpick.parts] >= fedpick.pool and ends[fedc2i.parts] == fedc2i.pool
    for setting in ("sampling", "source"):
        assert f"config.data.{setting}" in complaint(digits_five.digits_five, **{setting: "fed"})


FORMS = {
    "lists": lambda x, y: [x, y.tolist()],
    "channel": lambda x, y: (x[..., None], y.astype(np.float32)),
    "column": lambda x, y: (x, y[:, None].astype(np.uint8)),
    "turned": lambda x, y: (np.asfortranarray(x), y.astype(">i8")),
}


@pytest.mark.parametrize("kind, protocol", [*zip(FORMS, (2, 4, 5, 4), strict=True)])
def test_digits_five_reads_other_forms_of_pickles(kind, protocol, release):
    x, y = digits("mnist", TRAINING, 0)
    change = FORMS[kind]
    folder = release / "digits_five" / "MNIST"
    for part in range(2):
        rows = slice(10 * part, 10 * part + 10)
        write(folder / "partitions" / f"train_part{part}.pkl", change(x[rows], y[rows]), protocol)
    check_digits(digits_five.digits_five(folder=str(release)), "fedpick")


def write_matlab(folder: Path, synth: str = "synth"):
    """Writes the files of KD3A (synth) or M3SDA (syn_number)."""
    pairs = {d: (digits(d, TRAINING, 0), digits(d, TESTS, 1)) for d in DOMAINS}
    folder.mkdir(parents=True, exist_ok=True)
    cells, numbers, mnist, mnist_m = np.empty((2, 2), object), {}, {}, {}
    for row, split in enumerate(("train", "test")):
        x, y = pairs["usps"][row]
        cells[row] = [x[:, None] / 255, y[:, None]]
        x, y = pairs["mnist"][row]
        mnist |= {f"{split}_32": x.astype(float), f"label_{split}": np.eye(10)[y]}
        mnist[f"{split}_28"] = x[..., None]
        x, y = pairs["mnist_m"][row]
        mnist_m |= {split: x, f"label_{split}": np.eye(10)[y]}
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
def test_digits_five_reads_matlab_files_of_kd3a_and_m3sda(synth, sampling, tmp_path, monkeypatch):
    """The images of MNIST and USPS are read although their sizes differ from the published ones."""
    monkeypatch.setattr(digits_five, "SAMPLINGS", SMALL)
    write_matlab(tmp_path / "Digit-Five", synth)
    for folder, source in ((tmp_path, "auto"), (tmp_path / "Digit-Five", "m3sda")):
        data = digits_five.digits_five(folder=str(folder), sampling=sampling, source=source)
        check_digits(data, sampling)


def test_digits_five_prefers_the_release_of_fedbn(release):
    write_matlab(release / "digits_five")
    file = release / "digits_five" / "MNIST" / "test.pkl"
    images, labels = digits("mnist", TESTS, 1)
    write(file, (images[:2], labels[:2]))
    counts = {}
    for source in ("auto", "fedbn", "m3sda"):
        data = digits_five.digits_five(folder=str(release), source=source)
        counts[source] = int(((data.domain == 1) & data.test).sum())
    assert counts == {"auto": 2, "fedbn": 2, "m3sda": TESTS}


ONES = np.ones((2, 28, 28), np.uint8)
DAMAGED = [  # (what a file holds, words of the error)
    ({"x": ONES}, "is not a pair"),
    ((ONES, ["a", "b"]), "its labels are <U1 [2]"),
    ((ONES, [1]), "its labels are int64 [1], not 2 numbers"),
    ((ONES, [1, 11]), "label 11 in row 1 is not in 0 .. 10"),
    ((ONES, [[1], [1, 2]]), "something else than arrays"),
    ((np.ones((2, 8, 8, 4), np.uint8), [1, 2]), "its images are uint8 [2, 8, 8, 4]"),
    ((ONES * 256.0, [1, 2]), "its pixels are from 256.0 to 256.0"),
    ((ONES * np.nan, [1, 2]), "its pixels are from nan"),
    ((np.array([{}, None]), [1, 2]), "not plain data"),
]


def test_an_error_says_what_is_wrong_with_a_pickle(release):
    file = release / "digits_five" / "SVHN" / "test.pkl"
    check = partial(broken.check, digits_five.digits_five, folder=str(release))
    for content, expected in DAMAGED:
        write(file, content)
        check(file, expected, "med-air/FedBN")
    file.unlink()
    check(file, "is missing", "med-air/FedBN")
    write(file, (ONES, [1, 2]))
    file = release / "digits_five" / "USPS" / "partitions" / "train_part1.pkl"
    write(file, (ONES, [1, 2]))
    assert "differ in size" in complaint(digits_five.digits_five, folder=str(release))


DAMAGED_MATLAB = [  # (file, content, words of the error)
    ("svhn_test_32x32.mat", None, "is missing"),
    ("usps_28x28.mat", {"dataset": np.zeros(3)}, "damaged or has no dataset"),
    ("mnist_data.mat", {"train_32": ONES, "label_train": np.array([[1], [np.nan]])}, "label nan"),
    ("mnist_data.mat", {"train_28": ONES, "label_train": np.ones((2, 1))}, "train_32 and label_"),
    ("synth_train_32x32.mat", {"X": np.ones((4, 4)), "y": 1}, "damaged or has no X and y"),
]


def test_an_error_says_what_is_wrong_with_a_matlab_file(tmp_path):
    write_matlab(tmp_path)
    for name, content, expected in DAMAGED_MATLAB:
        file = tmp_path / name
        whole = file.read_bytes()
        if isinstance(content, dict):
            savemat(file, content)
        else:
            broken.replace(file, content)
        broken.check(digits_five.digits_five, file, expected, folder=str(tmp_path))
        broken.replace(file, whole)


def remaining(data, names):
    """The examples of these domains, as `digits_five` numbers them."""
    rows = np.isin(data.domain, [DOMAINS.index(name) for name in names])
    number = {DOMAINS.index(name): i for i, name in enumerate(names)}
    domain = np.array([number[d] for d in data.domain[rows].tolist()])
    return data.x[rows], data.y[rows], domain, data.test[rows]


def check_equal(data, expected):
    for made, wanted in zip((data.x, data.y, data.domain, data.test), expected, strict=True):
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("gone", [("synth", "svhn"), ("mnist_m", "mnist")])
@pytest.mark.parametrize("form", ["fedbn", "m3sda"])
def test_a_release_without_some_domains_is_read_and_says_so(form, gone, release, caplog):
    where = release / "digits_five"
    if form == "m3sda":
        where = release / "other"
        write_matlab(where)
    whole = digits_five.digits_five(folder=str(where))
    assert not caplog.records
    names = tuple(name for name in DOMAINS if name not in gone)
    for name in gone:
        if form == "fedbn":
            shutil.rmtree(where / digits_five.FOLDERS[name])
        for file in where.glob(f"*{name.removesuffix('_m')}*{'m*' * (name == 'mnist_m')}.mat"):
            file.unlink()
    data = digits_five.digits_five(folder=str(where))
    assert data.domains == names
    check_equal(data, remaining(whole, names))
    (record,) = caplog.records
    assert f"has 3 of the five domains: {', '.join(names)}" in record.getMessage()
    assert "means over domains are not those of papers" in record.getMessage()


def test_the_arrays_of_a_sampling_are_read(release, tmp_path):
    folder = tmp_path / "npz"
    folder.mkdir()
    names = ("mnist_m", "usps")
    for sampling in SMALL:
        whole = digits_five.digits_five(folder=str(release), sampling=sampling)
        expected = remaining(whole, names)
        x, y, domain, test = expected
        words = {"domain": np.array(names)[domain], "split": np.where(test, "test", "train")}
        arrays = {"x": x, "y": y, **words}
        np.savez(folder / f"{sampling}.npz", **arrays)
        data = digits_five.digits_five(folder=str(folder), sampling=sampling)
        assert data.domains == names
        check_equal(data, expected)
        assert digits_five.domains(digits_five.find(str(folder))) == names
    for key, problem in (("split", "has no array 'split'"), ("domain", "has no array 'domain'")):
        np.savez(folder / "fedpick.npz", **{k: a for k, a in arrays.items() if k != key})
        assert problem in complaint(digits_five.digits_five, folder=str(folder))
    np.savez(folder / "fedpick.npz", **arrays | {"domain": np.full(len(y), "mnistm")})
    assert "did you mean 'mnist_m'" in complaint(digits_five.digits_five, folder=str(folder))
