"""Tests `python -m fedjax_lab.data prepare`, which writes image files as records and resumes."""

import hashlib
import itertools
import os
from pathlib import Path

import broken
import kills
import numpy as np
import pytest
from processes_beside import another_process
from record_files import make

from fedjax_lab.commands import data as command
from fedjax_lab.data import lazy, record_writer, writing
from fedjax_lab.data.formats import images
from fedjax_lab.data.sources import image_folders, records
from fedjax_lab.errors import BadInput
from fedjax_lab.running.storage import lock

CONFIG = Path(__file__).parents[2] / "configs/hfedf_pacs.py"
SIDE = 12
SHARD_EXAMPLES, PIECE_EXAMPLES = 7, 3


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(record_writer, "SHARD", SHARD_EXAMPLES * SIDE * SIDE * 3)
    monkeypatch.setattr(lazy, "PIECE", PIECE_EXAMPLES * SIDE * SIDE * 3)


@pytest.fixture
def prepare(pacs, small_shards):
    """Returns a function that runs the command on 47 images of PACS, with further arguments."""

    def call(out, *more):
        of_data = f"--config.data.folder={pacs}", f"--config.data.size={SIDE}"
        return command.main(
            ["data", "prepare", f"--config={CONFIG}", f"--out={out}", *of_data, *more]
        )

    return call


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_records_equal_the_decoded_examples(
    prepare, pacs, tmp_path, empty_cache, capsys, monkeypatch
):
    """At most one piece is decoded at a time."""
    sizes, decode = [], images.decode
    with monkeypatch.context() as patch:
        patch.setattr(images, "decode", lambda *a: sizes.append(len(a[0])) or decode(*a))
        assert prepare(tmp_path / "out") == 0
    assert max(sizes) == PIECE_EXAMPLES and sum(sizes) == 47
    assert not empty_cache.exists()  # no decoded copy of all images is cached
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"47 examples [{SIDE}, {SIDE}, 3] uint8 to {tmp_path / 'out'}"
    assert [line.split()[0] for line in lines[1:-1]] == [f"{n}/47" for n in (*range(7, 47, 7), 47)]
    assert f"--config.data.name=records --config.data.path={tmp_path / 'out'}" in lines[-1]
    data = records.records(path=str(tmp_path / "out"))
    for a, b in zip(data[:6], image_folders.pacs(folder=str(pacs), size=SIDE)[:6], strict=True):
        np.testing.assert_array_equal(a, b)
    for line in (tmp_path / "out" / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest


def killed_at(step, patch):
    """Simulates a kill before the `step`-th operation: decoding a piece or renaming a file."""

    def delete_nothing():
        patch.setattr(writing.Path, "unlink", lambda *a, **b: None)

    before = kills.at(step, delete_nothing)
    patch.setattr(images, "decode", before(images.decode))
    patch.setattr(writing.os, "replace", before(os.replace))


@pytest.mark.slow
def test_a_command_interrupted_at_any_step_resumes(prepare, tmp_path):
    assert prepare(tmp_path / "whole") == 0
    whole, decoded = content(tmp_path / "whole"), []
    for step in itertools.count(1):
        out = tmp_path / f"out{step}"
        with pytest.MonkeyPatch.context() as patch:
            killed_at(step, patch)
            try:
                prepare(out)
                break
            except kills.Killed:
                pass
        present = set(content(out)) if out.exists() else set()
        with pytest.MonkeyPatch.context() as patch:
            decode, files = images.decode, []
            patch.setattr(images, "decode", lambda *a: files.extend(a[0]) or decode(*a))  # noqa: B023
            assert prepare(out) == 0
        assert content(out) == whole
        finished = len([name for name in present if name.endswith(".array_record")])
        assert len(files) == max(0, 47 - SHARD_EXAMPLES * finished)
        decoded.append(len(files))
    assert step == 2 + 7 + 7 * 3 - 1 + 1 + 1 and decoded[0] == 47 and decoded[-1] == 0


def test_the_same_command_repairs_a_damaged_folder(prepare, tmp_path):
    """The shard is cut, has another byte, or is missing, and the folder is finished or not."""
    out = tmp_path / "out"
    assert prepare(out) == 0
    whole, file = content(out), out / records.shard_name(3)
    place = whole[file.name].index(records.records(path=str(out)).x[3 * SHARD_EXAMPLES].tobytes())
    changed = lambda c: c[:place] + bytes([c[place] ^ 1]) + c[place + 1 :]  # noqa: E731
    for damage, finished in itertools.product((lambda c: c[:-1], changed, None), (True, False)):
        broken.replace(file, damage)
        if not finished:
            (out / "SHA256SUMS").unlink()
        assert prepare(out) == 0 and content(out) == whole


def test_a_folder_with_other_content_is_not_written_to(prepare, tmp_path, capsys):
    out = tmp_path / "out"
    assert prepare(out) == 0
    whole = content(out)
    capsys.readouterr()
    assert prepare(out, "--config.data.size=8") == 2
    assert f"{out} holds another data set: content in index.json differs" in capsys.readouterr().err
    assert content(out) == whole
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    assert prepare(tmp_path / "notes") == 2
    assert "is not empty and has no index.json" in capsys.readouterr().err
    assert content(tmp_path / "notes") == {"a.txt": b""}


def test_a_second_command_on_a_folder_in_use_is_rejected(prepare, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    with another_process(tmp_path / "out" / lock.LOCK):
        assert prepare(tmp_path / "out") == 2
    assert "is in use by another command" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full device")
def test_a_full_disk_is_reported_and_the_command_resumes(prepare, tmp_path, monkeypatch, capsys):
    """Finished shards are kept, and the same command continues with the others."""
    assert prepare(tmp_path / "whole") == 0
    module, out = records.array_record("array_record_module"), tmp_path / "out"
    writer, opened = module.ArrayRecordWriter, []

    def full(path, options):
        opened.append(path)
        return writer("/dev/full" if len(opened) > 2 else path, options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "ArrayRecordWriter", full)
        capsys.readouterr()
        assert prepare(out) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: No space left on device") and error.count("\n") == 1
    assert "the same command continues" in error
    assert sorted(content(out)) == ["index.json", "labels.npz", *map(records.shard_name, (0, 1))]
    assert prepare(out) == 0 and content(out) == content(tmp_path / "whole")


def test_unsupported_types_are_rejected(tmp_path):
    data = make()._replace(x=np.zeros((23, 2)))
    with pytest.raises(BadInput, match="the examples are float64"):
        list(record_writer.write(data, tmp_path, "toy"))


def test_large_examples_do_not_exceed_the_limit_of_shards(monkeypatch):
    """All shards are open at the same time while examples are read."""
    monkeypatch.setattr(record_writer, "SHARD", 1)
    monkeypatch.setattr(record_writer, "MOST_SHARDS", 10)
    index = record_writer.make_index(make(95), "toy")
    assert index.shards == (10,) * 9 + (5,)
