"""How fast examples are read in blocks: from memory, from a memory-mapped file, from records.

python launch/speed/stream_speed.py FOLDER [--examples=400000] [--clients=500] [--blocks=40]
                                           [--threads=2] [--ahead=4]

Writes random images 32x32x3 to FOLDER, once, as x.npy and as records, and reads blocks of so many
random clients: each with 50 examples that lie together, or with 50 anywhere. Prints thousands of
examples a second: plain indexing of an array in memory, then `stream.blocks` and `stream.Requests`.
The files come from the system's cache, if memory suffices for that.
"""

import argparse
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_lab.data import record_writer, stream
from fedjax_lab.data.dataset import Dataset, pooled
from fedjax_lab.data.records import records

SHAPE, HELD = (32, 32, 3), 50


def prepare(folder: Path, count: int) -> dict:
    """The same examples in memory, mapped and as records."""
    folder.mkdir(parents=True, exist_ok=True)
    file, written = folder / "x.npy", folder / "records"
    if not file.exists():
        np.save(file, np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8))
    mapped = np.load(file, mmap_mode="r")
    written.mkdir(exist_ok=True)
    parts = pooled(mapped, [np.zeros(len(mapped), np.int32)], [[]])
    for _ in record_writer.write(
        Dataset(**parts, classes=("0",), domains=("0",)), written, "speed"
    ):
        pass
    return {"memory": np.array(mapped), "mapped": mapped, "records": records(path=str(written)).x}


def rows_of_block(count: int, clients: int, scattered: bool, number: int) -> np.ndarray:
    """The rows of random clients' examples."""
    rng = np.random.default_rng(number)
    if scattered:
        return rng.integers(0, count, clients * HELD)
    firsts = HELD * rng.integers(0, count // HELD, (clients, 1))
    return (firsts + np.arange(HELD)).ravel()


def plain(x, rows, args):
    """Indexing, in this thread."""
    for number in range(args.blocks):
        np.asarray(x[rows(number)]).reshape(-1, x[0].size)


def by_blocks(x, rows, args):
    """Blocks that are read ahead."""
    read = stream.blocks(x, rows, args.blocks, threads=args.threads, ahead=args.ahead)
    with closing(read):
        for _ in read:
            pass


def by_requests(x, rows, args):
    """Blocks whose rows are known one block ahead."""
    with stream.Requests(x, threads=args.threads) as read:
        read.request(rows(0))
        for number in range(1, args.blocks + 1):
            if number < args.blocks:
                read.request(rows(number))
            next(read)


def seconds(way, *args):
    """The shortest of four times; the first one fills the system's cache."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        way(*args)
        times.append(time.perf_counter() - began)
    return min(times)


def main():
    """Prints a line for each kind of rows and array."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for flag, value in (("examples", 400_000), ("clients", 500), ("blocks", 40)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    for flag, value in (("threads", 2), ("ahead", 4)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    args = parser.parse_args()
    arrays = prepare(args.folder, args.examples)
    read = args.clients * HELD * args.blocks / 1000
    for scattered in (False, True):
        for name, x in arrays.items():
            rows = partial(rows_of_block, len(x), args.clients, scattered)
            speeds = []
            for way in (plain, by_blocks, by_requests):
                speeds.append(f"{way.__name__} {read / seconds(way, x, rows, args):,.0f}")
            print("scattered" if scattered else "together ", f"{name:8}", *speeds, sep="  ")


if __name__ == "__main__":
    main()
