"""Shakespeare's plays, to predict the next character; one speaking role is one user (LEAF).

Caldas et al. 2018, arXiv:1812.01097, https://github.com/TalwalkarLab/leaf: JSON files with `users`
and `user_data`, for each user `x`, texts of 80 characters, and `y`, the character that follows.
"""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import safe
from fedjax_lab.data.dataset import Dataset, pooled
from fedjax_lab.data.places import locate, told
from fedjax_lab.errors import BadInput, check_not_negative, quoted

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # characters of a text
TRAINING = 0.8  # share of a user's texts, in their order
LEAST = 40  # texts of a user who is kept
FRACTION, SEED = 0.1, 0
FOLDERS = ("shakespeare/", "shakespeare/data/", "leaf/data/shakespeare/data/")
BY_HAND = (
    "run `./preprocess.sh -s niid --sf 0.1 -k 40 -t sample --tf 0.8` (two dashes before tf: the"
    " one of its README is not read) in data/shakespeare of https://github.com/TalwalkarLab/leaf"
    " and name the folder data/ that it makes, with all_data/ or train/ and test/, by"
    " --config.data.folder (or put it in ~/.cache/fedjax_lab/shakespeare)"
)
HELP = told("shakespeare", BY_HAND)


class Texts(NamedTuple):
    """What a user says: texts x and the characters y that follow them, not checked one by one."""

    file: Path
    x: list
    y: list


def shakespeare(*, folder: str = "", fraction: float = FRACTION, seed: int = SEED) -> Dataset:
    """x [R, 80] int8, y [R] int32: numbers of characters in LEAF's alphabet.

    Characters that are not in it become the space. `folder` is LEAF's data/shakespeare/data or the
    one around it; without it the usual places are searched. Where train/ and test/ are there they
    are taken as they are. Otherwise all_data/ is sampled here as LEAF's `-s niid --sf fraction
    -k 40 -t sample --tf 0.8` does: users in the random order of `seed` until they have that share
    of all texts, the last one cut short (LEAF also shuffles that one's texts); a user's first 80 %
    to train on, then 79 texts left out, which overlap with both sides, the rest for tests. Users
    with fewer than 40 texts or none for tests are dropped. Raises BadInput for what is missing or
    malformed, or if fraction or seed is set where the split is ready.

    A user is a domain as well, so that accuracies are told by user. One client for each user:
    partition by_client, or by_domain with num_clients the number of users.
    """
    if not 0 < fraction <= 1:
        raise BadInput(f"config.data.fraction must be above 0 and at most 1, got {fraction}")
    check_not_negative("data.seed", seed)
    where = find(folder)
    if where.name == "all_data":
        train, test = sampled(read(where), fraction, seed)
    elif (fraction, seed) == (FRACTION, SEED):
        train, test = ready(where)
    else:
        raise BadInput(
            f"{where} is split already: config.data.fraction and config.data.seed apply to"
            " all_data/ only; leave them out, or move train/ away"
        )
    if not train:
        raise BadInput(f"{where} leaves no user with texts for tests: {HELP}")
    users = sorted(train)
    encoded = [encode(user, part[user]) for part in (train, test) for user in users]
    x = np.concatenate([texts for texts, _ in encoded])
    labels = [y for _, y in encoded]
    arrays = pooled(x, labels[: len(users)], labels[len(users) :])
    made = Dataset(**arrays, classes=tuple(ALPHABET), domains=tuple(users))
    return made._replace(client=made.domain, users=made.domains)


def sampled(
    everybody: dict[str, Texts], fraction: float, seed: int
) -> tuple[dict[str, Texts], dict[str, Texts]]:
    """The training and the test texts of each user who is drawn and kept."""
    left = int(fraction * sum(len(texts.y) for texts in everybody.values()))
    train, test = {}, {}
    for user in np.random.default_rng(seed).permutation(sorted(everybody)).tolist():
        texts = everybody[user]
        count = min(left, len(texts.y))
        left -= count
        cut = _training_count(count)
        if count >= LEAST and cut + LENGTH - 1 < count:
            train[user] = _rows(texts, slice(cut))
            test[user] = _rows(texts, slice(cut + LENGTH - 1, count))
    return train, test


