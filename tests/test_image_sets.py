"""CIFAR, SVHN, Tiny-ImageNet and what TFDS prepares: small sets in the true formats."""

import functools
import io
import os
import pickle
import struct
import sys
import tarfile

import numpy as np
import pytest
from inputs import complaint
from scipy.io import savemat

from fedjax_lab.data import cifar, images, pickles, places, prepared, svhn, tiny_imagenet
from fedjax_lab.experiment import NAMED


def check_one_domain(data, name: str, training: int, total: int):
    """Types and sizes; training examples first."""
    assert (data.x.dtype, data.y.dtype, data.domain.dtype) == (np.uint8, np.int32, np.int32)
    assert data.x.flags.c_contiguous and len(data.x) == len(data.y) == total
    assert data.test.tolist() == [False] * training + [True] * (total - training)
    assert data.domain.tolist() == [0] * total and data.domains == (name,)


@pytest.fixture
def nothing_in_the_usual_places(monkeypatch):
    monkeypatch.setattr(places, "PLACES", ("/nowhere/a", "/nowhere/b"))


def test_sources_have_names():
    for name in ("cifar10", "cifar100", "svhn", "tiny_imagenet", "tfds"):
        assert NAMED["data"][name].__name__ == name


# Pickles


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2's pickler did: its str, here str and bytes, has opcodes of its own."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        raw = value.encode("latin1") if isinstance(value, str) else value
        short = len(raw) < 256
        head = b"U" + bytes([len(raw)]) if short else b"T" + struct.pack("<i", len(raw))
        self.write(head + raw)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def python2(value, protocol: int = 2) -> bytes:
    """A pickle of Python 2 with the NumPy of then."""
    file = io.BytesIO()
    Python2Pickler(file, protocol).dump(value)
    return file.getvalue().replace(b"numpy._core", b"numpy.core")


GRID = np.arange(24).reshape(2, 3, 4)
PLAIN = {
    "list": [1, -2.5, True, None, 2**70, "text", b"bytes", b"", bytearray(b"x")],
    "nested": {"a": (1, [2, {3: {4}}]), 5: frozenset([6]), "c": 1j},
    "uint8": GRID.astype(np.uint8),
    "fortran": np.asfortranarray(GRID.astype(np.float32)),
    "turned": GRID.transpose(1, 2, 0),
    "strided": GRID[:, ::2],
    "big-endian": GRID.astype(">i4"),
    "float64": np.array([0.5, np.inf]),
    "bool": np.array([True, False]),
    "strings": np.array([b"cat", b"horse"]),
    "text": np.array([["cat", "h\u00f6rse"], ["", "x"]]),
    "empty": np.zeros((0, 3), np.uint8),
    "scalar": np.float32(1.5),
    "zero-dimensional": np.array(7),
}


def same(a, b) -> bool:
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    return a == b and type(a) is type(b)


def with_old_names(content: bytes, protocol: int) -> bytes:
    """The pickle as NumPy 1 wrote it."""
    if protocol < 4:
        return content.replace(b"numpy._core", b"numpy.core")
    for new in (b"numpy._core.multiarray", b"numpy._core.numeric"):
        old = new.replace(b"_core", b"core")
        content = content.replace(bytes([len(new)]) + new, bytes([len(old)]) + old)
    return content[:2] + content[11:]  # without the frame, which tells how long it is


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("case", PLAIN)
def test_plain_pickles_are_read_as_pickle_reads_them(case, protocol, tmp_path):
    content = pickle.dumps(PLAIN[case], protocol)
    expected, file = pickle.loads(content), tmp_path / "a.pickle"
    for written in (content, with_old_names(content, protocol)):
        file.write_bytes(written)
        assert same(expected, pickles.load(file, "write it again"))
    assert b"numpy._core" not in written


