"""Tests that damaged, irregular or wrongly sized files of any format raise nothing but BadInput."""

import contextlib
import gzip
import importlib.util
import io
import json
import os
import pickle
import signal
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from functools import partial
from pathlib import Path

import leaf_files
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import complaint
from published import cinic10_files, contents, emnist_files, gtsrb_files
from scipy.io import savemat

from fedjax_lab.data import cifar, digits_five, idx, images, pickles, safe, shakespeare, svhn
from fedjax_lab.data.arrays import arrays
from fedjax_lab.data.cinic10 import cinic10
from fedjax_lab.data.domainnet import domainnet_full
from fedjax_lab.data.emnist import emnist
from fedjax_lab.data.gtsrb import gtsrb
from fedjax_lab.data.hub import huggingface
from fedjax_lab.data.image_folders import image_folders
from fedjax_lab.data.image_table import image_table
from fedjax_lab.data.k49 import k49
from fedjax_lab.data.leaf import leaf
from fedjax_lab.data.medmnist import medmnist
from fedjax_lab.data.text_files import text_files
from fedjax_lab.data.tff import tff_hdf5
from fedjax_lab.data.tiny_imagenet import tiny_imagenet
from fedjax_lab.embedding.precomputed import precomputed
from fedjax_lab.errors import BadInput, quoted


@pytest.fixture
def at_once():
    """Limits a test to 20 seconds and 200 MB of memory."""

    def stop(*_):
        raise TimeoutError("it takes too long")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert peak < 200e6


# A small data set in each format: a function writes it and returns the file to be damaged.


def write_arrays(folder):
    file = folder / "data.npz"
    np.savez_compressed(file, x=np.arange(60, dtype=np.uint8).reshape(10, 6), y=np.arange(10) % 3)
    return file


def write_embeddings(folder):
    file = folder / "data.npz"
    np.savez(file, examples=np.ones((10, 4), np.float32), labels=np.ones((3, 4), np.float32))
    return file


def read_embeddings(folder):
    write_arrays(folder.parent / "arrays")
    return precomputed(read_arrays(folder.parent / "arrays"), file=str(folder / "data.npz"))


def read_arrays(folder):
    return arrays(path=str(folder / "data.npz"))


def write_idx(folder, suffix=".gz"):
    for name, count in zip(idx.FILES, (3, 3, 2, 2), strict=True):
        shape = (count, 4, 4)[: 3 if "images" in name else 1]
        head = struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)
        content = head + bytes(np.prod(shape))
        path = folder / f"{name}{suffix}"
        path.write_bytes(gzip.compress(content) if suffix else content)
    return folder / f"{idx.FILES[0]}{suffix}"


def cifar_part(labels=(0, 1)):
    return {b"data": np.zeros((2, 3072), np.uint8), b"labels": list(labels)}


def write_cifar(folder):
    for name in (*cifar.CIFAR10.train, cifar.CIFAR10.test):
        (folder / name).write_bytes(pickle.dumps(cifar_part()))
    names = {b"label_names": [b"a"] * 10}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))
    return folder / "data_batch_1"


def write_cifar_archive(folder):
    inner = folder / "inner"
    inner.mkdir()
    write_cifar(inner)
    with tarfile.open(folder / cifar.CIFAR10.archive, "w:gz") as members:
        members.add(inner, cifar.CIFAR10.folder)
    return folder / cifar.CIFAR10.archive


def write_svhn(folder):
    for name in svhn.FILES:
        content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}
        savemat(folder / name, content, do_compression=name == svhn.FILES[0])
    return folder / svhn.FILES[0]


def write_images(folder):
    from PIL import Image

    picture = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3))
    for name in ("a/cat/0.png", "a/dog/0.jpg", "b/cat/0.png", "b/dog/0.png"):
        (folder / name).parent.mkdir(parents=True)
        picture.save(folder / name)
    return folder / "a/cat/0.png"


def read_images(folder):
    with uncached():
        return image_folders(folder=str(folder), size=8)


