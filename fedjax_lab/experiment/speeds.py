"""The laws of the clients' speeds that config.clock.name names.

A law takes the number of clients and a generator, and returns `Speeds`. In all of them `bandwidth`
is in bytes per second, up and down; 0: messages take no time.
"""

import collections
import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput, check_not_negative, cut, quoted
from fedjax_lab.types import Array

COLUMNS = ("client", "seconds", "bandwidth")  # of a file of speeds


class Speeds(NamedTuple):
    """The speeds of all clients [C]."""

    seconds: np.ndarray  # [C] of computation: for an example, or for a task if `of_tasks`
    bandwidth: np.ndarray  # [C] bytes per second; infinite: messages take no time
    factor: Callable[[Array], Array] = jnp.ones_like  # xi of `clock`, from a uniform number
    minimum: float = 0.0  # seconds that a task computes at least
    of_tasks: bool = False


def none(num_clients: int, rng: np.random.Generator) -> None:
    """Time is not simulated."""


def constant(
    num_clients: int, rng: np.random.Generator, *, seconds: float = 0.005, bandwidth: float = 0.0
) -> Speeds:
    """All clients take the same time for an example. seconds: for an example."""
    return _alike(seconds, bandwidth, num_clients)


def log_normal(
    num_clients: int,
    rng: np.random.Generator,
    *,
    seconds: float = 0.005,
    sigma: float = 0.6,
    bandwidth: float = 0.0,
    bandwidth_sigma: float = 0.6,
) -> Speeds:
    """Each client has its own speed and bandwidth, drawn once from log-normal laws.

    seconds, bandwidth: the medians over the clients; seconds are those of an example. sigma,
    bandwidth_sigma: the standard deviations of the logarithms.
    """
    check_not_negative("clock.sigma", sigma)
    check_not_negative("clock.bandwidth_sigma", bandwidth_sigma)
    speed, link = rng.standard_normal((2, num_clients))
    same = _alike(seconds, bandwidth, num_clients)
    return same._replace(
        seconds=same.seconds * np.exp(sigma * speed),
        bandwidth=same.bandwidth * np.exp(bandwidth_sigma * link),
    )


def half_normal(
    num_clients: int,
    rng: np.random.Generator,
    *,
    minimum: float = 0.0,
    sigma: float = 1.0,
    bandwidth: float = 0.0,
) -> Speeds:
    """Each task takes minimum + |N(0, sigma^2)| seconds, whatever the client and its examples."""
    check_not_negative("clock.minimum", minimum)

    def factor(u):
        return jnp.sqrt(2.0) * jax.scipy.special.erfinv(u)

    same = _alike(sigma, bandwidth, num_clients, of_tasks=True)
    return same._replace(factor=factor, minimum=minimum)


def exponential(
    num_clients: int, rng: np.random.Generator, *, seconds: float = 0.005, bandwidth: float = 0.0
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
    check_not_negative("clock.bandwidth", bandwidth)
    check_not_negative("clock.sigma" if of_tasks else "clock.seconds", seconds)
    speeds = Speeds(np.full(num_clients, seconds), np.full(num_clients, bandwidth or np.inf))
    return speeds._replace(of_tasks=of_tasks)


def _read(path):
    """The rows (client, seconds, bandwidth) of a file of speeds."""
    (_, names), *rows = table_of("clock.speeds", path)
    for name in COLUMNS:
        if name not in names:
            raise BadInput(f"config.clock.speeds: {path} has no column {name}")
    places = [names.index(name) for name in COLUMNS]
    return [_row(path, line, row, places) for line, row in rows]


def _row(path, line, row, places):
    """The number of a client, its seconds and its bandwidth."""
    try:
        client, *rest = (row[place] for place in places)
        numbers = int(client), *map(float, rest)
        if not all(0 <= number < math.inf for number in numbers):
            raise ValueError
    except (IndexError, ValueError):
        raise BadInput(
            f"config.clock.speeds: line {line} of {path} must have the number of a client, and its"
            f" seconds and bandwidth of at least 0, not {cut(','.join(row), 80)}"
        ) from None
    return numbers


def table_of(key: str, path: str) -> list[tuple[int, list[str]]]:
    """The number and the cells of each line of the CSV file that a key of the config names.

    The first line has the names of the columns, without the blanks around them.

    Raises BadInput if the file cannot be read.
    """
    reader = csv.reader(io.StringIO(to_read(key, path), newline=""))
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise BadInput(
            f"config.{key}: line {reader.line_num} of {path} cannot be read ({error})"
        ) from error
    (line, names), *others = rows or [(1, [])]
    return [(line, [name.strip() for name in names]), *others]


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
    found = {
        "does not exist": counts.keys() - range(num_clients),
        "is missing": range(num_clients) - counts.keys(),
        "is repeated": {client for client, count in counts.items() if count > 1},
    }
    for how, wrong in found.items():
        if wrong:
            raise BadInput(
                f"config.{key}: client {quoted(min(wrong))} {how} in {path}; the clients of this"
                " run are"
                f" 0 .. {num_clients - 1}"
            )