@pytest.mark.parametrize("protocol", range(6))
def test_objects_that_are_text_become_arrays_of_text(protocol):
    words = np.array([["cat", "h\u00f6rse"], ["", "x"]])
    for order in ("C", "F"):
        content = pickle.dumps(words.astype(object, order=order), protocol)
        assert same(words, pickles.loads(content, "a file", "remedy"))


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_strings_of_python_2_are_bytes(protocol):
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 64)
    value = {"data": pixels, "labels": [3, 1], "name": b"\xe9" * 300}
    content = python2(value, 2) if protocol == 2 else pickle.dumps(value, protocol)
    made = pickles.loads(content, "a file", "remedy")
    key = b"data" if protocol == 2 else "data"
    assert same(pixels, made[key]) and type(made[key].tobytes()) is bytes
    assert list(made.values())[1:] == [[3, 1], b"\xe9" * 300]


class Call:
    """Pickled, it is a call of a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def global_(module: str, name: str, after: bytes = b".") -> bytes:
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + after


def forged(kind: bytes, dtype_state: bytes, data: bytes) -> bytes:
    """An array of one element with a type, the state of that type and contents of one's choice."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01(K\x01tcnumpy\ndtype\n(" + kind + b"tR" + dtype_state + b"b\x89" + data + b"tb."
    )


def binstring(raw: bytes) -> bytes:
    return b"U" + bytes([len(raw)]) + raw