@contextlib.contextmanager
def uncached():
    """Disables the cache, from which a damaged file of the same size would be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "load", lambda _: None)
        patch.setattr(images, "save", lambda *_: None)
        yield


def write_table(folder):
    write_images(folder)
    file = folder / "table.csv"
    file.write_text("image,label,center,fold\na/cat/0.png,0,A,train\nb/dog/0,1,B,test\n")
    return file


def read_table(folder):
    with uncached():
        file = str(folder / "table.csv")
        return image_table(path=file, client="center", split="fold", size=8)


def write_texts(folder):
    file = folder / "all_data" / "all.json"
    file.parent.mkdir()
    texts = {"x": ["a" * 80] * 400, "y": ["b"] * 400}
    file.write_text(json.dumps({"users": ["u"], "user_data": {"u": texts}}))
    return file


def write_saved(folder):
    import datasets

    datasets.disable_progress_bars()
    rows = {"text": ["one", "two", "three"] * 3, "label": [0, 1, 2] * 3}
    datasets.Dataset.from_dict(rows).save_to_disk(folder)
    return folder / "data-00000-of-00001.arrow"


def write_text_table(folder, ending):
    from pyarrow import Table, parquet

    file, rows = folder / f"train.{ending}", {"text": ["some words", "more"], "label": ["a", "b"]}
    if ending == "parquet":
        parquet.write_table(Table.from_pydict(rows), file)
    elif ending == "jsonl":
        lines = ({"text": t, "label": y} for t, y in zip(*rows.values(), strict=True))
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        file.write_text("text,label\nsome words,a\nmore,b\n")
    return file


def write_fedbn(folder):
    pair = (np.zeros((2, 8, 8), np.uint8), [1, 2])
    for name in digits_five.FOLDERS.values():
        (folder / name).mkdir()
        for split in ("train", "test"):
            (folder / name / f"{split}.pkl").write_bytes(pickle.dumps(pair, 2))
    return folder / "MNIST_M" / "train.pkl"


def write_files(files, first):
    """Returns a function that writes {path: bytes} to a folder and returns the file `first`."""

    def write(folder):
        for path, content in files().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return folder / first

    return write


READERS = {
    "arrays": (write_arrays, read_arrays),
    "embeddings": (write_embeddings, read_embeddings),
    "idx": (lambda folder: write_idx(folder, ""), lambda folder: idx.idx(folder=str(folder))),
    "idx.gz": (write_idx, lambda folder: idx.idx(folder=str(folder))),
    "cifar": (write_cifar, lambda folder: cifar.cifar10(folder=str(folder))),
    "cifar.tar.gz": (write_cifar_archive, lambda folder: cifar.cifar10(folder=str(folder))),
    "svhn": (write_svhn, lambda folder: svhn.svhn(folder=str(folder))),
    "images": (write_images, read_images),
    "image table": (write_table, read_table),
    "shakespeare": (
        write_texts,
        lambda folder: shakespeare.shakespeare(folder=str(folder), fraction=1.0),
    ),
    "leaf": (leaf_files.write_reddit, lambda folder: leaf(folder=str(folder))),
    "tff_hdf5": (leaf_files.write_fed_emnist, lambda folder: tff_hdf5(folder=str(folder))),
    **{
        ending: (
            partial(write_text_table, ending=ending),
            lambda folder, name=f"train.{ending}": text_files(path=str(folder / name)),
        )
        for ending in ("csv", "jsonl", "parquet")
    },
    "digits_five": (write_fedbn, lambda folder: digits_five.digits_five(folder=str(folder))),
    "emnist": (
        write_files(emnist_files, "emnist-letters-test-labels-idx1-ubyte.gz"),
        lambda folder: emnist(folder=str(folder), split="letters"),
    ),
    "k49": (
        write_files(lambda: contents("k49"), "k49-test-labels.npz"),
        lambda folder: k49(folder=str(folder)),
    ),
    "medmnist": (
        write_files(lambda: contents("bloodmnist"), "bloodmnist.npz"),
        lambda folder: medmnist(folder=str(folder), dataset="bloodmnist"),
    ),
    "cinic10": (
        write_files(cinic10_files, "train/airplane/cifar10-train-0.png"),
        lambda folder: cinic10.listing(folder=str(folder), size=8).x[:1],
    ),
    "gtsrb": (
        write_files(gtsrb_files, "GT-final_test.csv"),
        lambda folder: gtsrb.listing(folder=str(folder), roi=True).x[:1],
    ),
}
if importlib.util.find_spec("datasets"):
    READERS["hub"] = (write_saved, lambda folder: huggingface(dataset=str(folder)))


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """For each format, the folder, the file to be damaged and its content."""
    made = {}
    for name, (write, _) in READERS.items():
        folder = tmp_path_factory.mktemp("sample") / "set"
        folder.mkdir()
        (folder.parent / "arrays").mkdir()
        file = write(folder)
        made[name] = (folder, file, file.read_bytes())
    return made


@pytest.mark.parametrize("name", READERS)
def test_every_undamaged_sample_is_read(name, samples):
    READERS[name][1](samples[name][0])


DAMAGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "drop", "insert", "word"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def damaged(content: bytes, damages) -> bytes:
    for how, place, value in damages:
        at = int(place * len(content))
        content = {
            "flip": content[:at] + bytes([value]) + content[at + 1 :],
            "cut": content[:at],
            "drop": content[:at] + content[at + 1 + value :],
            "insert": content[:at] + bytes([value]) * 4 + content[at:],
            "word": content[:at] + bytes([value]) * 4 + content[at + 4 :],
        }[how]
    return content


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(damages=DAMAGES)
def test_files_damaged_at_random(name, samples, damages):
    folder, file, content = samples[name]
    file.write_bytes(damaged(content, damages))
    try:
        with contextlib.suppress(BadInput):
            READERS[name][1](folder)
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
@pytest.mark.parametrize("name", READERS)
def test_files_that_are_not_regular_are_rejected(name, kind, tmp_path, at_once):
    import socket

    (tmp_path / "set").mkdir()
    (tmp_path / "arrays").mkdir()
    file = READERS[name][0](tmp_path / "set")
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    else:
        here = Path.cwd()
        os.chdir(file.parent)  # the path of a socket must be short
        socket.socket(socket.AF_UNIX).bind(file.name)
        os.chdir(here)
    complaint(READERS[name][1], tmp_path / "set")


@pytest.mark.parametrize("name", ["wnids.txt", "clipart_train.txt"])
def test_lists_of_files_that_are_pipes_are_rejected(name, tmp_path, at_once):
    os.mkfifo(tmp_path / name)
    source = tiny_imagenet if name == "wnids.txt" else domainnet_full
    complaint(source, folder=str(tmp_path))


# Wrong sizes in headers


def npy_header(shape, descr="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def write_members(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


@pytest.mark.parametrize(
    "shape, descr", [((2**30, 8), "<f8"), ((2**40, 8), "<U0"), ((-1, 8), "<f8")]
)
def test_array_headers_that_declare_missing_data_are_rejected(shape, descr, tmp_path, at_once):
    file = tmp_path / "data.npz"
    write_members(file, x=npy_header(shape, descr), y=npy_header((3,)))
    assert file.stat().st_size < 1000
    message = complaint(arrays, path=str(file))
    assert message.startswith(f"{file}: x is damaged (x declares")


def test_zip_members_with_impossible_sizes_are_rejected(tmp_path, at_once):
    file = tmp_path / "data.npz"
    write_members(file, x=npy_header((2**28,)) + bytes(1000), y=npy_header((3,)) + bytes(24))
    content = file.read_bytes()
    with zipfile.ZipFile(file) as members:
        size = members.getinfo("x.npy").file_size
    claimed = struct.pack("<I", 2**32 - 2)
    file.write_bytes(content.replace(struct.pack("<I", size), claimed))
    assert "x is damaged (it declares 4294967294 bytes, more" in complaint(arrays, path=str(file))


def test_compressed_zeros_are_read_only_if_they_fit_in_memory(tmp_path, monkeypatch):
    file = tmp_path / "data.npz"
    np.savez_compressed(file, x=np.zeros((10, 2**19), np.uint8), y=np.arange(10) % 2)
    assert file.stat().st_size < 2**14
    assert arrays(path=str(file)).x.shape == (10, 2**19)
    monkeypatch.setattr(safe, "free_memory", lambda: 9 * 2**20)
    monkeypatch.setattr(safe, "SMALL", 0)
    assert f"{file}: x does not fit in memory: 0.0 GiB" in complaint(arrays, path=str(file))


def test_idx_files_longer_or_shorter_than_their_header_are_rejected(tmp_path, at_once):
    file = write_idx(tmp_path)
    with gzip.open(file, "rb") as whole:
        content = whole.read()
    with gzip.open(file, "wb", compresslevel=1) as bomb:
        bomb.write(content)
        for _ in range(40):
            bomb.write(bytes(2**23))
    assert "is too long" in complaint(idx.idx, folder=str(tmp_path))
    file.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 2**20, 2**10, 2**10)))
    assert "is truncated" in complaint(idx.idx, folder=str(tmp_path))


def test_archive_members_with_huge_declared_sizes_are_rejected(tmp_path, at_once):
    file = tmp_path / cifar.CIFAR10.archive
    member = tarfile.TarInfo(f"{cifar.CIFAR10.folder}/data_batch_1")
    member.size = 2**44
    file.write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    message = complaint(cifar.cifar10, folder=str(tmp_path))
    assert message.startswith(f"{file} cannot be read (it declares")


def test_matlab_files_with_huge_declared_shapes_are_rejected(tmp_path, at_once):
    file = write_svhn(tmp_path)
    content = file.read_bytes()
    inner = zlib.decompress(content[136:])
    forged = zlib.compress(inner.replace(struct.pack("<4i", 32, 32, 3, 2), b"\xff\xff\xff\x0f" * 4))
    file.write_bytes(content[:132] + struct.pack("<I", len(forged)) + forged)
    message = complaint(svhn.svhn, folder=str(tmp_path))
    assert "is damaged or not a MATLAB file (it declares" in message


def chunk(kind: bytes, content: bytes) -> bytes:
    """Returns a chunk of a PNG file."""
    ends = struct.pack(">I", len(content)), struct.pack(">I", zlib.crc32(kind + content))
    return ends[0] + kind + content + ends[1]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side, reason", [(12_000, "it declares"), (30_000, "decompression bomb")])
def test_images_that_declare_too_many_pixels_are_rejected(side, reason, tmp_path, at_once):
    file = write_images(tmp_path)
    head = struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"x\x9c") * 9)
    message = complaint(image_folders, folder=str(tmp_path), size=8)
    assert message.startswith(f"{file} is damaged or not an image (") and reason in message


# Pickles


def nested(depth, value=0):
    for _ in range(depth):
        value = [value, value]
    return value


def test_nested_or_huge_cifar_labels_are_rejected(tmp_path, at_once):
    write_cifar(tmp_path)
    file = tmp_path / "data_batch_1"
    for depth in (3, 25, 60):
        file.write_bytes(pickle.dumps(cifar_part([0, nested(depth)])))
        message = complaint(cifar.cifar10, folder=str(tmp_path))
        assert message.startswith(str(file)) and len(message) < 500
    file.write_bytes(pickle.dumps(cifar_part([0, 2**100_000])))
    assert "value of type int" in complaint(cifar.cifar10, folder=str(tmp_path))


TUPLES = b"\x80\x02)" + b"2\x86" * 60
BOMBS = {
    "shared lists": pickle.dumps(nested(60)),
    "shared tuples": TUPLES + b".",
    "hashed key": b"\x80\x02}" + TUPLES[2:] + b"Ns.",
    "hashed keys": b"\x80\x02}(" + TUPLES[2:] + b"Nu.",
    "hashed dictionary": b"\x80\x02(" + TUPLES[2:] + b"Nd.",
    "hashed set": b"\x80\x04\x8f(" + TUPLES[2:] + b"\x90.",
    "hashed frozenset": b"\x80\x04(" + TUPLES[2:] + b"\x91.",
    "set that is called": b"\x80\x02cbuiltins\nset\n]" + TUPLES[2:] + b"a\x85R.",
    "memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "bytes of a number": b"\x80\x02cbuiltins\nbytes\nI%d\n\x85R." % 2**36,
    "bytearray of a number": b"\x80\x02cbuiltins\nbytearray\nI%d\n\x85R." % 2**36,
    "claimed bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b".",
    "claimed bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**36) + b".",
    "arrays of one array": pickle.dumps([np.zeros(10**6, np.uint8)] * 100_000),
    "one long text": pickle.dumps(np.array(["x" * 10**6] + ["y"] * 10**5, object)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_pickle_bombs_do_not_fill_the_memory(name, at_once):
    content = BOMBS[name]
    with contextlib.suppress(BadInput):
        made = pickles.loads(content, "a file", "get another")
        assert name == "memo" and made is None


def test_values_shared_by_several_keys_are_read(at_once):
    shared = (3, (4, 5))
    value = {("a", 1): [shared, shared], 2: {frozenset([(1, 2)])}}
    assert pickles.loads(pickle.dumps(value), "a file", "") == value


# The module itself


def test_values_are_quoted_briefly(at_once):
    for value in (nested(25), {1: nested(25)}, 10**5000, "x" * 10**7, b"y" * 10**7):
        assert 1 < len(quoted(value)) <= 80


def test_errors_of_the_machine_are_not_reported_as_bad_input(tmp_path):
    import errno

    for error in (OSError(errno.EIO, "input/output error"), MemoryError()):
        with pytest.raises(type(error)), safe.reading(tmp_path / "none", "get another"):
            raise error
    (tmp_path / "small").write_bytes(b"liar")
    with pytest.raises(BadInput), safe.reading(tmp_path / "small", "get another"):
        raise MemoryError


def test_the_memory_limit_of_a_container_is_respected(tmp_path, monkeypatch):
    free = safe.free_memory()
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(safe, "CGROUPS", (str(limit), str(tmp_path / "none")))
    for text, expected in (("max\n", free), (f"{2**62}\n", free), (f"{2**20}\n", 0)):
        limit.write_text(text)
        assert safe.free_memory() <= max(expected * 1.2, 2**20)
        assert not expected or safe.free_memory() >= expected / 2
