"""Examples that are read in threads."""

import subprocess
import sys
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from inputs import complaint
from record_files import make, write

from fedjax_lab.data import stream
from fedjax_lab.data.records import records, shard_name

COUNT, BLOCKS = 23, 9


@pytest.fixture(params=["memory", "mapped", "records", "strided"])
def x(request, tmp_path):
    """The examples of `make`, in each form that they can have."""
    data = make(COUNT)
    if request.param == "records":
        write(data, tmp_path / "toy")
        return records(path=str(tmp_path / "toy")).x
    if request.param == "mapped":
        np.save(tmp_path / "x.npy", data.x)
        return np.load(tmp_path / "x.npy", mmap_mode="r")
    return data.x if request.param == "memory" else np.repeat(data.x, 2, 0)[::2]


def rows_of(number):
    """Random rows with padding; those of one block are all padding."""
    rng = np.random.default_rng(number)
    return np.where(rng.random(7) < (1 if number == 4 else 0.2), -1, rng.integers(0, COUNT, 7))


def expected(number):
    rows, flat = rows_of(number), make(COUNT).x.reshape(COUNT, -1)
    return np.where(rows[:, None] < 0, 0, flat[rows])


def readers():
    """The threads that read."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("grain", "requests"))]


def wait_until_none_reads():
    until = time.monotonic() + 20
    while readers() and time.monotonic() < until:
        time.sleep(0.01)
    assert not readers()


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_come_in_order_with_zeros_for_padding(x, threads):
    read = list(stream.blocks(x, rows_of, BLOCKS, threads=threads, ahead=4))
    assert len(read) == BLOCKS and {block.dtype for block in read} == {x.dtype}
    for number, block in enumerate(read):
        np.testing.assert_array_equal(block, expected(number))
    wait_until_none_reads()


@pytest.mark.parametrize("threads", [1, 3, 10])
def test_requests_are_answered_in_order(x, threads):
    with stream.Requests(x, threads=threads) as requests:
        requests.request(rows_of(0))
        for number in range(BLOCKS - 1):
            requests.request(rows_of(number + 1))
            np.testing.assert_array_equal(next(requests), expected(number))
        np.testing.assert_array_equal(next(requests), expected(BLOCKS - 1))
        assert list(requests) == []
    wait_until_none_reads()


def test_blocks_are_read_ahead_but_not_too_far():
    asked, enough = [], threading.Event()

    def rows(number):
        asked.append(number)
        if len(asked) == 3:
            enough.set()
        return np.arange(2)

    with closing(stream.blocks(make().x, rows, 100, threads=1, ahead=3)) as read:
        assert enough.wait(20)  # before the first one is asked for
        assert sorted(asked) == [0, 1, 2]
        next(read)
    wait_until_none_reads()
    assert len(asked) < 10


def read_blocks(x, rows):
    return list(stream.blocks(x, rows, 3, threads=2, ahead=2))


def read_requests(x, rows):
    with stream.Requests(x, threads=2) as requests:
        for number in range(3):
            requests.request(rows(number))
        return list(requests)


@pytest.mark.parametrize("read", [read_blocks, read_requests])
def test_what_goes_wrong_in_a_thread_reaches_who_asks(read, tmp_path):
    with pytest.raises(IndexError, match="23 are not among 23 examples"):
        read(make().x, lambda number: np.array([0, COUNT if number == 2 else 1]))
    with pytest.raises(IndexError, match="rows -2 to"):
        read(make().x, lambda number: np.array([0, -2]))
    write(make(), tmp_path / "toy")
    damaged = records(path=str(tmp_path / "toy")).x
    file = tmp_path / "toy" / shard_name(1)
    content = bytearray(file.read_bytes())
    content[content.index(make().x[7].tobytes()) + 5] += 1
    file.write_bytes(content)
    message = complaint(read, damaged, lambda number: np.arange(COUNT))
    assert message.startswith(f"{file} is damaged")
    wait_until_none_reads()


def test_a_process_that_leaves_a_closed_iterator_ends():
    """Not a second for each of a million blocks that were still to be read."""
    code = """
import contextlib, time
import numpy as np
from fedjax_lab.data import stream

def slow(number):
    time.sleep(0.1)
    return np.zeros(2, int)

x = np.zeros((3, 4), np.uint8)
with contextlib.closing(stream.blocks(x, slow, 10**6, threads=2, ahead=1000)) as read:
    next(read)
    raise SystemExit(7)
"""
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, timeout=60, capture_output=True).returncode == 7


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    message = complaint(stream.blocks, make().x, rows_of, 1, threads=1, ahead=1)
    assert "grain" in message and "pip install 'fedjax_lab[stream]'" in message