STATE = b"(K\x03" + binstring(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
REFUSED = {
    "os.system": (pickle.dumps(Call(os.system, "echo hi")), "system"),
    "eval": (pickle.dumps(Call(eval, "1 + 1")), "builtins.eval"),
    "eval of Python 2": (global_("__builtin__", "eval"), "__builtin__.eval"),
    "getattr": (pickle.dumps(Call(getattr, "a", "upper")), "builtins.getattr"),
    "numpy.load": (pickle.dumps(Call(np.load, "a.npy")), "it asks for numpy"),
    "numpy.save": (global_("numpy", "save"), "numpy.save"),
    "dotted name": (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "numpy.ndarray.tofile"),
    "codec": (global_("_codecs", "encode", b"U\x01aU\x04zlib\x86R."), "it asks for a codec"),
    "partial": (pickle.dumps(functools.partial(int)), "functools.partial"),
    "own class": (pickle.dumps(PLAIN).replace(b"multiarray", b"multiarraz"), "multiarraz"),
    "objects": (pickle.dumps(np.array([{}, None])), "array of type O"),
    "text and objects": (pickle.dumps(np.array(["a", {}])), "array of type O"),
    "no characters": (
        forged(binstring(b"U1"), STATE, binstring(b"\xff" * 4)),
        "a file is not plain",
    ),
    "objects, protocol 2": (pickle.dumps(np.array([{}]), 2), "array of type O"),
    "records": (pickle.dumps(np.zeros(2, [("a", "i4")])), "array of type V"),
    "times": (pickle.dumps(np.array(["2020-01-01"], "M8[D]")), "array of type M8"),
    "pointers": (forged(binstring(b"O8"), STATE, binstring(b"\x01" * 8)), "array of type O8"),
    "list as type": (forged(b"]", STATE, binstring(b"\x01" * 8)), "array of type []"),
    "list for bytes": (forged(binstring(b"i8"), STATE, b"]"), "without its bytes"),
    "too few bytes": (forged(binstring(b"i8"), STATE, binstring(b"123")), "a file is not plain"),
    "set on a stand-in": (
        global_("numpy", "dtype", b"N}U\x0c__defaults__U\x01xs\x86b."),
        "a file is not plain",
    ),
    "persistent id": (b"\x80\x02K\x01Q.", "a file is not plain"),
    "extension": (b"\x80\x02\x82\x07.", "a file is not plain"),
    "newline in a name": (b"\x80\x04\x8c\x02o\n\x8c\x03\x1b[2\x93.", "it asks for o . [2"),
    "empty": (b"", "a file is not plain"),
    "text": (b"<html>no pickle</html>", "a file is not plain"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_pickles_are_refused(case):
    content, expected = REFUSED[case]
    message = complaint(pickles.loads, content, "a file", "get another")
    assert message.startswith("a file") and message.endswith("get another")
    assert expected in message and len(message) < 300


def test_nothing_is_run(tmp_path):
    target = tmp_path / "made"
    for call in (Call(open, str(target), "w"), Call(exec, f"open({str(target)!r}, 'w')")):
        for protocol in range(6):
            complaint(pickles.loads, pickle.dumps([call], protocol), "a file", "")
    assert not target.exists()


def test_numpy_itself_is_not_lent_out():
    for name in ("ndarray", "dtype"):
        assert pickles.loads(global_("numpy", name), "", "") is not getattr(np, name)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_truncation_is_refused(protocol):
    content = pickle.dumps({b"data": np.arange(9), b"labels": [1, 2]}, protocol)
    for end in range(len(content)):
        complaint(pickles.loads, content[:end], "a file", "get another")


def test_pickle_file_that_cannot_be_opened(tmp_path):
    assert f"{tmp_path / 'none'} cannot be read" in complaint(pickles.load, tmp_path / "none", "")


# CIFAR


def planes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, 32, 32, 3], and as CIFAR's files have them: plane, row, column."""
    images = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    flat = np.zeros((count, 3072), np.uint8)
    for n in range(count):
        for row in range(32):
            for column in range(32):
                for channel in range(3):
                    place = channel * 1024 + row * 32 + column
                    flat[n, place] = images[n, row, column, channel]
    return images, flat


IMAGES, FLAT = planes(0, 7)
LABELS = [3, 9, 0, 0, 5, 1, 2]  # 1 to a training batch, 2 in the test batch


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
def test_cifar(name, where, tmp_path, monkeypatch):
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
def test_cifar_that_is_not_there(name, tmp_path, nothing_in_the_usual_places):
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
    "list": ("data_batch_2", [1, 2], "no dictionary with data and labels"),
    "no data": ("data_batch_2", {"labels": [1]}, "no dictionary with data and labels"),
    "no labels": ("data_batch_2", {"data": FLAT[:1]}, "no dictionary with data and labels"),
    "data a list": ("data_batch_2", {"data": [[1], []], "labels": [1]}, "data is not an array"),
    "floats": (
        "data_batch_2",
        {"data": FLAT[:1].astype(float), "labels": [1]},
        "data is float64 [1, 3072]",
    ),
    "shape": ("data_batch_2", {"data": FLAT[:1, :9], "labels": [1]}, "data is uint8 [1, 9]"),
    "no rows": ("data_batch_2", {"data": FLAT[:0], "labels": []}, "data is uint8 [0, 3072]"),
    "count": ("data_batch_2", {"data": FLAT[:2], "labels": [1]}, "labels is no list of 2"),
    "label": ("data_batch_2", {"data": FLAT[:1], "labels": [10]}, "label 10 is not of cifar10"),
    "negative": ("test_batch", {"data": FLAT[:1], "labels": [-1]}, "label -1 is not"),
    "text label": ("test_batch", {"data": FLAT[:1], "labels": ["\n"]}, "label b'\\n' is not"),
    "no names": ("batches.meta", {"num_vis": 3072}, "has no list label_names"),
    "few names": ("batches.meta", {"label_names": ["a"]}, "names 1 classes, not 10"),
}


@pytest.mark.parametrize("case", BROKEN_CIFAR)
def test_cifar_says_what_is_wrong(case, tmp_path):
    name, part, expected = BROKEN_CIFAR[case]
    folder = unpack(cifar10_parts(), tmp_path)
    (folder / name).unlink()
    if part is not None:
        (folder / name).write_bytes(python2(part))
    message = complaint(cifar.cifar10, folder=str(folder))
    assert message.startswith(str(folder / name)) and expected in message
    assert "cifar.html" in message


def test_cifar_truncated_and_hostile_files(tmp_path):
    folder = unpack(cifar10_parts(), tmp_path)
    file = folder / "data_batch_3"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert f"{file} is not plain data, or damaged" in complaint(cifar.cifar10, folder=str(folder))
    file.write_bytes(pickle.dumps(Call(eval, "1")))
    assert f"{file} is not plain data" in complaint(cifar.cifar10, folder=str(folder))


@pytest.mark.parametrize("case", ["truncated", "no gzip", "member missing", "hostile member"])
def test_cifar_broken_archives(case, tmp_path):
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
        "hostile member": f"{archive}/test is not plain data",
    }.get(case, f"{archive} cannot be read")
    assert message.startswith(expected)


