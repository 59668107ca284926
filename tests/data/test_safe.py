"""Tests that damaged, irregular or wrongly sized files of any format raise nothing but BadInput."""

import contextlib
import gzip
import importlib.util
import io
import json
import os
import signal
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import chat_tokenizers
import leaf_files
import numpy as np
import optional
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import complaint
from PIL import Image
from published import contents, write_all, write_published
from scipy.io import savemat

from fedjax_lab.data import safe
from fedjax_lab.data.formats import images, tokenizer_files
from fedjax_lab.data.sources import cifar, idx, instruction_set, svhn
from fedjax_lab.data.sources.arrays import arrays
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.registry import look_up
from fedjax_lab.models.embeddings.precomputed import precomputed


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


def write_images(folder):
    picture = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3))
    for name in ("a/cat/0.png", "a/dog/0.jpg", "b/cat/0.png", "b/dog/0.png"):
        (folder / name).parent.mkdir(parents=True)
        picture.save(folder / name)
    return folder / "a/cat/0.png"


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
        return look_up("data", "image_table")(path=file, client="center", split="fold", size=8)


def write_texts(folder):
    file = folder / "all_data" / "all.json"
    file.parent.mkdir()
    texts = {"x": ["a" * 80] * 400, "y": ["b"] * 400}
    file.write_text(json.dumps({"users": ["u"], "user_data": {"u": texts}}))
    return file


def write_saved(folder):
    datasets = optional.module("datasets")
    rows = {"text": ["one", "two", "three"] * 3, "label": [0, 1, 2] * 3}
    datasets.Dataset.from_dict(rows).save_to_disk(folder)
    return folder / "data-00000-of-00001.arrow"


def text_table(ending):
    columns = {"text": ["some words", "more"], "label": ["a", "b"]}
    rows = list(zip(*columns.values(), strict=True))

    def write(folder):
        file = folder / f"train.{ending}"
        if ending == "parquet":
            table = optional.module("pyarrow").Table.from_pydict(columns)
            optional.module("pyarrow.parquet").write_table(table, file)
        elif ending == "jsonl":
            file.write_text("\n".join(json.dumps({"text": t, "label": y}) for t, y in rows))
        else:
            file.write_text("\n".join(["text,label", *map(",".join, rows)]))
        return file

    return write, lambda folder: look_up("data", "text_files")(path=str(folder / f"train.{ending}"))


def write_gguf(folder):
    chat_tokenizers.write_json(folder)
    return chat_tokenizers.write_gguf(folder / "a.gguf", folder, "gpt-2")


def read_tokenizer(folder):
    return tokenizer_files.read(str(folder / "tokenizer.json"), ())


def reader(name, **settings):
    """Reads the first example of a data set in a folder, without the cache."""

    def read(folder):
        source = look_up("data", name)
        with uncached():
            return getattr(source, "listing", source)(folder=str(folder), **settings).x[:1]

    return read


def published(name, file, source="", **settings):
    """How to write a published data set, of which the file is to be damaged, and how to read it."""

    def write(folder):
        return write_published(name, folder) / file

    return write, reader(source or name, **settings)


def write_cifar_archive(folder):
    write_all(folder, contents("cifar10"))
    return folder / cifar.CIFAR10.archive


BATCH, TESTS = f"{cifar.CIFAR10.folder}/data_batch_1", "emnist-letters-test-labels-idx1-ubyte.gz"
READERS = {
    "arrays": (write_arrays, read_arrays),
    "embeddings": (write_embeddings, read_embeddings),
    "idx.gz": published("mnist", f"{idx.FILES[0]}.gz", "idx"),
    "cifar": published("cifar10", BATCH),
    "cifar.tar.gz": (write_cifar_archive, reader("cifar10")),
    "svhn": published("svhn", svhn.FILES[0]),
    "images": (write_images, reader("image_folders", size=8)),
    "image table": (write_table, read_table),
    "shakespeare": (write_texts, reader("shakespeare", fraction=1.0)),
    "leaf": (leaf_files.write_reddit, reader("leaf")),
    "tff_hdf5": (leaf_files.write_fed_emnist, reader("tff_hdf5")),
    **{ending: text_table(ending) for ending in ("csv", "jsonl")},
    "emnist": published("emnist", f"gzip/{TESTS}", split="letters"),
    "medmnist": published("bloodmnist", "bloodmnist.npz", "medmnist", dataset="bloodmnist"),
    "gtsrb": published("gtsrb", "GT-final_test.csv", roi=True),
}
if importlib.util.find_spec("jinja2"):
    READERS["instructions"] = published(
        "dolly", instruction_set.SETS["dolly"].train, "instruction_set", dataset="dolly"
    )
