"""The laws of the clients' speeds that config.clock.name names.

A law takes the number of clients and a generator, and returns `Speeds`. In all of them `bandwidth`
is in bytes per second, up and down; 0: messages take no time.
"""

import collections
import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput, cut, quoted
from fedjax_lab.ranges import NotNegative, checked
from fedjax_lab.types import Array

T = TypeVar("T")
COLUMNS = ("client", "seconds", "bandwidth")  # of a file of speeds
LARGEST = 2**31 - 1  # whole number in a file


class Speeds(NamedTuple):
    """The speeds of all clients [C]."""

    seconds: np.ndarray  # [C] of computation: for an example, or for a task if `of_tasks`
    bandwidth: np.ndarray  # [C] bytes per second; infinite: messages take no time
    factor: Callable[[Array], Array] = jnp.ones_like  # xi of `clock`, from a uniform number
    minimum: float = 0.0  # seconds that a task computes at least
    of_tasks: bool = False


def none(num_clients: int, rng: np.random.Generator) -> None:
    """Time is not simulated."""


@checked("clock")
def constant(
    num_clients: int,
    rng: np.random.Generator,
    *,
    seconds: NotNegative[float] = 0.005,
    bandwidth: NotNegative[float] = 0.0,
) -> Speeds:
    """All clients take the same time for an example. seconds: for an example."""
    return _alike(seconds, bandwidth, num_clients)


@checked("clock")
def log_normal(
    num_clients: int,
    rng: np.random.Generator,
    *,
    seconds: NotNegative[float] = 0.005,
    sigma: NotNegative[float] = 0.6,
    bandwidth: NotNegative[float] = 0.0,
    bandwidth_sigma: NotNegative[float] = 0.6,
) -> Speeds:
    """Each client has its own speed and bandwidth, drawn once from log-normal laws.

    seconds, bandwidth: the medians over the clients; seconds are those of an example. sigma,
    bandwidth_sigma: the standard deviations of the logarithms.
    """
    speed, link = rng.standard_normal((2, num_clients))
    same = _alike(seconds, bandwidth, num_clients)
    return same._replace(
        seconds=same.seconds * np.exp(sigma * speed),
        bandwidth=same.bandwidth * np.exp(bandwidth_sigma * link),
    )


@checked("clock")
def half_normal(
    num_clients: int,
    rng: np.random.Generator,
    *,
    minimum: NotNegative[float] = 0.0,
    sigma: NotNegative[float] = 1.0,
    bandwidth: NotNegative[float] = 0.0,
) -> Speeds:
    """Each task takes minimum + |N(0, sigma^2)| seconds, whatever the client and its examples."""

    def factor(u):
        return jnp.sqrt(2.0) * jax.scipy.special.erfinv(u)

    same = _alike(sigma, bandwidth, num_clients, of_tasks=True)
    return same._replace(factor=factor, minimum=minimum)


@checked("clock")
def exponential(
    num_clients: int,
    rng: np.random.Generator,
    *,
    seconds: NotNegative[float] = 0.005,
    bandwidth: NotNegative[float] = 0.0,
) -> Speeds:
    """The time of each task is exponential. seconds: its mean for an example."""
    return _alike(seconds, bandwidth, num_clients)._replace(factor=lambda u: -jnp.log1p(-u))


def trace(num_clients: int, rng: np.random.Generator, *, speeds: str = "") -> Speeds:
    """The speeds of a CSV file with the columns client, seconds and bandwidth, a row per client.

    speeds: the file. The seconds are those of an example, the bandwidth is in bytes per second; 0:
    messages take no time.
    """
    rows = _read(speeds)
    check_clients("clock.speeds", speeds, [client for client, *_ in rows], num_clients)
    _, seconds, bandwidth = np.array(sorted(rows)).T
    return Speeds(seconds, np.where(bandwidth > 0, bandwidth, np.inf))


def _alike(seconds, bandwidth, num_clients, of_tasks=False):
    """The speeds of clients that are alike."""
    speeds = Speeds(np.full(num_clients, seconds), np.full(num_clients, bandwidth or np.inf))
    return speeds._replace(of_tasks=of_tasks)


def _read(path):
    """The rows (client, seconds, bandwidth) of a file of speeds."""
    names, lines = rows_of("clock.speeds", path)
    for name in COLUMNS:
        if names.count(name) != 1:
            count = "two columns" if name in names else "no column"
            raise BadInput(f"config.clock.speeds: {path} has {count} {name}")
    places = [names.index(name) for name in COLUMNS]
    return [_row(path, line, row, places, len(names)) for line, row in lines]


def _row(path, line, row, places, width):
    """The number of a client, its seconds and its bandwidth. width: number of columns."""
    try:
        if any(row[width:]):  # such as a decimal comma, whose cells are not those of the header
            raise ValueError
        client, *rest = (row[place] for place in places)
        numbers = number(client, int), *(number(text, float) for text in rest)
    except (IndexError, ValueError):
        raise BadInput(
            f"config.clock.speeds: line {line} of {path} must have the number of a client, and its"
            f" seconds and bandwidth of at least 0, not {cut(','.join(row), 80)}"
        ) from None
    return numbers


def number(text: str, kind: Callable[[str], T]) -> T:
    """The number of a cell. Raises ValueError unless it is at least 0 and not too large."""
    made: Any = kind(text)
    if not 0 <= made <= (LARGEST if kind is int else np.finfo(np.float32).max):
        raise ValueError
    return made


def rows_of(key: str, path: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns of a CSV file that a key of the config names, and its lines.

    Returns the names, and of each further line that is not empty its number, from 1, and its
    cells, all without blanks around them. Raises BadInput if the file is missing or damaged.
    """
    with io.StringIO(to_read(key, path), newline="") as file:
        reader = csv.reader(file)
        try:
            lines = [(reader.line_num, [*map(str.strip, row)]) for row in reader if row]
        except csv.Error as error:
            line = reader.line_num
            raise BadInput(f"config.{key}: line {line} of {path} is damaged ({error})") from error
    return (lines[0][1] if lines else []), lines[1:]


def to_read(key: str, path: str) -> str:
    """The text of the file that a key of the config names. Raises BadInput if it has none."""
    if not path:
        raise BadInput(f"config.{key} must name a file, because config.clock uses a trace")
    if not (file := Path(path).expanduser()).is_file():
        raise BadInput(f"config.{key}: there is no file {path}")
    with safe.reading(f"config.{key}: {path}", "it must be a text in UTF-8"):
        return safe.content(file).decode("utf-8-sig")


def check_clients(key: str, path: str, clients: Sequence[int], num_clients: int) -> None:
    """Raises BadInput unless a file has each client once."""
    counts = collections.Counter(clients)
    faults = {
        "does not exist": counts.keys() - range(num_clients),
        "is missing": range(num_clients) - counts.keys(),
        "is repeated": {client for client, count in counts.items() if count > 1},
    }
    for how, wrong in faults.items():
        if wrong:
            raise BadInput(
                f"config.{key}: client {quoted(min(wrong))} {how} in {path}; the clients of this"
                " run are"
                f" 0 .. {num_clients - 1}"
            )
