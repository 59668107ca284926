"""Written files: a full disk leaves the old file, and every writer of the package replaces."""

import errno
import os
import re
from pathlib import Path

import naive
import numpy as np
import optional
import pytest
import toys

from fedjax_lab.analysis import partition_tables
from fedjax_lab.commands import report
from fedjax_lab.data import writing
from fedjax_lab.models import pretrained
from fedjax_lab.running import plots
from fedjax_lab.running.storage import metric_rows

PACKAGE = Path(writing.__file__).parents[1]
DIRECT = {  # files whose own protocol replaces a folder or a file when it is whole
    "commands/command.py": "a temporary file without a name",
    "data/cache.py": "renamed when whole",
    "data/fetching/download.py": "a part, renamed when whole",
    "data/fetching/fetch.py": "a new folder, renamed when whole",
    "data/record_writer.py": "inside `writing.replacing`",
    "data/fetching/unpack.py": "the new folder of data/fetching/fetch.py",
    "engine/host/host_state.py": "a temporary file without a name",
    "running/storage/host_files.py": "a new folder, renamed when whole",
    "running/loggers/__init__.py": "an example of a user's own logger",
    "sweeping/sweep_workers.py": "a temporary file without a name",
    "data/writing.py": "the helper itself",
}
WRITES = r"""\.write_(text|bytes)\(|open\(.*["'](w|a|x|r\+|wb|ab|xb|rb\+)["']|TemporaryFile\("""


def no_room(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def full(monkeypatch):
    """A full disk: what is written does not arrive there."""

    monkeypatch.setattr(os, "fsync", no_room)


def test_only_the_helper_writes_files():
    """A new writer must call `writing`, or be listed with the reason why it need not."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for call in re.finditer(WRITES, path.read_text())
        if not path.read_text()[: call.start()].endswith(("metric_rows", "writing"))
    }
    assert found == DIRECT.keys()


def test_files_links_devices_and_long_names_are_written(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o640)
    link.symlink_to("file")
    writing.replace(link, b"new")
    assert link.is_symlink() and file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]
    name = "é" * 127  # 254 bytes
    writing.replace(tmp_path / name, b"new")
    assert (tmp_path / name).read_bytes() == b"new"
    writing.replace(Path(os.devnull), b"new")
    assert not Path(os.devnull).is_file()


def test_an_append_is_whole_or_not_at_all(tmp_path, full):
    file = tmp_path / "rows"
    file.write_bytes(b"old\n")
    with pytest.raises(OSError, match="No space") as caught:
        writing.append(file, b"new\n")
    assert file.read_bytes() == b"old\n" and caught.value.filename == str(file)


def held():
    counts = np.ones((2, 2), int)
    return partition_tables.Held(counts, counts[:, :0], 0, ["a", "b"], [], 0, 0)


def write_weights(path):
    optional.module("safetensors")
    pretrained.write(path, toys.TASK.init(naive.KEYS.init))


WRITERS = {
    "report": lambda path: report._write(path, "new"),
    "text": lambda path: metric_rows.write_text(path, "new"),
    "picture": lambda path: plots.save(plots.draw_key(0), path.with_suffix(".png")),
    "partition": lambda path: partition_tables.write(held(), path),
    "weights": lambda path: write_weights(path.with_suffix(".safetensors")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file(name, tmp_path, full):
    for ending in ("", ".png", ".safetensors"):
        (tmp_path / f"file{ending}").write_bytes(b"old")
    with pytest.raises(OSError, match="No space left on device") as caught:
        WRITERS[name](tmp_path / "file")
    assert Path(caught.value.filename).stem == "file"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: b"old" for name in ("file", "file.png", "file.safetensors")
    }
