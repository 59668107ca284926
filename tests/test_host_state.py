"""The private state of a population, stored outside the devices."""

import hashlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab.engine.host import host_state
from fedjax_lab.engine.host.host_state import HostState, from_bits, to_bits

C = 11
KEYS = jax.random.split(jax.random.key(3), C)
STATE = {
    "wide": np.arange(C * 6, dtype=np.float32).reshape(C, 2, 3),
    "half": jnp.arange(C * 3, dtype=jnp.bfloat16).reshape(C, 3),
    "one": np.arange(C, dtype=np.int32),
    "flag": np.arange(C) % 3 == 0,
    "key": KEYS,
}


def entries(ids):
    return to_bits(jax.tree.map(lambda a: a[ids], STATE))


@pytest.mark.parametrize("on_disk", [False, True])
def test_written_entries_are_read_back(on_disk, tmp_path, monkeypatch):
    """Pieces have a few clients, and the last overlaps; leaves include typed keys and bfloat16."""
    store = HostState(STATE, C, tmp_path if on_disk else None)
    monkeypatch.setattr(host_state, "PIECE_BYTES", 4 * store.bytes_of_one)
    all_ids = np.arange(C)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(store.read(all_ids)))
    assert [ids.tolist() for ids in store.pieces()] == [[0, 1, 2, 3], [4, 5, 6, 7], [7, 8, 9, 10]]
    store.fill(entries)
    toys.same(from_bits(store.read(all_ids), STATE), STATE)
    ids, others = np.array([1, 2, 3, 7, 10]), np.array([0, 4, 5, 6, 8, 9])
    store.write(ids, entries(ids[::-1]))
    toys.same(store.read(ids), entries(ids[::-1]))
    toys.same(store.read(others), entries(others))
    assert not list(tmp_path.iterdir())  # the file has no name and need not be removed


@pytest.mark.parametrize(("on_disk", "error"), [(False, MemoryError), (True, OSError)])
def test_no_state_is_stored_and_too_much_is_rejected_immediately(on_disk, error, tmp_path):
    folder = tmp_path if on_disk else None
    store = HostState((), C, folder)
    store.write(np.arange(3), ())
    assert store.read(np.arange(3)) == store.everything() == ()
    like = {"w": jax.ShapeDtypeStruct((2**31 - 1, 2**16), jnp.float32)}
    with pytest.raises(error, match=r"private state needs 524,288.0 GiB"):
        HostState(like, 2**31 - 1, folder)


@pytest.mark.parametrize("on_disk", [False, True])
def test_saved_entries_are_loaded(on_disk, tmp_path, monkeypatch):
    """Loading in pieces replaces stored entries; `save` returns the digest of the file."""
    folder = tmp_path if on_disk else None
    old, new = (HostState(STATE, C, folder) for _ in range(2))
    monkeypatch.setattr(host_state, "PIECE_BYTES", 4 * old.bytes_of_one)
    old.write(np.array([2, 3, 9]), entries(np.array([2, 3, 9])))
    new.fill(entries)
    with (tmp_path / "file").open("w+b") as file:
        digest = old.save(file)
        assert hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest() == digest
        new.load(file, range(C))
    toys.same(new.everything(), old.everything())
    assert old.layout == new.layout != HostState(STATE["wide"], C).layout


def test_saved_segments_are_loaded_into_other_segments(tmp_path, monkeypatch):
    """Three processes load what two processes have saved."""
    old = [HostState(STATE, C, segment=segment) for segment in (range(5), range(5, C))]
    monkeypatch.setattr(host_state, "PIECE_BYTES", 2 * old[0].bytes_of_one)
    for i, store in enumerate(old):
        store.fill(entries)
        with (tmp_path / str(i)).open("xb") as file:
            store.save(file)
    for segment in (range(3), range(3, 7), range(7, C)):
        new = HostState(STATE, C, segment=segment)
        for i, store in enumerate(old):
            with (tmp_path / str(i)).open("rb") as file:
                new.load(file, store.segment)
        toys.same(new.everything(), entries(np.array(segment)))
        assert new.layout == old[0].layout and new.nbytes == old[0].nbytes


def test_zeros_take_no_space_on_disk(tmp_path):
    store = HostState({"w": np.zeros((1000, 5000), np.float32)}, 1000, tmp_path)
    file = store._records._file
    store.fill(lambda ids: {"w": np.zeros((len(ids), 5000), np.float32)})
    store.write(np.array([500]), {"w": np.ones((1, 5000), np.float32)})
    status = os.fstat(file.fileno())
    assert status.st_size == 1000 * store.bytes_of_one
    assert status.st_blocks * 512 < 10 * store.bytes_of_one
