"""Tests the source of examples in ArrayRecord files."""

import json
import os
import shutil

import broken
import numpy as np
import pytest
from inputs import complaint
from record_files import make, with_users, write

from fedjax_lab.data.cache import checksum
from fedjax_lab.data.sources import records
from fedjax_lab.experiment import experiment


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records") / "toy"
    write(make(), folder)
    return folder


@pytest.fixture
def toy(written, tmp_path):
    return shutil.copytree(written, tmp_path / "toy")


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16, np.int32, np.float32])
def test_written_examples_are_read_back_unchanged(kind, tmp_path):
    data = make(kind=kind, shape=(4, 4, 1) if kind == np.uint8 else (9,))
    write(data, tmp_path / "toy")
    made = experiment.load_data({"name": "records", "path": str(tmp_path / "toy")})
    assert made.x.dtype == data.x.dtype and made.classes == data.classes
    assert made.domains == data.domains
    for a, b in zip(made[:4], data[:4], strict=True):
        assert np.asarray(a).dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    rows = np.random.default_rng(1).integers(-23, 23, 40)
    np.testing.assert_array_equal(made.x[rows], data.x[rows])
    np.testing.assert_array_equal(made.x[[]], data.x[:0])


def test_users_and_origins_are_written_and_read_and_earlier_versions_lack_them(written, tmp_path):
    data, folder = with_users(make()), tmp_path / "toy"
    write(data._replace(origin=np.arange(len(data.y)) // 2), folder)
    made = records.records(path=str(folder))
    assert made.users == data.users and made.client.dtype == made.origin.dtype == np.int32
    np.testing.assert_array_equal(made.client, data.client)
    assert made.origin.tolist() == [row // 2 for row in range(len(data.y))]
    forge(folder / "index.json", users=["ada", "bob"])
    message = complaint(records.records, path=str(folder))
    assert "client in labels.npz has a number without a name" in message
    assert not {"users", "origin"} & json.loads((written / "index.json").read_text()).keys()
    with np.load(written / "labels.npz") as labels:
        assert sorted(labels.files) == ["domain", "test", "y"]
    earlier = records.records(path=str(written))
    assert earlier.users == () and earlier.client is None


def test_only_needed_shards_are_read(toy):
    data = records.records(path=str(toy))
    assert len(list(toy.glob("shard-*"))) == 5
    for number in (0, 1, 3, 4):
        os.truncate(toy / records.shard_name(number), 0)
    np.testing.assert_array_equal(data.x[[14, 10]], make().x[[14, 10]])


def test_the_fingerprint_comes_from_the_checksums_of_the_shards(toy, tmp_path, monkeypatch):
    other = make()
    other.x[17] += 1
    write(other, tmp_path / "other")
    monkeypatch.setattr(records, "reader", lambda folder, index: None)
    first, changed = (
        checksum({"x": records.records(path=str(f)).x}) for f in (toy, toy.parent / "other")
    )
    assert first != changed
    assert first == checksum(
        {"x": records.records(path=str(shutil.move(toy, tmp_path / "moved"))).x}
    )


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 16
    file.write_bytes(content)


def test_a_damaged_example_is_detected_when_it_is_read(toy):
    """The damage can be anywhere in the example, or the shard can have smaller examples."""
    file = toy / records.shard_name(2)
    good, example = file.read_bytes(), make().x[12].tobytes()
    at = good.index(example)
    for place in (at, at + len(example) // 2, at + len(example) - 1):
        flip(file, place)
        data = records.records(path=str(toy))
        np.testing.assert_array_equal(data.x[:10], make().x[:10])
        message = complaint(data.x.__getitem__, slice(10, 15))
        assert message.startswith(f"{file} is damaged (")
        assert "python -m fedjax_lab.data prepare" in message
        file.write_bytes(good)
    write(make(shape=(8, 8, 1)), toy.parent / "gray")
    shutil.copy(toy.parent / "gray" / file.name, file)
    assert "is damaged" in complaint(records.records(path=str(toy)).x.__getitem__, [12])


def forge(file, **fields):
    """Changes fields of the index and updates its checksum."""
    sums = file.with_name("SHA256SUMS")
    before = records.sum_of(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    sums.write_text(sums.read_text().replace(before, records.sum_of(file)))


def cut(content):
    return content[:-9]


SHARD = "shard-00001.array_record"
DAMAGED = [  # (file, content or forged fields, words of the error)
    (SHARD, cut, "shard-00001"),
    ("SHA256SUMS", None, "has no SHA256SUMS, so it is incomplete"),
    ("labels.npz", cut, "labels.npz does not match its checksum in SHA256SUMS"),
    ("index.json", lambda c: c.replace(b"5", b"7", 1), "index.json does not match its"),
    ("index.json", {"format": 2}, "format 2"),
    ("index.json", {"shape": [24, 8, 8, 3]}, "do not fit together"),
    ("index.json", {"shards": "abc"}, ""),
    ("index.json", {"classes": ["a"]}, "y in labels.npz has a number"),
]


@pytest.mark.parametrize("name, content, expected", DAMAGED)
def test_a_damaged_folder_is_rejected_when_it_is_opened(name, content, expected, toy):
    if isinstance(content, dict):
        forge(toy / name, **content)
    else:
        broken.replace(toy / name, content)
    remedy = "python -m fedjax_lab.data prepare"
    broken.check(records.records, toy, expected, remedy, path=str(toy))


def test_a_path_without_records_or_with_other_shards_is_rejected(tmp_path, toy):
    assert "data.path is empty" in complaint(records.records, path="")
    assert "nothing is not a folder" in complaint(records.records, path=str(tmp_path / "nothing"))
    assert "SHA256SUMS" in complaint(records.records, path=str(tmp_path))
    shutil.copy(toy / "shard-00004.array_record", toy / "shard-00000.array_record")
    assert "it holds 3 of 5 examples" in complaint(records.records, path=str(toy))
    (toy / SHARD).unlink()
    os.mkfifo(toy / SHARD)
    shutil.copy(toy / "shard-00002.array_record", toy / "shard-00000.array_record")
    assert "a pipe" in complaint(records.records, path=str(toy))
