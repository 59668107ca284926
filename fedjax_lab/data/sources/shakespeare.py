"""LEAF's Shakespeare: next-character prediction, where each speaking role is a user.

Caldas et al. 2018, arXiv:1812.01097, https://github.com/TalwalkarLab/leaf. The JSON files have
`users` and `user_data`: for each user, `x` has texts of 80 characters, and `y` the character that
follows each text.
"""

import logging
from pathlib import Path

import numpy as np

from fedjax_lab.data.dataset import Dataset, pooled
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import leaf_json
from fedjax_lab.data.formats.leaf_json import User
from fedjax_lab.data.places import fetched_by_hand, locate
from fedjax_lab.data.safe import Fault
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.ranges import NotNegative, PositiveShare

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # characters in a text
TRAINING = 0.8  # share of training texts: the first ones of each user
LEAST = 40  # users with fewer texts are left out
FRACTION, SEED = 0.1, 0
FOLDERS = ("shakespeare/", "shakespeare/data/", "leaf/data/shakespeare/data/")


@source(fetched_by_hand("shakespeare"))
def shakespeare(
    *, folder: str = "", fraction: PositiveShare = FRACTION, seed: NotNegative[int] = SEED
) -> Dataset:
    """Shakespeare: x [R, 80] int8 and y [R] int32, numbers of characters in LEAF's alphabet.

    Characters outside the alphabet become spaces. If there are folders train/ and test/, this split
    is used as it is. Otherwise all_data/ is sampled as LEAF's `-s niid --sf fraction -k 40 -t
    sample --tf 0.8` does: users are taken in the random order of `seed` until they have that
    fraction of all texts, and the last user is cut short (LEAF also shuffles its texts). The first
    80 % of each user's texts are for training; the next 79, which overlap with both sides, are left
    out; the rest is for testing. Users with fewer than 40 texts or without test texts are left out.

    folder: LEAF's data/shakespeare/data, or its parent; empty: ~/.cache/fedjax_lab and data/ are
        searched.
    fraction: the share of all texts to sample from all_data/.
    seed: the seed of that sample.

    Each user is also a domain, so that accuracies are reported for each user. For one client per
    user, use partition by_client, or by_domain with num_clients set to the number of users.

    Raises BadInput if files are missing or malformed, or if fraction or seed is set although there
    is a split.
    """
    where = find(folder)
    if where.name == "all_data":
        train, test = sampled(read(where), fraction, seed)
    elif (fraction, seed) == (FRACTION, SEED):
        train, test = ready(where)
    else:
        raise BadInput(
            f"{where} is already split: config.data.fraction and config.data.seed apply to"
            " all_data/ only; leave them out, or move train/ away"
        )
    if not train:
        raise Fault(f"{where} has no user with enough texts for a test set")
    users = sorted(train)
    encoded = [encode(part[user]) for part in (train, test) for user in users]
    x = np.concatenate([texts for texts, _ in encoded])
    labels = [y for _, y in encoded]
    arrays = pooled(x, labels[: len(users)], labels[len(users) :])
    made = Dataset(**arrays, classes=tuple(ALPHABET), domains=tuple(users))
    return made._replace(client=made.domain, users=made.domains, overlap=LENGTH - 1)


def sampled(
    everybody: dict[str, User], fraction: float, seed: int
) -> tuple[dict[str, User], dict[str, User]]:
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


def ready(folder: Path) -> tuple[dict[str, User], dict[str, User]]:
    """The split that LEAF has written to this folder and to test/ beside it.

    Raises BadInput unless both have texts of the same users.
    """
    train, test = read(folder), read(folder.parent / "test")
    alone = min(train.keys() ^ test.keys(), default=None)
    if alone is not None:
        raise Fault(f"{folder}: user {quoted(alone, 60)} is not in both train/ and test/")
    empty = next((user for user in train if not (train[user].y and test[user].y)), None)
    if empty is not None:
        what = "has no training texts or no test texts"
        raise Fault(f"{folder}: user {quoted(empty, 60)} {what}")
    sizes = [(len(train[user].y), len(test[user].y)) for user in train]
    if any(n != _training_count(n + LENGTH - 1 + tests) for n, tests in sizes):
        logging.getLogger(__name__).warning(
            "%s does not have the first 80 %% of each user's texts; run preprocess.sh with"
            " --tf 0.8 (two dashes)",
            folder,
        )
    return train, test


def read(folder: Path) -> dict[str, User]:
    """The texts x and next characters y of each user in the JSON files.

    Raises BadInput for entries that are not texts of the right length.
    """
    users = {user.name: user for user in leaf_json.users_in(folder)}
    for user in users.values():
        for key, values, length in (("x", user.x, LENGTH), ("y", user.y, 1)):
            if not all(isinstance(value, str) and len(value) == length for value in values):
                raise Fault(
                    f"{user.file}: {key} of user {quoted(user.name, 60)} has entries that are not"
                    f" texts of length {length}"
                )
    return users


def encode(texts: User) -> tuple[np.ndarray, np.ndarray]:
    """x [n, 80] int8 and y [n] int32 of one user."""
    return numbers(texts.x).reshape(-1, LENGTH), numbers(texts.y).astype(np.int32)


def numbers(texts: list[str]) -> np.ndarray:
    """The position in ALPHABET of each character of the joined texts, int8."""
    table = np.full(129, ALPHABET.index(" "), np.int8)  # of ASCII; 128: all other characters
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    return table[np.minimum(codes, 128)]


def _rows(texts: User, rows: slice) -> User:
    return texts._replace(x=texts.x[rows], y=texts.y[rows])


def _training_count(count: int) -> int:
    """The number of a user's texts that LEAF uses for training."""
    return max(1, int(TRAINING * count))


def find(folder: str) -> Path:
    """LEAF's train/, else its all_data/, in `folder` or else in ~/.cache/fedjax_lab and data/.

    Raises a Fault if there is neither.
    """
    around = ("", "data/", *FOLDERS) if folder else FOLDERS
    names = [f"{part}{kind}" for kind in ("train", "all_data") for part in around]
    return locate(folder, names, leaf_json.has_files)
