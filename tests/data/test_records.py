"""Tests the source of examples in ArrayRecord files."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
import toys
from commands import call, comparable
from inputs import complaint
from record_files import make, with_users, write

from fedjax_lab import experiment
from fedjax_lab.data import __main__ as prepare
from fedjax_lab.data import records
from fedjax_lab.data.cache import checksum


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


def test_natural_users_are_written_and_read(tmp_path):
    data, folder = with_users(make()), tmp_path / "toy"
    write(data, folder)
    made = records.records(path=str(folder))
    assert made.users == data.users and made.client.dtype == np.int32
    np.testing.assert_array_equal(made.client, data.client)
    forge(users=["ada", "bob"])(folder / "index.json")
    message = complaint(records.records, path=str(folder))
    assert "client in labels.npz has a number without a name" in message
    forge(users=[])(folder / "index.json")
    assert records.records(path=str(folder)).client is None


def test_the_origins_of_examples_are_written_and_read(tmp_path):
    data, folder = make(), tmp_path / "toy"
    write(data._replace(origin=np.arange(len(data.y)) // 2), folder)
    made = records.records(path=str(folder))
    assert made.origin.dtype == np.int32
    assert made.origin.tolist() == [row // 2 for row in range(len(data.y))]


def test_a_folder_without_users_has_the_format_of_earlier_versions(written):
    assert not {"users", "origin"} & json.loads((written / "index.json").read_text()).keys()
    with np.load(written / "labels.npz") as labels:
        assert sorted(labels.files) == ["domain", "test", "y"]
    assert records.records(path=str(written)).users == ()


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


def cut(file):
    file.write_bytes(file.read_bytes()[:-9])


def forge(**fields):
    """Returns a function that changes fields of the index and updates its checksum."""

    def change(file):
        sums = file.with_name("SHA256SUMS")
        before = records.sum_of(file)
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
        sums.write_text(sums.read_text().replace(before, records.sum_of(file)))

    return change


BROKEN = {
    "cut shard": ("shard-00001.array_record", cut, "shard-00001"),
    "empty shard": ("shard-00001.array_record", lambda f: f.write_bytes(b""), "it holds 0 of 5"),
    "no shard": ("shard-00001.array_record", os.remove, "shard-00001"),
    "pipe": ("shard-00001.array_record", lambda f: (f.unlink(), os.mkfifo(f)), "a pipe"),
    "too few": (
        "shard-00000.array_record",
        lambda f: shutil.copy(f.with_name("shard-00004.array_record"), f),
        "it holds 3 of 5 examples",
    ),
    "not whole": ("SHA256SUMS", os.remove, "has no SHA256SUMS, so it is incomplete"),
    "no index": ("index.json", os.remove, "index.json"),
    "cut labels": ("labels.npz", cut, "labels.npz does not match its checksum in SHA256SUMS"),
    "changed index": ("index.json", lambda f: flip(f, 50), "index.json does not match its"),
    "later format": ("index.json", forge(format=2), "format 2"),
    "other type": ("index.json", forge(dtype="object"), "object"),
    "other shape": ("index.json", forge(shape=[24, 8, 8, 3]), "do not fit together"),
    "text": ("index.json", forge(shards="abc"), "is damaged"),
    "more": ("index.json", forge(more=1), "more"),
    "few classes": ("index.json", forge(classes=["a"]), "y in labels.npz has a number"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_damaged_folder_is_rejected_when_it_is_opened(case, toy):
    name, damage, expected = BROKEN[case]
    damage(toy / name)
    message = complaint(records.records, path=str(toy))
    assert message.startswith(str(toy)) and "python -m fedjax_lab.data prepare" in message
    assert expected in message or case == "text"


def test_a_path_without_records_is_rejected(tmp_path):
    assert "data.path is empty" in complaint(records.records, path="")
    assert "nothing is not a folder" in complaint(records.records, path=str(tmp_path / "nothing"))
    assert "SHA256SUMS" in complaint(records.records, path=str(tmp_path))


def test_a_missing_array_record_is_named_with_its_extra(toy, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    message = complaint(records.records, path=str(toy))
    assert "array_record" in message and "pip install 'fedjax_lab[stream]'" in message


@pytest.mark.slow
def test_a_run_on_records_has_the_same_metrics(tmp_path):
    """The examples are in memory, or streamed for each cohort with the clients' state on disk."""
    toys.write_examples(tmp_path / "data.npz")
    run = {"rounds": 4, "eval_every": 2, "cohort": 2}
    config = f"--config={toys.write_config(tmp_path, run=run)}:scaffold"
    assert prepare.main(["data", "prepare", config, f"--out={tmp_path / 'own'}"]) == 0
    on_records = f"--config.data.name=records --config.data.path={tmp_path / 'own'}".split()
    on_disk = "--config.engine.state=disk --config.engine.data=stream".split()
    for name, flags in {"a": [], "b": on_records, "c": on_records + on_disk}.items():
        assert call(config, f"--workdir={tmp_path / name}", *flags) == 0
        assert comparable(tmp_path / name) == comparable(tmp_path / "a")