# SVHN


@pytest.fixture
def numbers(tmp_path):
    """A folder with both files, and what they hold."""
    labels = np.array([10, 1, 9, 2, 10], np.uint8)
    for name, rows in zip(svhn.FILES, (slice(3), slice(3, 5)), strict=True):
        x = np.zeros((32, 32, 3, len(labels[rows])), np.uint8)
        for n, image in enumerate(IMAGES[:5][rows]):
            x[:, :, :, n] = image
        savemat(tmp_path / name, {"X": x, "y": labels[rows][:, None]}, do_compression=True)
    return tmp_path


def test_svhn(numbers, monkeypatch):
    data = svhn.svhn(folder=str(numbers))
    check_one_domain(data, "svhn", 3, 5)
    assert np.array_equal(data.x, IMAGES[:5])
    assert data.y.tolist() == [0, 1, 9, 2, 0] and data.classes == tuple("0123456789")
    inner = numbers / "svhn"
    inner.mkdir()
    for name in svhn.FILES:
        (numbers / name).rename(inner / name)
    monkeypatch.setattr(places, "PLACES", ("/nowhere", str(numbers)))
    assert np.array_equal(svhn.svhn().x, data.x)
    assert np.array_equal(svhn.svhn(folder=str(numbers)).x, data.x)


def test_svhn_that_is_not_there(tmp_path, nothing_in_the_usual_places):
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(svhn.svhn, folder=folder)
        for part in (place, *svhn.FILES, "http://ufldl.stanford.edu/housenumbers", "data.folder"):
            assert part in message


X, Y = np.zeros((32, 32, 3, 2), np.uint8), np.ones((2, 1), np.uint8)
BROKEN_SVHN = {
    "missing": (None, "is missing"),
    "no X": ({"y": Y}, "X is object []"),
    "no y": ({"X": X}, "y is object []"),
    "floats": ({"X": X.astype(float), "y": Y}, "X is float64 [32, 32, 3, 2]"),
    "axes": ({"X": X.transpose(3, 0, 1, 2), "y": Y}, "X is uint8 [2, 32, 32, 3]"),
    "count": ({"X": X, "y": Y[:1]}, "y is uint8 [1, 1], not 2 labels"),
    "label": ({"X": X, "y": 11 * Y}, "label 11 is not in 1 .. 10"),
    "zero": ({"X": X, "y": 0 * Y}, "label 0 is not in 1 .. 10"),
    "fraction": ({"X": X, "y": 1.5 * Y}, "label 1.5 is not"),
}


@pytest.mark.parametrize("case", BROKEN_SVHN)
def test_svhn_says_what_is_wrong(case, numbers):
    content, expected = BROKEN_SVHN[case]
    file = numbers / svhn.FILES[1]
    file.unlink()
    if content is not None:
        savemat(file, content)
    message = complaint(svhn.svhn, folder=str(numbers))
    assert message.startswith(str(file)) and expected in message and "housenumbers" in message


@pytest.mark.parametrize("damage", [lambda c: c[:-40], lambda c: b"", lambda c: b"<html>" * 99])
def test_svhn_damaged_file(damage, numbers):
    file = numbers / svhn.FILES[0]
    file.write_bytes(damage(file.read_bytes()))
    assert f"{file} is damaged or no MATLAB file" in complaint(svhn.svhn, folder=str(numbers))


# Tiny-ImageNet

WNIDS = ("n02", "n01", "n10")  # not in their order, as in wnids.txt


@pytest.fixture
def tiny(tmp_path):
    """A folder around a small tiny-imagenet-200."""
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


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


TRAINING = [
    f"train/{name}/images/{name}_{number}.JPEG"
    for name, numbers in (("n01", (10, 9)), ("n02", (10, 9)), ("n10", (0, 10, 9)))
    for number in numbers
]
TESTS = [f"val/images/val_{number}.JPEG" for number in range(3)]


