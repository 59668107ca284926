"""The names of classes, domains and clients, which a run keeps once in its names.json."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.engine.input import Seed
from fedjax_lab.types import Rows


def names_of_run(dataset: Dataset, seeds: Sequence[Seed]) -> dict:
    """The content of names.json.

    It has the names of the classes, if there are some, and of the domains. For the training clients
    of each seed, in the order of `per_client` in metrics.jsonl, it has their numbers of training
    examples, their names, unless these are the clients' numbers, and their domains ("" for a client
    with examples of several), unless no client has one or there is only one. With a clock it has
    the seconds of a task of each.
    """
    return ({"classes": list(dataset.classes)} if dataset.classes else {}) | {
        "domains": list(dataset.domains),
        "clients": {
            str(seed.number): _seed_entry(dataset, seed.federation.train, seed.task_seconds)
            for seed in seeds
        },
    }


def _seed_entry(dataset, rows, seconds):
    known: dict[str, Any] = {"examples": np.asarray(rows.count).tolist()}
    if seconds is not None:
        known["seconds"] = seconds.tolist()
    if (called := names(dataset, rows)) != numbers(len(rows)):
        known["names"] = called
    if len(words := dataset.domains) > 1:
        domains = [words[d] if d >= 0 else "" for d in only_one(dataset.domain, rows)]
        known |= {"domains": domains} if any(domains) else {}
    return known


def numbers(count: int) -> list[str]:
    """The names of clients without names: their numbers."""
    return list(map(str, range(count)))


def names(dataset: Dataset, rows: Rows) -> list[str]:
    """The names of clients with these training rows.

    They are the names of the natural users if each client is one of them, or of the domains if each
    client has one of its own, and otherwise the clients' numbers.
    """
    for labels, words in ((dataset.client, dataset.users), (dataset.domain, dataset.domains)):
        if labels is None or len(words) < 2:
            continue
        each = only_one(labels, rows)
        if (each >= 0).all() and len(np.unique(each)) == len(each):
            return [words[i] for i in each]
    return numbers(len(rows))


def only_one(labels: Any, rows: Rows) -> np.ndarray:
    """The label that all rows of a client have, [C]; -1 for a client with several or no rows.

    labels: [R], at least 0.
    """
    start, count = np.asarray(rows.start), np.asarray(rows.count)
    owner = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(owner)) + np.repeat(start - (np.cumsum(count) - count), count)
    of_row = np.asarray(labels)[np.asarray(rows.list)[place]]
    low, high = np.full(len(count), np.iinfo(np.int64).max), np.full(len(count), -1)
    np.minimum.at(low, owner, of_row)
    np.maximum.at(high, owner, of_row)
    return np.where(low == high, high, -1)
