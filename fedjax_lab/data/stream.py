"""Examples of blocks of rounds, read in worker threads before they are used."""

import collections
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedjax_lab.data.lazy import LazyArray, example_bytes
from fedjax_lab.data.records import needs_stream


def take(x: np.ndarray | LazyArray, rows: np.ndarray) -> np.ndarray:
    """The examples [n, D] of rows [n], flat and in x's type; zeros for a row of -1, padding."""
    made = _empty(x, len(rows))
    fill(made, x, rows)
    return made


def _empty(x, count):
    return np.empty((count, example_bytes(x) // x.dtype.itemsize), x.dtype)


def fill(made: np.ndarray, x: np.ndarray | LazyArray, rows: np.ndarray) -> None:
    """Writes the examples of rows [n], as `take` gives them, to an array [n, D]."""
    real = rows >= 0
    if rows.size and not -1 <= rows.min() <= rows.max() < len(x):
        raise IndexError(f"rows {rows.min()} to {rows.max()} are not among {len(x)} examples")
    if isinstance(x, LazyArray) or not x.flags.c_contiguous:
        made[real] = x[rows[real]].reshape(-1, made.shape[1])
    else:  # without a copy in between; other threads go on meanwhile
        np.take(np.asarray(x).reshape(len(x), -1), rows, 0, out=made, mode="clip")
    made[~real] = 0


def blocks(
    x: np.ndarray | LazyArray,
    rows_of_block: Callable[[int], np.ndarray],
    count: int,
    *,
    threads: int,
    ahead: int,
) -> Iterator[np.ndarray]:
    """The examples [n, D] of block after block, in order, read by grain. Needs the extra `stream`.

    Reading begins at once. What goes wrong in a thread is raised where its block is asked for, and
    ends the iterator. Whoever leaves it earlier closes it, with `contextlib.closing`: a process
    ends only when the blocks ahead are read.

    Args:
      x: examples [R, ...].
      rows_of_block: the number of a block -> its rows [n], -1 for padding. It is called in the
        threads, maybe in several at once.
      count: how many blocks there are.
      threads: how many blocks are read at a time.
      ahead: how many blocks at most are read, or being read, before they are asked for.
    """
    try:
        import grain
    except ImportError as error:
        raise needs_stream(error) from error

    numbers = grain.MapDataset.range(count)
    read = numbers.map(lambda number: take(x, rows_of_block(number)))
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    iterator = iter(read.to_iter_dataset(options))
    iterator.start_prefetch()
    return _until_closed(iterator)


def _until_closed(iterator):
    try:
        yield from iterator
    finally:
        iterator.close()


class Requests:
    """Examples [n, D] of rows that become known block by block. Use as a context.

    `request` hands in the rows of a block and returns at once; `next` gives the examples of the
    first block that has not been fetched yet, or raises what went wrong in reading it. All threads
    read parts of one block, so that it is there soon even if it is asked for at once. (A grain
    dataset needs a function from the number of a block to its rows, which there is not here.)
    """

    def __init__(self, x: np.ndarray | LazyArray, *, threads: int):
        self._x = x
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="requests")
        self._waiting: collections.deque = collections.deque()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._executor.shutdown(wait=False, cancel_futures=True)

    def request(self, rows: np.ndarray) -> None:
        """The examples of rows [n] are read from now on; -1 is padding."""
        made = _empty(self._x, len(rows))
        parts = zip(*(np.array_split(a, self._threads) for a in (made, rows)), strict=True)
        reading = [self._executor.submit(fill, part, self._x, some) for part, some in parts]
        self._waiting.append((made, reading))

    def __iter__(self):
        return self

    def __next__(self) -> np.ndarray:
        if not self._waiting:
            raise StopIteration
        made, reading = self._waiting.popleft()
        for part in reading:
            part.result()
        return made