def pixels(folder, name: str) -> np.ndarray:
    """An image [64, 64, 3] as it is decoded."""
    from PIL import Image

    return np.asarray(Image.open(folder / "tiny-imagenet-200" / name).convert("RGB"))


def test_tiny_imagenet_at_full_size(tiny, own_cache):
    data = tiny_imagenet.tiny_imagenet(folder=str(tiny), size=64)
    check_one_domain(data, "tiny_imagenet", 7, 10)
    assert np.array_equal(data.x, [pixels(tiny, name) for name in TRAINING + TESTS])
    assert data.files == tuple(str(tiny / "tiny-imagenet-200" / n) for n in TRAINING + TESTS)
    assert data.classes == ("n01", "n02", "n10")
    assert data.y.tolist() == [0, 0, 1, 1, 2, 2, 2] + [2, 1, 1]
    grey = data.x[TRAINING.index("train/n10/images/n10_0.JPEG")]
    assert np.array_equal(grey[..., 0], grey[..., 1]) and np.array_equal(grey[..., 0], grey[..., 2])


def test_tiny_imagenet_resizes_with_antialiasing(tiny, own_cache):
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


def test_tiny_imagenet_is_decoded_once_until_something_changes(tiny, own_cache, monkeypatch):
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
    table.write_text(table.read_text().replace("n10", "n01"))  # as long as before
    assert tiny_imagenet.tiny_imagenet(folder=str(tiny)).y[7] == 0 and len(calls) == 4
    file.rename(file.with_name("n01_8.JPEG"))
    tiny_imagenet.tiny_imagenet(folder=str(tiny))
    assert len(calls) == 5 and len(list(own_cache.iterdir())) == 5


