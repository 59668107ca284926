"""A folder has one owner, until the process of the owner ends."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest
from processes_beside import another_process

from fedjax_lab.errors import BadInput
from fedjax_lab.running.storage import lock


def test_a_second_owner_is_rejected_until_the_first_process_ends(tmp_path):
    with another_process(tmp_path / ".lock") as process:
        for _ in range(2):
            with pytest.raises(BadInput, match=f"{tmp_path} is in use"), lock.owned(tmp_path):
                pass
        with pytest.raises(BadInput, match="in use"):
            lock.check_free([tmp_path / "new", tmp_path])
        process.kill()
        process.wait()
        assert (tmp_path / ".lock").exists()  # the remaining file does not block
        with lock.owned(tmp_path):
            pass
    assert not list(tmp_path.iterdir())


def test_the_owner_may_lock_again_but_another_thread_may_not(tmp_path):
    errors = []

    def lock_folder():
        try:
            with lock.owned(tmp_path):
                pass
        except BadInput as error:
            errors.append(error)

    def in_a_thread():
        thread = threading.Thread(target=lock_folder)
        thread.start()
        thread.join()

    with lock.owned(tmp_path):
        with lock.owned(tmp_path / "." / ""):
            in_a_thread()
        in_a_thread()
        assert len(errors) == 2
    in_a_thread()
    assert len(errors) == 2


def test_a_new_folder_that_stays_empty_is_removed(tmp_path):
    with pytest.raises(KeyboardInterrupt), lock.owned(tmp_path / "a/b"):
        assert (tmp_path / "a/b").is_dir()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with lock.owned(tmp_path / "a/b"):
        (tmp_path / "a/note").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["note"]
    with lock.owned(tmp_path):  # a folder that already existed is not removed
        (tmp_path / "a/note").unlink()
        (tmp_path / "a").rmdir()
    assert tmp_path.is_dir()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_gives_one_warning(number, tmp_path, monkeypatch, capsys):
    def flock(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock.owned(tmp_path / "run"), lock.owned(tmp_path / "run"):
        (tmp_path / "run/note").touch()
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and f"{tmp_path / 'run'} does not support locks" in warning
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["note"]


def test_shares_of_a_sweep_with_a_common_cell_exclude_each_other(tmp_path):
    with another_process(tmp_path / ".share-1-of-4.lock"):
        for free in ("0/2", "0/4", "2/4", "6/8"):
            with lock.owned_share(tmp_path, free), lock.planning(tmp_path):
                pass
        for taken in ("1/4", "0/1", "1/2", "5/8", "0/3"):
            with pytest.raises(BadInput, match="in use"), lock.owned_share(tmp_path, taken):
                pass
    with lock.owned_share(tmp_path, "1/4"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_not_utf8_or_in_a_removed_folder_is_rejected(tmp_path, monkeypatch):
    """Checkpoints could not be written in such a folder."""
    bad = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(BadInput, match="path in valid UTF-8"), lock.owned(bad / "run"):
        pass
    assert not bad.exists()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadInput, match="the current folder has been removed"):
        with lock.owned(Path("run")):
            pass
