"""Checkpoints: a restored state is the saved one, whatever has happened to the files."""

import errno
import logging
import random
import shutil
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from slow_cases import exhaustive_but, in_ci

from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput
from fedjax_lab.running.storage import digest
from fedjax_lab.running.storage.checkpoint import Checkpoints

STATE = {"w": jnp.arange(12.0), "n": jnp.int32(3), "none": None, "empty": (), "f": np.ones(1)}


def state_after(rounds):
    return jax.tree.map(lambda a: a + rounds, STATE)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a run with checkpoints after rounds 1, 2 and 5."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = Checkpoints(folder)
    for rounds in (1, 2, 5):
        checkpoints.save(rounds, state_after(rounds))
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the folder `saved`."""
    return shutil.copytree(saved, tmp_path / "checkpoints")


def newest(folder):
    checkpoints = Checkpoints(folder)
    try:
        rounds, saved = checkpoints.newest(lambda rounds: STATE)
    finally:
        checkpoints.close()
    leaves = jax.tree.leaves(saved)
    toys.same(leaves, jax.tree.leaves(state_after(rounds)))
    dtypes = [np.asarray(a).dtype for a in jax.tree.leaves(STATE)]
    assert [a.dtype for a in leaves] == dtypes
    return rounds


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def test_typed_keys_are_restored_with_their_type_and_shape(tmp_path):
    """The state has one key, keys with two axes, and a key of another generator."""
    keys = jax.random.split(jax.random.key(3), (2, 5))
    state = {"one": keys[0, 0], "all": keys, "rbg": jax.random.key(1, impl="rbg"), "n": np.ones(2)}
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, state)
    checkpoints.wait()
    restored = checkpoints.newest(lambda rounds: state)[1]
    checkpoints.close()
    assert jax.tree.map(lambda a: a.dtype, restored) == jax.tree.map(lambda a: a.dtype, state)
    toys.same(restored, state)
    assert jax.random.normal(restored["one"]) == jax.random.normal(keys[0, 0])


@pytest.mark.parametrize("seed", exhaustive_but([0, 1, 2, 3], range(30)))
def test_a_flipped_bit_is_never_restored(seed, folder, capsys):
    """Flips any bit of any file; only a flip outside of the state (a time stamp) may be missed."""
    choose = random.Random(seed)
    path = choose.choice(files_of(folder / "5"))
    content = bytearray(path.read_bytes())
    content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    path.write_bytes(content)
    rounds = newest(folder)
    message = capsys.readouterr().err
    assert rounds in (2, 5) and message.count("\n") == (rounds == 2)
    assert rounds == 5 or f"checkpoint 5 in {folder} is damaged, so checkpoint 2 is" in message


def empty(folder):
    for path in files_of(folder / "5"):
        path.write_bytes(b"")


def cut(folder):
    path = max(folder.rglob("5/leaves/**/d/*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {  # {name: (function of the folder, damaged checkpoint, the one that is used instead)}
    "emptied": (empty, 5, 2),
    "cut": (cut, 5, 2),
    "without leaves": (lambda folder: shutil.rmtree(folder / "5/leaves"), 5, 2),
    "copied": (lambda folder: shutil.copytree(folder / "5", folder / "8"), 8, 5),
}


@pytest.mark.parametrize("damage", in_ci(["cut", "copied"], DAMAGES))
def test_the_checkpoint_before_a_damaged_one_is_used(damage, folder, capsys):
    function, damaged, used = DAMAGES[damage]
    function(folder)
    assert newest(folder) == used
    message = capsys.readouterr().err
    assert f"checkpoint {damaged} in {folder} is damaged, so checkpoint {used} is used" in message
    assert message.count("\n") == 1


@pytest.mark.slow
def test_an_error_is_raised_if_all_checkpoints_are_damaged(folder, capsys):
    for rounds in "25":
        shutil.rmtree(folder / rounds / "leaves")
    with pytest.raises(BadInput, match="all checkpoints in .* are damaged"):
        newest(folder)
    assert capsys.readouterr().err == ""
    assert (folder / "5").exists() and (folder / "2").exists()


def test_other_files_in_the_folder_of_checkpoints_are_ignored(folder, tmp_path, capsys):
    (tmp_path / "empty" / "3").mkdir(parents=True)
    checkpoints = Checkpoints(tmp_path / "empty")
    assert checkpoints.newest(lambda rounds: rounds) == (0, 0)
    checkpoints.close()
    for name in ("7", "notes", "6.orbax-checkpoint-tmp-1"):
        (folder / name).mkdir()
    (folder / "9").write_text("")
    (folder / "readme.txt").write_text("")
    assert newest(folder) == 5 and capsys.readouterr().err == ""
    assert sorted(path.name for path in folder.iterdir() if path.name in "25") == ["2", "5"]
    checkpoints = Checkpoints(folder)
    checkpoints.forget_after(5)
    checkpoints.save(7, state_after(7))
    checkpoints.close()
    assert newest(folder) == 7


def test_a_new_folder_of_checkpoints_does_not_import_orbax(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest(lambda rounds: rounds) == (0, 0)
    checkpoints.close()
    assert "_ocp" not in vars(checkpoints)


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    """Otherwise threads of Orbax and TensorStore would print hundreds of lines about it."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    full = SimpleNamespace(total=2**30, free=2**10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(OSError) as caught:
        checkpoints.save(1, STATE)
    assert caught.value.errno == errno.ENOSPC
    assert not any((tmp_path / "checkpoints").iterdir())
    full.total = full.free = 0  # a file system that does not report its size
    checkpoints.save(1, state_after(1))
    checkpoints.close()
    assert newest(tmp_path / "checkpoints") == 1


