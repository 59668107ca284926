"""Published data sets, fetched from a local server, are complete or absent."""

import hashlib
import itertools
import os
import time
from functools import partial
from types import SimpleNamespace

import kills
import numpy as np
import pytest
from image_files import IMAGES
from inputs import complaint
from loopback import Server
from processes_beside import another_process
from published import contents, offered, zipped

from fedjax_lab.commands import data as command
from fedjax_lab.data import places
from fedjax_lab.data.fetching import catalog, download, fetch, presence, unpack
from fedjax_lab.data.sources import idx
from fedjax_lab.experiment.registry import NAMED, keyword_defaults, look_up
from fedjax_lab.running.storage import lock

FETCHED = [name for name, data in catalog.PUBLISHED.items() if data.files]
EXHAUSTIVE = pytest.mark.exhaustive
BY_HAND = [name for name, data in catalog.PUBLISHED.items() if data.by_hand]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The only folder that is searched for data."""
    where = tmp_path / "home"
    monkeypatch.setattr(places, "PLACES", (str(where),))
    release = idx.FASHION._replace(elsewhere=())
    monkeypatch.setattr(idx, "FASHION", release)
    monkeypatch.setitem(presence.FIRST, "fashion_mnist", partial(idx.has_files, release))
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / "cache"))
    clock = SimpleNamespace(sleep=lambda seconds: None, time=time.time)
    monkeypatch.setattr(download, "time", clock)
    return where


@pytest.fixture
def server(monkeypatch):
    """A server with tiny data sets under the names of all published ones."""
    with Server().running() as running:
        tiny = {name: offered(name, running) for name in FETCHED}
        monkeypatch.setattr(catalog, "PUBLISHED", {**catalog.PUBLISHED, **tiny})
        yield running


@pytest.fixture
def call(capsys):
    def run(*words):
        code = command.main(["data", *map(str, words)])
        out, err = capsys.readouterr()
        assert err.count("\n") <= 1  # no progress bar without a terminal
        return code, out, err

    return run


def load(name, folder=""):
    data = catalog.PUBLISHED[name]
    sizes = {"classes": 2, "size": 16} if name == "domainnet_full" else {}
    return look_up("data", data.reader or name)(folder=str(folder), **dict(data.settings), **sizes)


def tree(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", FETCHED)
def test_a_fetched_data_set_is_read_without_a_folder(server, call, folder, name):
    assert f"fedjax-lab data get {name}" in complaint(load, name)
    code, out, err = call("get", name)
    assert (code, err) == (0, "")
    assert os.listdir(folder) == [catalog.PUBLISHED[name].target]
    flags = f"--config.data.name={catalog.PUBLISHED[name].reader or name}"
    for key, value in catalog.PUBLISHED[name].settings:
        flags += f" --config.data.{key}={value}"
    for text in ("license: ", "cite: ", "verified", f"use it with {flags}\n"):
        assert text in out
    where = folder / catalog.PUBLISHED[name].target
    assert len(load(name).x) > 0
    num_requests = len(server.requests)
    code, out, _ = call("get", name)
    assert code == 0 and "already fetched" in out and len(server.requests) == num_requests
    code, out, _ = call("check", name)
    assert code == 0 and out == f"{name:18}  verified, {where}\n"


@pytest.mark.parametrize("name", ["svhn", "tiny_imagenet", "retinamnist"])
def test_a_data_set_may_be_fetched_to_a_chosen_folder(server, call, tmp_path, folder, name):
    chosen = tmp_path / "own"
    code, out, _ = call("get", name, f"--folder={chosen}")
    assert code == 0 and not folder.exists()
    flag = f"--config.data.folder={chosen}"
    assert flag in out and flag in call("get", name, f"--folder={chosen}")[1]
    given = out.rpartition("--config.data.folder=")[2].strip()
    assert len(load(name, given).x) > 0
    assert call("check", name, f"--folder={chosen}")[0] == 0
    code, _, err = call("check", name)
    assert code == 2 and err.startswith("error: ") and f"is not in {folder}" in err


@pytest.mark.parametrize("name", [*FETCHED, *BY_HAND])
def test_a_run_without_data_names_the_command(name, capsys):
    """The command is named even if the line is too long and its middle is cut."""
    with pytest.raises(Exception) as caught:
        load(name)
    command.command.report_failure(str(caught.value))
    assert f"`fedjax-lab data get {name}`" in capsys.readouterr().err


def test_data_sets_to_fetch_by_hand_are_explained(call):
    for name in BY_HAND:
        code, out, err = call("get", name)
        assert code == 2 and "must be fetched by hand" in err
        output = " ".join(out.split())
        for text in (catalog.PUBLISHED[name].by_hand, catalog.PUBLISHED[name].citation):
            assert " ".join(text.split()) in output


def test_every_source_is_in_the_catalog():
    assert set(NAMED["data"]) - set(catalog.NOTHING_TO_FETCH) == {
        name for name in (*BY_HAND, *FETCHED) if not catalog.PUBLISHED[name].reader
    }
    for name in catalog.PUBLISHED:
        assert "folder" in keyword_defaults(look_up("data", catalog.PUBLISHED[name].reader or name))


def test_addresses_and_checksums_are_well_formed():
    lengths = {"sha256": 64, "md5": 32}
    for name in FETCHED:
        files = catalog.PUBLISHED[name].files
        for file in files:
            algorithm, digits = file.checksum.split(":")
            assert len(digits) == lengths[algorithm] and int(digits, 16)
            assert file.size == 0 or file.size > 1000
            for address in file.addresses:
                assert address.startswith(("http://", "https://")) and ".." not in address
            assert f"/{file.name}" in file.addresses[0]
        assert len({file.checksum for file in files}) == len(files)
        assert set(contents(name)) == {file.name for file in files}


def test_list_shows_which_data_sets_are_present_and_their_details(server, call, folder):
    """This includes files that were added by hand."""
    call("get", "svhn")
    (folder / "medmnist").mkdir(parents=True)
    for name in ("medmnist/bloodmnist.npz", "octmnist.npz"):
        (folder / name).touch()
    code, out, err = call("list")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0 and set(catalog.PUBLISHED) <= set(lines)
    here = {name for name, line in lines.items() if " here " in line}
    assert here == {"svhn", "octmnist", "bloodmnist"}
    assert "non-commercial use only" in lines["svhn"] and "by hand" in lines["pacs"]
    code, out, _ = call("list", "svhn", "pacs")
    file = catalog.PUBLISHED["svhn"].files[0]
    assert file.checksum in out and file.addresses[0] in out and "DomainBed" in out


def test_a_data_set_of_unpublished_size_is_fetched_and_checked(server, call, folder):
    data = catalog.PUBLISHED["k49"]
    files = tuple(file._replace(size=0) for file in data.files)
    catalog.PUBLISHED["k49"] = data._replace(files=files)
    assert "unknown" in call("list")[1] and "size not published" in call("list", "k49")[1]
    code, out, _ = call("get", "k49")
    assert code == 0 and "Kuzushiji-49, of unknown size, to" in out and len(load("k49").x) == 8
    file = folder / data.files[0].path
    file.write_bytes(file.read_bytes()[:-1])
    code, _, err = call("check", "k49")
    assert code == 2 and f"{file} is damaged" in err


REFUSED = {  # {arguments: words of the error}
    "": "no command is given; valid: check, get, list, prepare",
    "get": "no data set is named",
    "get cifar11": "no data set 'cifar11'; did you mean 'cifar10'?",
    "list nothing": "no data set 'nothing'; valid: ",
    "get digit_domains": "nothing to fetch: digit_domains is generated on this machine",
    "get medmnist": "fetch one by its own name: pathmnist, dermamnist",
    "get svhn --folder=gs://a": "--folder must be a local path",
    "get svhn --mirror=ftp://a": "--mirror must begin with http:// or https://, got 'ftp://a'",
    "prepare --config=configs/quickstart.py": "--out is missing",
    "prepare --confg=a --out=o": "unexpected argument '--confg=a'; did you mean '--config'?",
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_arguments_are_errors(call, words):
    code, out, err = call(*words.split())
    assert code == 2 and REFUSED[words] in err and not out


def test_a_mirror_must_have_the_same_bytes(server, call, folder):
    with Server().running() as other:
        for name, content in contents("svhn").items():
            other.files[f"/of/mine/{name}"] = content
        assert call("get", "svhn", f"--mirror={other.address}/of/mine/")[0] == 0
        assert len(other.requests) == 2 and server.requests == []
        other.files["/cifar-10-python.tar.gz"] = b"something else"
        code, _, err = call("get", "cifar10", f"--mirror={other.address}")
    assert code == 1 and "it has 14 bytes" in err and os.listdir(folder) == ["svhn"]


def test_files_fetched_before_a_failure_are_kept_and_no_folder_is_left_without_any(
    server, call, folder
):
    kept = dict(server.files)
    server.files.clear()
    code, out, err = call("get", "svhn")
    assert code == 1 and "HTTP 404" in err and "the same command continues" in err
    assert not folder.exists()
    server.files.update(kept)
    del server.files["/svhn/test_32x32.mat"]
    requests = len(server.starts("/svhn/train_32x32.mat"))
    assert call("get", "svhn")[0] == 1
    assert "no train_32x32.mat" in complaint(load, "svhn")
    assert call("check", "svhn")[0] == 2
    server.files.update(kept)
    assert call("get", "svhn")[0] == 0
    assert len(server.starts("/svhn/train_32x32.mat")) == requests + 1
    assert os.listdir(folder) == ["svhn"] and np.array_equal(load("svhn").x[:5], IMAGES[:5])


@pytest.mark.parametrize(
    "name", ["tiny_imagenet", "svhn", "cifar10", pytest.param("cinic10", marks=EXHAUSTIVE)]
)
def test_a_command_killed_at_any_step_is_continued(server, call, folder, monkeypatch, name):
    """It is killed before each block is written, and before each file or folder is renamed."""
    monkeypatch.setattr(download, "BLOCK", 1500)
    call("get", name)
    whole, target = tree(folder), catalog.PUBLISHED[name].target
    for step in itertools.count(1):
        before, where = kills.at(step), folder / f"killed{step}"
        monkeypatch.setattr(places, "PLACES", (str(where),))
        with monkeypatch.context() as patch:
            for module in (download.os, fetch.os):
                patch.setattr(module, "replace", before(os.replace))
            patch.setattr(fetch.os, "rename", before(os.rename))
            patch.setattr(unpack, "blocks", before(unpack.blocks))
            patch.setattr(download, "_length", before(download._length))
            patch.setattr(fetch.shutil, "rmtree", before(fetch.shutil.rmtree))
            patch.setattr(command.Tenths, "update", before(command.Tenths.update))
            try:
                code, *_ = call("get", name)
                break
            except kills.Killed:
                pass
        if (where / target).exists():
            assert tree(where / target) == tree(folder / target)
        else:
            complaint(load, name)
            assert call("check", name)[0] == 2
        assert call("get", name)[0] == 0 and tree(where) == whole
    assert code == 0 and step > 10


def test_a_second_command_for_the_same_data_set_is_rejected(server, call, folder):
    staged = fetch.stage("svhn", folder)
    staged.mkdir(parents=True)
    with another_process(staged / lock.LOCK):
        code, _, err = call("get", "svhn")
        assert code == 2 and "is in use by another command" in err and server.requests == []
        assert call("get", "cifar10")[0] == 0  # another data set
    assert call("get", "svhn")[0] == 0


def test_check_finds_every_damaged_or_missing_file(server, call, folder):
    for name in ("svhn", "tiny_imagenet", "cifar10"):
        call("get", name)
    for path in [path for path in folder.rglob("[!.]*") if path.is_file()]:
        good = path.read_bytes()
        for bad in (good[:-1], good[:-1] + bytes([good[-1] ^ 1]), None):
            path.unlink() if bad is None else path.write_bytes(bad)
            code, out, err = call("check")
            gone = bad is None and path.name == "cifar-10-python.tar.gz"
            assert (code == 2 and path.name in err) or gone
        path.write_bytes(good)
    code, out, _ = call("check")
    assert code == 0 and out.count("verified") == 3


def test_other_files_in_the_place_of_a_data_set_are_never_changed(server, call, folder):
    (folder / "svhn").mkdir(parents=True)
    (folder / "svhn" / "train_32x32.mat").write_bytes(b"mine")
    code, _, err = call("get", "svhn")
    assert code == 2 and "exists, but is not what would be fetched" in err
    assert "train_32x32.mat has 4 bytes" in err
    assert tree(folder) == {"svhn/train_32x32.mat": b"mine"} and server.requests == []
    (folder / "tiny-imagenet-200").mkdir()
    (folder / "tiny-imagenet-200" / "wnids.txt").write_text("n01")
    assert "here, but not checked: `get` has not fetched it" in call("check", "tiny_imagenet")[1]


def test_a_full_disk_is_reported_before_anything_is_fetched(server, call, folder, monkeypatch):
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda folder: usage)
    code, _, err = call("get", "svhn")
    assert code == 1 and "not enough space on the disk" in err and "1000 are free" in err
    assert server.requests == [] and not folder.exists()


def test_an_archive_without_the_data_set_is_not_installed(server, call, folder, monkeypatch):
    content = zipped({"elsewhere/wnids.txt": b"n01", "__MACOSX/x": b""})
    server.files["/tiny_imagenet/tiny-imagenet-200.zip"] = content
    data, checksum = catalog.PUBLISHED["tiny_imagenet"], hashlib.sha256(content).hexdigest()
    file = data.files[0]._replace(size=len(content), checksum=f"sha256:{checksum}")
    catalog.PUBLISHED["tiny_imagenet"] = data._replace(files=(file,))
    code, _, err = call("get", "tiny_imagenet")
    assert code == 2 and "the fetched archives have no tiny-imagenet-200" in err
    assert os.listdir(folder) == [".fetch-tiny_imagenet"]