if importlib.util.find_spec("gguf"):
    READERS["gguf"] = (write_gguf, lambda folder: tokenizer_files.read(str(folder / "a.gguf"), ()))
if importlib.util.find_spec("tokenizers"):
    READERS["tokenizer.json"] = (chat_tokenizers.write_json, read_tokenizer)
if importlib.util.find_spec("pyarrow"):
    READERS["parquet"] = text_table("parquet")
if importlib.util.find_spec("datasets"):
    huggingface = look_up("data", "huggingface")
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
def test_a_sample_is_read_and_the_error_names_its_file_if_that_is_empty_or_a_page(name, samples):
    folder, file, content = samples[name]
    READERS[name][1](folder)
    for damage in (b"", b"<html>"):
        file.write_bytes(damage)
        message = complaint(READERS[name][1], folder)
        assert name == "hub" or file.name.removesuffix(".gz") in message
    file.write_bytes(content)


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


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", READERS)
def test_files_that_are_not_regular_are_rejected(name, kind, tmp_path, at_once):
    (tmp_path / "set").mkdir()
    (tmp_path / "arrays").mkdir()
    file = READERS[name][0](tmp_path / "set")
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    complaint(READERS[name][1], tmp_path / "set")


def test_lists_of_files_that_are_pipes_are_rejected(tmp_path, at_once):
    for name, source in (("wnids.txt", "tiny_imagenet"), ("clipart_train.txt", "domainnet_full")):
        os.mkfifo(tmp_path / name)
        complaint(look_up("data", source), folder=str(tmp_path))


def npy_header(shape, descr="<f8"):
    file, header = io.BytesIO(), {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def write_members(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def test_array_headers_that_declare_missing_data_are_rejected(tmp_path, at_once):
    file = tmp_path / "data.npz"
    for shape, descr in (((2**30, 8), "<f8"), ((2**40, 8), "<U0"), ((-1, 8), "<f8")):
        write_members(file, x=npy_header(shape, descr), y=npy_header((3,)))
        assert file.stat().st_size < 1000
        message = complaint(arrays, path=str(file))
        assert message.startswith(f"{file}: x is damaged (x declares")


def test_compressed_zeros_are_read_only_if_they_fit_in_memory(tmp_path, monkeypatch):
    file = tmp_path / "data.npz"
    np.savez_compressed(file, x=np.zeros((10, 2**19), np.uint8), y=np.arange(10) % 2)
    assert file.stat().st_size < 2**14
    assert arrays(path=str(file)).x.shape == (10, 2**19)
    monkeypatch.setattr(safe, "SMALL", 0)
    assert "bytes, which must be all the same" in complaint(arrays, path=str(file))
    monkeypatch.setattr(safe, "free_memory", lambda: 9 * 2**20)
    assert f"{file}: x does not fit in memory: 0.0 GiB" in complaint(arrays, path=str(file))


def test_idx_files_longer_or_shorter_than_their_header_are_rejected(tmp_path, at_once):
    file = write_published("mnist", tmp_path) / f"{idx.FILES[0]}.gz"
    content = gzip.decompress(file.read_bytes())
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
    file = write_published("svhn", tmp_path) / svhn.FILES[0]
    zeros = np.zeros((32, 32, 3, 2), np.uint8)
    savemat(file, {"X": zeros, "y": np.ones((2, 1))}, do_compression=True)
    content = file.read_bytes()
    inner = zlib.decompress(content[136:])
    forged = zlib.compress(inner.replace(struct.pack("<4i", 32, 32, 3, 2), b"\xff\xff\xff\x0f" * 4))
    file.write_bytes(content[:132] + struct.pack("<I", len(forged)) + forged)
    message = complaint(svhn.svhn, folder=str(tmp_path))
    assert "is damaged or not a MATLAB file (it declares" in message


def chunk(kind: bytes, content: bytes) -> bytes:
    ends = struct.pack(">I", len(content)), struct.pack(">I", zlib.crc32(kind + content))
    return ends[0] + kind + content + ends[1]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side, reason", [(12_000, "it declares"), (30_000, "decompression bomb")])
def test_images_that_declare_too_many_pixels_are_rejected(side, reason, tmp_path, at_once):
    file = write_images(tmp_path)
    head = struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"x\x9c") * 9)
    message = complaint(look_up("data", "image_folders"), folder=str(tmp_path), size=8)
    assert message.startswith(f"{file} is damaged or not an image (") and reason in message


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