def ready(folder: Path) -> tuple[dict[str, Texts], dict[str, Texts]]:
    """What LEAF has split into this folder and the test/ beside it; the same users in both."""
    train, test = read(folder), read(folder.parent / "test")
    alone = min(train.keys() ^ test.keys(), default=None)
    if alone is not None:
        raise BadInput(
            f"{folder}: user {quoted(alone, 60)} is not in both train/ and test/: {HELP}"
        )
    empty = next((user for user in train if not (train[user].y and test[user].y)), None)
    if empty is not None:
        raise BadInput(
            f"{folder}: user {quoted(empty, 60)} has no texts to train or test on: {HELP}"
        )
    sizes = [(len(train[user].y), len(test[user].y)) for user in train]
    if any(n != _training_count(n + LENGTH - 1 + tests) for n, tests in sizes):
        logging.getLogger(__name__).warning(
            "%s is not the first 80 %% of each user's texts (--tf 0.8, with two dashes)", folder
        )
    return train, test


def read(folder: Path) -> dict[str, Texts]:
    """The texts of all users in the JSON files of a folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise BadInput(f"{folder} has no files *.json: {HELP}")
    by_user = {}
    for file in files:
        for user, texts in _of_users(file):
            if user in by_user:
                raise BadInput(f"{file}: user {quoted(user, 60)} is there twice: {HELP}")
            by_user[user] = texts
    return by_user


def encode(user: str, texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """x [n, 80] int8 and y [n] int32 of one user."""
    for key, values, length in (("x", texts.x, LENGTH), ("y", texts.y, 1)):
        if not all(isinstance(value, str) and len(value) == length for value in values):
            raise BadInput(
                f"{texts.file}: {key} of user {quoted(user, 60)} is not all texts of length"
                f" {length}: {HELP}"
            )
    return numbers(texts.x).reshape(-1, LENGTH), numbers(texts.y).astype(np.int32)


def numbers(texts: list[str]) -> np.ndarray:
    """The place in ALPHABET of each character of the joined texts, int8."""
    table = np.full(129, ALPHABET.index(" "), np.int8)  # of ASCII; 128 stands for all else
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    return table[np.minimum(codes, 128)]


def _of_users(file: Path) -> Iterable[tuple[str, Texts]]:
    """Users and their texts, as many x as y; BadInput where the file has not LEAF's form."""
    with safe.reading(file, HELP, "cannot be read as JSON"):
        content = json.loads(safe.content(file))
    users, data = (_get(content, key) for key in ("users", "user_data"))
    if not (isinstance(users, list) and isinstance(data, dict)):
        raise BadInput(f"{file} has no list `users` and object `user_data`: {HELP}")
    for user in users:
        values = _get(data, user) if isinstance(user, str) else None
        x, y = _get(values, "x"), _get(values, "y")
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
            raise BadInput(
                f"{file}: user {quoted(user, 60)} has no lists x and y of one length: {HELP}"
            )
        yield user, Texts(file, x, y)


def _get(value, key: str):
    """An object's member; None where there is none."""
    return value.get(key) if isinstance(value, dict) else None


def _rows(texts: Texts, rows: slice) -> Texts:
    return Texts(texts.file, texts.x[rows], texts.y[rows])


def _training_count(count: int) -> int:
    """How many of a user's texts LEAF trains on."""
    return max(1, int(TRAINING * count))


def find(folder: str) -> Path:
    """LEAF's train/, else its all_data/, in `folder` or in the usual places; BadInput if none."""
    names = [f"{part}{kind}" for kind in ("train", "all_data") for part in _around(folder)]
    return locate(folder, tuple(names), HELP, _has_json)


def _around(folder: str) -> tuple[str, ...]:
    """Where LEAF's folders may lie in a named folder, or in one of the usual places."""
    return ("", "data/", *FOLDERS) if folder else FOLDERS


def _has_json(folder: Path) -> bool:
    return any(folder.glob("*.json"))
