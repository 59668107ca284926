"""Downloads of one file from a local server, with all kinds of failures."""

import email.utils
import hashlib
import resource
import time
from types import SimpleNamespace

import numpy as np
import pytest
from loopback import Server

from fedjax_lab.data.fetching import download as module
from fedjax_lab.data.fetching.catalog import File
from fedjax_lab.data.fetching.download import Unavailable, download

SIZE = 100_000
CONTENT = np.random.default_rng(0).bytes(SIZE)
SUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def server():
    with Server().running() as running:
        running.files["/a"] = CONTENT
        yield running


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Records the seconds of each wait, and skips the waits."""
    seconds = []
    monkeypatch.setattr(module, "FIRST_WAIT", 1.0)
    monkeypatch.setattr(module.random, "uniform", lambda low, high: 1.0)
    clock = SimpleNamespace(sleep=seconds.append, time=time.time)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "TIMEOUT", 10)  # also on a loaded machine
    return seconds


@pytest.fixture
def get(server, tmp_path):
    """Downloads /a or the given paths; returns the reported lines."""

    def call(*paths, checksum=SUM, size=SIZE):
        addresses = tuple(f"{server.address}{path}" for path in paths or ("/a",))
        lines, counts = [], []
        file = File("folder/file", size, checksum, addresses)
        try:
            download(file, tmp_path / "file", counts.append, lines.append)
        finally:
            assert all(0 <= count <= (size or SIZE) for count in counts)
        assert (tmp_path / "file").read_bytes() == CONTENT and counts[-1] == SIZE
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        return lines

    return call


def fails(get, tmp_path, *paths, **settings):
    with pytest.raises(Unavailable) as caught:
        get(*paths, **settings)
    assert not (tmp_path / "file").exists()
    return str(caught.value)


def test_a_file_is_downloaded_with_one_request(get, server, waits):
    assert get() == [] and waits == []
    assert server.requests == [("/a", 0)]
    get(checksum=f"md5:{hashlib.md5(CONTENT).hexdigest()}")


RESUMED = {  # {name: (bytes of an earlier call, whether the server accepts ranges, faults, starts)}
    "interrupted": (0, True, [("cut", 40_000), ("cut", 30_000)], [0, 40_000, 70_000]),
    "often": (0, True, [("cut", 3_000)] * 30, [3_000 * n for n in range(31)]),
    "without ranges": (0, False, [("cut", 40_000), ("cut", 10_000)], [0, 40_000, 10_000]),
    "of an earlier call": (99_999, True, [], [99_999]),
}


@pytest.mark.parametrize("name", RESUMED)
def test_an_interrupted_download_is_continued(get, server, tmp_path, waits, name):
    """It is continued as long as bytes arrive, and restarted if the server ignores ranges."""
    left, server.ranges, faults, starts = RESUMED[name]
    (tmp_path / "file.part").write_bytes(CONTENT[:left])
    server.faults["/a"] = list(faults)
    lines = get()
    assert server.starts("/a") == starts and len(lines) == len(waits) == len(starts) - 1


def test_an_unpublished_size_is_taken_from_the_response(get, server, tmp_path):
    """An earlier call may have left the whole file, more than that, a part, or other bytes."""
    server.faults["/a"] = [("cut", 40_000)]
    assert "cut after 40000 of 100000 bytes" in get(size=0)[0]
    assert server.starts("/a") == [0, 40_000]
    for left in (CONTENT, CONTENT + b"x", CONTENT[:9], b"x" * 9):
        (tmp_path / "file").rename(tmp_path / "file.part")
        (tmp_path / "file.part").write_bytes(left)
        get(size=0)


def test_a_complete_file_of_an_earlier_call_is_only_verified(get, server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    with pytest.raises(IndexError):  # no bytes were received
        get()
    assert server.requests == [] and (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"x" * 50_000, b"x" * 100_000, b"x" * 100_001])
def test_wrong_bytes_of_an_earlier_call_are_downloaded_again_once(get, server, tmp_path, left):
    (tmp_path / "file.part").write_bytes(left)
    get()
    assert server.starts("/a")[-1] == 0 and len(server.requests) <= 2


OTHER = {
    "a page": (("send", b"<html>sign in</html>"), "it has 20 bytes, not the expected 100000"),
    "gone": (("status", 404), "HTTP 404 Not Found"),
    "to a file": (("to", "file:///etc/passwd"), "a redirect that cannot be followed"),
    "in a circle": (("to", "/b"), "HTTP 302 Found, a redirect that cannot be followed"),
    "busy for hours": (("status", 503, {"Retry-After": "7200"}), "Unavailable, wait 7200 s"),
}


@pytest.mark.parametrize("name", OTHER)
def test_an_address_with_other_content_is_skipped(get, server, waits, name):
    fault, reason = OTHER[name]
    server.files["/b"] = CONTENT
    server.faults["/b"] = [fault] * 30
    lines = get("/b", "/a")
    assert reason in lines[0] and len(lines) == 1 and waits == []
    assert server.starts("/a") == [0]  # no wrong bytes were kept


def test_wrong_bytes_at_every_address_are_an_error(get, server, tmp_path):
    server.files["/b"] = CONTENT[:-1] + b"x"
    server.files["/a"] = CONTENT + b"x"
    reasons = fails(get, tmp_path, "/b", "/a")
    assert "/b: the checksum does not match" in reasons and "/a: it has 100001 bytes" in reasons
    assert list(tmp_path.iterdir()) == [] and len(server.requests) == 2


def test_a_range_of_another_file_is_rejected(get, server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:500])
    server.files |= {"/b": CONTENT, "/c": CONTENT + b"more", "/d": CONTENT[:400]}
    server.faults["/b"] = [("range", "bytes 400-99999/100000")]
    reasons = fails(get, tmp_path, "/b", "/c", "/d")
    for said in ("another range of bytes than requested", "it has 100004 bytes", "it has 400"):
        assert said in reasons


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_busy_server_is_retried_with_growing_waits_and_then_given_up(
    get, server, tmp_path, waits, code
):
    server.faults["/a"] = [("status", code)] * 4
    lines = get()
    assert waits == [1, 2, 4, 8] and all(f"HTTP {code}" in line for line in lines)
    (tmp_path / "file").unlink()
    waits.clear()
    server.requests.clear()
    server.faults["/a"] = [("status", code)] * 100
    assert f"HTTP {code}" in fails(get, tmp_path)
    assert len(server.requests) == module.TRIES == len(waits) + 1


@pytest.mark.parametrize("form", ["seconds", "date", "past", "nonsense"])
def test_the_retry_after_header_sets_the_wait(get, server, waits, form):
    when = email.utils.formatdate(time.time() + {"date": 30, "past": -30}.get(form, 0), usegmt=True)
    text = {"seconds": "30", "nonsense": "soon"}.get(form, when)
    server.faults["/a"] = [("status", 429, {"Retry-After": text})]
    get()
    long = form in ("seconds", "date")
    assert len(waits) == 1 and (28 < waits[0] <= 30 if long else waits == [1])


def test_redirects_keep_the_range(get, server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:700])
    server.faults["/b"] = [("to", f"{server.address}/c")]
    server.faults["/c"] = [("to", "/a")]
    get("/b")
    assert server.requests == [("/b", 700), ("/c", 700), ("/a", 700)]


@pytest.mark.exhaustive  # its time limit is too short for a loaded machine
def test_a_silent_server_times_out(get, server, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    server.faults["/a"] = [("stall", 0.5)]
    assert "timed out" in get()[0]


def test_a_refused_connection_is_retried_and_then_an_error(get, server, tmp_path, waits):
    with Server().running() as other:
        address = other.address
    file = File("f", 3, "sha256:0", (f"{address}/a", f"{server.address}/nothing"))
    with pytest.raises(Unavailable) as caught:
        download(file, tmp_path / "file", print, print)
    assert "refused" in str(caught.value) and "HTTP 404" in str(caught.value)
    assert len(waits) == module.TRIES - 1 and list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_without_a_retry(get, server, tmp_path, waits):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            get()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert waits == [] and len(server.requests) == 1
    get()
    assert server.starts("/a") == [0, 50_000]
