"""Checkpoints: whatever has happened to their files, what is restored is what was saved."""

import errno
import logging
import random
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab.errors import BadInput
from fedjax_lab.running.checkpoint import Checkpoints, placed

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
    """A copy of it."""
    return shutil.copytree(saved, tmp_path / "checkpoints")


def newest(folder):
    checkpoints = Checkpoints(folder)
    try:
        rounds, saved = checkpoints.newest()
    finally:
        checkpoints.close()
    leaves = placed(saved, jax.tree.leaves(STATE))
    toys.same(leaves, jax.tree.leaves(state_after(rounds)))
    dtypes = [np.asarray(a).dtype for a in jax.tree.leaves(STATE)]
    assert [a.dtype for a in leaves] == dtypes
    return rounds


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def flip(path, choose):
    """Flips one bit of a file."""
    content = bytearray(path.read_bytes())
    content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    path.write_bytes(content)


def test_typed_keys_are_restored_with_their_type_and_seeds_axis(tmp_path):
    """One key, keys of several clients and seeds, and keys of another generator."""
    keys = jax.random.split(jax.random.key(3), (2, 5))
    state = {"one": keys[0, 0], "all": keys, "rbg": jax.random.key(1, impl="rbg"), "n": np.ones(2)}
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, state)
    checkpoints.wait()
    saved = checkpoints.newest()[1]
    checkpoints.close()
    like, tree = jax.tree.flatten(state)
    again = tree.unflatten(placed(saved, like))
    assert jax.tree.map(lambda a: a.dtype, again) == jax.tree.map(lambda a: a.dtype, state)
    toys.same(again, state)
    assert jax.random.normal(again["one"]) == jax.random.normal(keys[0, 0])


def test_every_kind_of_leaf_is_restored_and_two_checkpoints_are_kept(folder):
    assert newest(folder) == 5
    assert sorted(path.name for path in folder.iterdir()) == ["2", "5"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_bit_is_never_restored(seed, folder, capsys):
    """Any bit of any file; a flip in what is not the state (a time stamp) may go unnoticed."""
    choose = random.Random(seed)
    flip(choose.choice(files_of(folder / "5")), choose)
    rounds = newest(folder)
    said = capsys.readouterr().err
    assert rounds in (2, 5) and said.count("\n") == (rounds == 2)
    assert rounds == 5 or f"checkpoint 5 in {folder} is damaged; 2 is used" in said


def test_a_checkpoint_of_lost_or_empty_files_is_damaged(folder, capsys):
    for path in files_of(folder / "5"):
        path.write_bytes(b"")
    assert newest(folder) == 2
    assert capsys.readouterr().err.count("\n") == 1
    shutil.rmtree(folder / "5/leaves")
    assert newest(folder) == 2


def test_without_a_whole_checkpoint_there_is_one_line(folder, capsys):
    for rounds in "25":
        shutil.rmtree(folder / rounds / "leaves")
    with pytest.raises(BadInput, match="no checkpoint in .* is whole"):
        newest(folder)
    assert capsys.readouterr().err == ""
    assert (folder / "5").exists() and (folder / "2").exists()


def test_what_is_no_checkpoint_is_no_obstacle(folder, capsys):
    for name in ("7", "notes", "6.orbax-checkpoint-tmp-1"):
        (folder / name).mkdir()
    (folder / "9").write_text("")
    (folder / "readme.txt").write_text("")
    assert newest(folder) == 5 and capsys.readouterr().err == ""
    checkpoints = Checkpoints(folder)
    checkpoints.forget_after(5)
    checkpoints.save(7, state_after(7))
    checkpoints.close()
    assert newest(folder) == 7


def test_a_copy_under_another_number_is_not_that_checkpoint(folder, capsys):
    shutil.copytree(folder / "5", folder / "8")
    assert newest(folder) == 5
    assert f"checkpoint 8 in {folder} is damaged; 5 is used" in capsys.readouterr().err


def test_an_empty_folder_holds_none(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest() == (0, [])
    checkpoints.close()
    (tmp_path / "3").mkdir()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest() == (0, [])
    checkpoints.close()


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
    """Threads of orbax and tensorstore would tell of it too, in hundreds of lines."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    full = SimpleNamespace(total=2**30, free=2**10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(OSError) as caught:
        checkpoints.save(1, STATE)
    assert caught.value.errno == errno.ENOSPC
    assert not any((tmp_path / "checkpoints").iterdir())
    full.total = full.free = 0  # a file system that does not say
    checkpoints.save(1, state_after(1))
    checkpoints.close()
    assert newest(tmp_path / "checkpoints") == 1


def test_what_orbax_raises_is_not_logged_as_well(tmp_path, caplog):
    Checkpoints(tmp_path / "checkpoints").close()
    log = logging.getLogger("absl")
    for path, count in (("site-packages/orbax/checkpoint/x.py", 0), ("mine.py", 1)):
        log.handle(log.makeRecord("absl", logging.ERROR, path, 1, "raised", (), None))
        assert len(caplog.records) == count
