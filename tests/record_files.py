"""Small data sets that are written as records."""

import numpy as np
import pytest

from fedjax_lab.data import record_writer
from fedjax_lab.data.dataset import Dataset


def make(count=23, kind=np.uint8, shape=(8, 8, 3)):
    """Random examples of three classes in two domains."""
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, (count, *shape)).astype(kind)
    y, domain = (rng.integers(0, n, count).astype(np.int32) for n in (3, 2))
    return Dataset(x, y, domain, np.arange(count) % 5 == 0, ("a", "b", "ü"), ("one", "two"))


def with_users(data):
    """The same examples, divided among four users, of whom the third has none."""
    client = np.array([3, 0, 1], np.int32)[np.arange(len(data.y)) % 3]
    return data._replace(client=client, users=("ada", "bob", "cy", "zoë"))


def write(data, folder, of_shard=5):
    """Writes the data set in shards of this many examples."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_writer, "SHARD", of_shard * data.x[0].nbytes)
        return list(record_writer.write(data, folder, "toy"))
