"""Tests that archives are unpacked and that harmful or damaged ones are rejected."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest
from inputs import complaint
from published import tarred, zipped

from fedjax_lab.data.fetching import unpack


def unpacked(tmp_path, content, name="a.zip"):
    """Unpacks an archive to tmp_path/to/folder; returns its members and the reported sizes."""
    (tmp_path / name).write_bytes(content)
    written = []
    folder = tmp_path / "to" / "folder"
    return unpack.unpack(tmp_path / name, folder, "fetch it again", written.append), written


def tree(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_files_and_folders_are_unpacked(tmp_path, kind):
    files = {"a/b.txt": b"one", "c.txt": b"", "a/d/e.txt": bytes(range(250)) * 12}
    archive = zipped({**files, "a/f/": b""}) if kind == "zip" else tarred(files)
    for _ in range(2):  # in the second call all files exist
        members, written = unpacked(tmp_path, archive, f"a.{kind}")
    where = tmp_path / "to/folder"
    assert tree(where) == set(files) and written == [3, 0, 3000]
    for member in members:
        path = where / member.path
        assert path.read_bytes() == files[str(member.path)]
        assert member.size == path.stat().st_size and member.crc == unpack.crc(path)


@pytest.mark.parametrize("there", [b"a longer text", b"on", b"two", b""])
def test_correct_files_of_an_earlier_call_are_kept(tmp_path, there):
    archive = zipped({"a/b.txt": b"one", "a/c.txt": b"right"})
    unpacked(tmp_path, archive)
    wrong, right = (tmp_path / "to/folder/a" / name for name in ("b.txt", "c.txt"))
    wrong.write_bytes(there)
    right.chmod(0o444)
    before = right.stat().st_mtime_ns
    members, written = unpacked(tmp_path, archive)
    assert wrong.read_bytes() == b"one" and right.stat().st_mtime_ns == before
    assert len(members) == 2 and written == [3, 5]


UNSAFE = ["../out", "a/../../out", "/out", "C:/out", "a\\..\\out", "a\nb", "..", "\x1b[2J"]


def test_unsafe_paths_links_and_devices_are_rejected(tmp_path):
    for path in UNSAFE:
        message = complaint(unpacked, tmp_path, zipped({"good": b"1", path: b"2"}))
        assert "is not a path within the folder" in message and "fetch it again" in message
    for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFBLK):
        out, info = io.BytesIO(), zipfile.ZipInfo("link")
        info.external_attr = (kind | 0o777) << 16
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(info, "/etc/passwd")
        assert "is a link or a device" in complaint(unpacked, tmp_path, out.getvalue())
    assert tree(tmp_path) == {"a.zip"}


def test_zip_bombs_are_rejected(tmp_path, monkeypatch):
    bomb = zipped({"zeros": bytes(10_000_000)})
    assert "it would unpack to 10000000 bytes in 1 files" in complaint(unpacked, tmp_path, bomb)
    monkeypatch.setattr(unpack, "MOST", 100)
    many = zipped({f"{n}": b"" for n in range(101)})
    assert "in 101 files" in complaint(unpacked, tmp_path, many)
    assert not (tmp_path / "to").exists()


def locked(content):
    """Sets the flag of an encrypted member in both headers."""
    content = bytearray(content)
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    return content


FILES = {"a": bytes(range(256)) * 9, "b": bytes(99)}
DAMAGED = [  # (name of the archive, its content)
    ("a.zip", zipped(FILES)[:-30]),
    ("a.zip", zipped(FILES)[:60] + b"\xff" + zipped(FILES)[61:]),
    ("a.zip", locked(zipped(FILES))),
    ("a.zip", zipped({"a": b"1", "a/b": b"2"})),  # a file and a folder with the same name
    ("a.tar.gz", tarred(FILES)[:200]),
    ("a.tar.gz", b"<html>"),
]


@pytest.mark.parametrize("name, content", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_archives_are_rejected(tmp_path, name, content):
    message = complaint(unpacked, tmp_path, bytes(content), name)
    assert "cannot be read" in message and "fetch it again" in message


BAD_MEMBERS = {
    "up": ({"name": "../out"}, "is not a path within the folder"),
    "link": ({"type": tarfile.SYMTYPE, "linkname": "/etc"}, "is a link or a device"),
    "hard link": ({"type": tarfile.LNKTYPE, "linkname": "good"}, "is a link or a device"),
    "pipe": ({"type": tarfile.FIFOTYPE}, "is a link or a device"),
    "bomb": ({"size": 2**40}, "it would unpack to 1099511627777 bytes in 2 files"),
}


@pytest.mark.parametrize("name", BAD_MEMBERS)
def test_tar_files_with_harmful_members_are_rejected(tmp_path, name):
    """The harmless member before the harmful one is not written either."""
    fields, expected = BAD_MEMBERS[name]
    member = tarfile.TarInfo("bad")
    for key, value in fields.items():
        setattr(member, key, value)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        good = tarfile.TarInfo("good")
        good.size = 1
        archive.addfile(good, io.BytesIO(b"1"))
        out.write(member.tobuf())  # `addfile` also wants the bytes that a file declares
    message = complaint(unpacked, tmp_path, gzip.compress(out.getvalue()), "a.tar.gz")
    assert expected in message and "fetch it again" in message
    assert tree(tmp_path) == {"a.tar.gz"}