def test_errors_that_orbax_raises_are_not_also_logged(tmp_path, caplog):
    Checkpoints(tmp_path / "checkpoints").close()
    log = logging.getLogger("absl")
    for path, count in (("site-packages/orbax/checkpoint/x.py", 0), ("mine.py", 1)):
        log.handle(log.makeRecord("absl", logging.ERROR, path, 1, "raised", (), None))
        assert len(caplog.records) == count


# Several devices.

CLIENTS = 10


def spread(devices, wide=1):
    """A state of 10 clients on this many devices, padded with zeros to a multiple of them."""
    rows = CLIENTS + -CLIENTS % devices
    private = np.zeros((rows, 3 * wide), np.float32)
    private[:CLIENTS] = np.arange(CLIENTS * 3 * wide).reshape(CLIENTS, -1) + 1
    keys = jax.random.key_data(jax.random.split(jax.random.key(1), CLIENTS))
    keys = np.pad(keys, ((0, rows - CLIENTS), (0, 0)))
    state = {
        "server": np.arange(800_000, dtype=np.float32),
        "private": private,
        "seeds": np.stack([private, 2 * private]),
        "keys": keys,
        "t": np.int32(3),
    }
    state = {name: jax.device_put(a, place(devices, name)) for name, a in state.items()}
    state["keys"] = jax.random.wrap_key_data(state["keys"])
    return {**state, "seconds": np.array([1 / 3])}


def place(devices, name):
    specs = {"private": P("client"), "keys": P("client"), "seeds": P(None, "client")}
    if devices == 1:
        return SingleDeviceSharding(jax.devices()[0])
    return NamedSharding(parallel.make_mesh(devices), specs.get(name, P()))


def everywhere(devices):
    return place(devices, "server")


def save(folder, state):
    checkpoints = Checkpoints(folder / "checkpoints")
    checkpoints.save(4, state)
    checkpoints.close()


def restore(folder, like):
    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        rounds, restored = checkpoints.newest(lambda rounds: like)
    finally:
        checkpoints.close()
    assert rounds == 4
    return restored


@pytest.fixture(scope="module", params=[8, 1])
def by_devices(request, tmp_path_factory):
    """The folder of a checkpoint that this many devices have saved."""
    folder = tmp_path_factory.mktemp("spread")
    save(folder, spread(request.param))
    return folder


def replicated(devices):
    return {
        name: jax.device_put(a, everywhere(devices)) if isinstance(a, jax.Array) else a
        for name, a in spread(1).items()
    }


def on_the_host():
    """Arrays that the earlier run had on its devices."""
    state = spread(1)
    return state | {name: np.asarray(state[name]) for name in ("server", "private", "seeds")}


PLACES = {
    "eight": partial(spread, 8),
    "three": partial(spread, 3),
    "one": partial(spread, 1),
    "replicated": partial(replicated, 4),
    "host": on_the_host,
}


@pytest.mark.parametrize("there", in_ci(["three", "host"], PLACES))
def test_a_checkpoint_is_restored_to_other_devices_or_the_host(by_devices, there):
    like = PLACES[there]()
    restored = restore(by_devices, like)
    toys.same(restored, like)
    for name, a in like.items():
        assert type(restored[name]) is type(a)
        if isinstance(a, jax.Array):
            assert restored[name].sharding.is_equivalent_to(a.sharding, a.ndim), name


def test_a_lack_of_device_memory_does_not_count_as_damage(by_devices, monkeypatch):
    def full(*_):
        error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        raise ValueError("while reading array index") from error

    monkeypatch.setattr(Checkpoints, "_read_arrays", full)
    with pytest.raises(ValueError, match="while reading"):
        restore(by_devices, spread(1))


OF_ANOTHER_RUN = [
    {"private": np.zeros((16, 4))},
    {"server": np.zeros(800_008)},
    {"private": np.zeros((16, 3), np.int32)},
    {"private": np.zeros((16, 3, 1))},
    {"more": np.zeros(3)},
    {"private": np.zeros((8, 3), np.float32)},
]


def test_arrays_of_another_run_are_rejected(tmp_path):
    """Only padding with zeros may be added to, or removed from, an axis of clients."""
    save(tmp_path, spread(8))
    for change in OF_ANOTHER_RUN:
        change = {name: jax.device_put(a, place(8, name)) for name, a in change.items()}
        with pytest.raises(BadInput, match="its arrays"):
            restore(tmp_path, spread(8) | change)


@pytest.mark.parametrize("devices", in_ci([8], [8, 1]))
def test_a_state_may_be_donated_while_it_is_being_saved(devices, tmp_path):
    """The next rounds reuse the memory of the state while it is still being written."""
    state = {name: a for name, a in spread(devices, wide=50_000).items() if name != "keys"}
    like = jax.tree.map(np.array, state)
    play = jax.jit(partial(jax.tree.map, lambda a: a + 1), donate_argnums=0)
    play(jax.tree.map(jnp.copy, state))  # compiled
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(4, state)
    for _ in range(5):
        state = play(state)
    checkpoints.close()
    toys.same(restore(tmp_path, like), like)


def test_a_sharded_array_is_never_gathered_on_the_host(tmp_path, monkeypatch):
    """Neither saving nor restoring copies the whole array to the host."""
    state = {name: a for name, a in spread(8).items() if name in ("private", "seeds")}
    monkeypatch.setattr(digest, "PIECE", 0)
    shape, asarray = state["seeds"].shape, np.asarray

    def watched(a, *args, **options):
        assert getattr(a, "shape", ()) != shape
        return asarray(a, *args, **options)

    monkeypatch.setattr(np, "asarray", watched)
    save(tmp_path, state)
    restored = restore(tmp_path, state)
    monkeypatch.undo()
    toys.same(restored, state)