def test_tiny_imagenet_that_is_not_there(tmp_path, nothing_in_the_usual_places):
    for folder, place in (("", "/nowhere/a or /nowhere/b"), (str(tmp_path), str(tmp_path))):
        message = complaint(tiny_imagenet.tiny_imagenet, folder=folder)
        for part in (place, "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "data.folder"):
            assert part in message
    for size in (7, 65):
        assert f"data.size is {size}" in complaint(tiny_imagenet.tiny_imagenet, size=size)


BROKEN_TINY = {
    "truncated image": (TRAINING[3], lambda c: c[: len(c) // 2], "truncated"),
    "truncated test image": (TESTS[1], lambda c: c[: len(c) // 2], "truncated"),
    "no image": (TESTS[0], lambda c: b"<html>", "is damaged or no image"),
    "empty image": (TRAINING[0], lambda c: b"", "is damaged or no image"),
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
def test_tiny_imagenet_says_what_is_wrong(case, tiny, own_cache):
    name, damage, expected = BROKEN_TINY[case]
    file = tiny / "tiny-imagenet-200" / name
    content = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage(content))
    message = complaint(tiny_imagenet.tiny_imagenet, folder=str(tiny))
    assert message.startswith(str(file)) and expected in message and "tiny-imagenet-200" in message
    assert not own_cache.exists()


def test_tiny_imagenet_class_without_images(tiny, own_cache):
    wnids = tiny / "tiny-imagenet-200" / "wnids.txt"
    wnids.write_text(wnids.read_text() + "n11\n")
    message = complaint(tiny_imagenet.tiny_imagenet, folder=str(tiny))
    assert f"{wnids.parent / 'train' / 'n11' / 'images'} has no images" in message


# TFDS


def prepare(folder, name: str, version: str, images: np.ndarray, labels: list[int]):
    """A small set in TFDS's own files, as its builder of this name lays it out: 5 to train."""
    library = pytest.importorskip("tensorflow_datasets")
    from PIL import Image

    features = {
        "id": library.features.Text(),
        "image": library.features.Image(shape=images.shape[1:]),
        "label": library.features.ClassLabel(names=[f"class {n}" for n in range(10)]),
    }

    def info(self):
        return library.core.DatasetInfo(
            builder=self, features=library.features.FeaturesDict(features)
        )

    def examples(self, rows):
        for row in rows:
            file = io.BytesIO()
            Image.fromarray(np.squeeze(images[row])).save(file, "png")
            file.seek(0)
            yield row, {"id": f"{row}", "image": file, "label": labels[row]}

    body = {
        "VERSION": library.core.Version(version),
        "name": name,
        "_info": info,
        "_split_generators": lambda self, _: {
            "train": self._generate_examples(range(5)),
            "test": self._generate_examples(range(5, 7)),
        },
        "_generate_examples": examples,
        "__module__": __name__,
    }
    with library.core.registered.skip_registration():
        builder = type("Small", (library.core.GeneratorBasedBuilder,), body)
    builder(data_dir=str(folder), file_format="array_record").download_and_prepare()


def in_order(data, images: np.ndarray) -> list[int]:
    """Which image each row is."""
    return [int(np.flatnonzero((images == x).all((1, 2, 3)))[0]) for x in data.x]


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_tfds_reads_what_it_has_prepared(name, tmp_path, monkeypatch):
    images = IMAGES if name == "cifar10" else IMAGES[:, :28, :28, :1]
    prepare(tmp_path, name, "3.0.2", images, LABELS)
    data = prepared.tfds(dataset=name, folder=str(tmp_path))
    check_one_domain(data, name, 5, 7)
    rows = in_order(data, images)
    assert sorted(rows[:5]) == [0, 1, 2, 3, 4] and sorted(rows[5:]) == [5, 6]
    assert data.y.tolist() == [LABELS[row] for row in rows]
    assert data.classes == tuple(f"class {n}" for n in range(10))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert np.array_equal(prepared.tfds(dataset=name).x, data.x)
    assert "tensorflow" not in sys.modules


def test_tfds_reads_the_newest_version(tmp_path):
    prepare(tmp_path, "cifar10", "3.9.0", IMAGES[::-1], LABELS)
    prepare(tmp_path, "cifar10", "3.10.0", IMAGES, LABELS)
    (tmp_path / "cifar10" / "4.0.0.incompleteABC").mkdir()
    (tmp_path / "cifar10" / "4.0.0").mkdir()  # without its dataset_info.json
    data = prepared.tfds(folder=str(tmp_path))
    assert data.y.tolist() == [LABELS[row] for row in in_order(data, IMAGES)]


@pytest.mark.parametrize("case", ["format", "features", "truncated", "shard missing"])
def test_tfds_says_what_it_cannot_read(case, tmp_path):
    prepare(tmp_path, "cifar10", "3.0.2", IMAGES, LABELS)
    where = tmp_path / "cifar10" / "3.0.2"
    shard = where / "cifar10-test.array_record-00000-of-00001"
    if case == "format":
        info = where / "dataset_info.json"
        info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    elif case == "features":
        (where / "features.json").write_text("{")
    elif case == "truncated":
        shard.write_bytes(shard.read_bytes()[:70])
    else:
        shard.unlink()
    message = complaint(prepared.tfds, folder=str(tmp_path))
    assert message.startswith(f"{where} cannot be read") and "tfds build cifar10" in message


def test_tfds_that_is_not_prepared(tmp_path, monkeypatch):
    message = complaint(prepared.tfds, dataset="svhn_cropped", folder=str(tmp_path))
    assert f"{tmp_path} has no prepared svhn_cropped" in message
    command = f"tfds build svhn_cropped --file_format=array_record --data_dir={tmp_path}"
    assert command in message
    monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
    assert "/nowhere has no prepared cifar10" in complaint(prepared.tfds)
    assert "did you mean 'cifar10'" in complaint(prepared.tfds, dataset="cifar")


def test_tfds_without_the_extra(tmp_path, monkeypatch):
    (tmp_path / "cifar10" / "3.0.2").mkdir(parents=True)
    (tmp_path / "cifar10" / "3.0.2" / "dataset_info.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    message = complaint(prepared.tfds, folder=str(tmp_path))
    assert "tensorflow_datasets" in message and "pip install -e '.[tfds]'" in message
