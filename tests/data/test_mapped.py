"""Tests the source of user-defined arrays that stay on disk."""

import json
import os

import numpy as np
import pytest
import toys
from commands import call, comparable
from inputs import complaint

from fedjax_lab.data.arrays import arrays
from fedjax_lab.data.mapped import mapped


def save(folder, **members):
    folder.mkdir(exist_ok=True)
    for name, array in members.items():
        np.save(folder / f"{name}.npy", array)
    return folder


RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (20, 6, 5), dtype=np.uint8), RNG.integers(0, 3, 20)
SPLIT = np.arange(20) % 4 == 0
DOMAIN = np.array(["north", "south"])[np.arange(20) % 2]


def test_mapped_arrays_equal_the_same_arrays_in_an_npz_file(tmp_path):
    folder = save(tmp_path / "own", x=X, y=Y, domain=DOMAIN, test=SPLIT, client=Y + 7)
    (folder / "classes.json").write_text(json.dumps([*"abcd"]))
    more = {"domain": DOMAIN, "client": Y + 7, "split": SPLIT.astype(int), "classes": [*"abcd"]}
    np.savez(tmp_path / "own", x=X, y=Y, **more)
    save(tmp_path / "less", x=X, y=Y)
    np.savez(tmp_path / "less", x=X, y=Y)
    for name in ("own", "less"):
        data = mapped(path=str(tmp_path / name))
        assert isinstance(data.x, np.memmap) and data.x.dtype == np.uint8
        for a, b in zip(data, arrays(path=str(tmp_path / f"{name}.npz")), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_run_on_mapped_arrays_has_the_same_metrics(tmp_path):
    toys.write_examples(tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as members:
        folder = save(tmp_path / "own", **members)
    config = toys.write_config(tmp_path, run={"rounds": 2, "eval_every": 1})
    assert call(f"--config={config}", f"--workdir={tmp_path / 'a'}") == 0
    mapped_flags = f"--config.data.name=mapped --config.data.path={folder}".split()
    assert call(f"--config={config}", f"--workdir={tmp_path / 'b'}", *mapped_flags) == 0
    assert comparable(tmp_path / "a") == comparable(tmp_path / "b")


def cut(file):
    file.write_bytes(file.read_bytes()[:-100])


def rows(**members):
    return lambda folder: save(folder, **members)


BROKEN = {
    "no x": (lambda f: os.remove(f / "x.npy"), "has no x.npy"),
    "no y": (lambda f: os.remove(f / "y.npy"), "has no y.npy"),
    "cut": (lambda f: cut(f / "x.npy"), "x.npy cannot be read"),
    "no array": (lambda f: (f / "x.npy").write_bytes(b"<html>"), "x.npy cannot be read"),
    "empty": (lambda f: (f / "y.npy").write_bytes(b""), "y.npy cannot be read"),
    "objects": (rows(y=np.array([{}] * 20, object)), "y.npy cannot be read"),
    "pipe": (lambda f: (os.remove(f / "x.npy"), os.mkfifo(f / "x.npy")), "it is a pipe"),
    "client pipe": (
        lambda f: os.mkfifo(f / "client.npy"),
        "client.npy cannot be read (it is a pipe",
    ),
    "doubles": (
        rows(x=X / 2),
        "x.npy has type float64, not one of uint8, int8, int16, int32, float32",
    ),
    "other bytes": (rows(x=X.astype(">f4")), "has type >f4"),
    "a list": (rows(x=X[:, 0, 0]), "has shape [20]"),
    "no examples": (rows(x=X[:0]), "x.npy"),
    "Fortran": (rows(x=np.asfortranarray(X)), "is in Fortran order"),
    "few labels": (rows(y=Y[:7]), "y.npy has shape [7], but x.npy has 20 examples"),
    "labels below 0": (rows(y=Y - 1), "y is -1 in row"),
    "real labels": (rows(y=Y / 2), "y must hold integers"),
    "real domains": (rows(domain=Y / 2), "domain must hold integers or strings"),
    "real clients": (rows(client=Y / 2), "client must hold integers or strings"),
    "few clients": (rows(client=Y[:7]), "client.npy has shape [7], but x.npy has 20 examples"),
    "other flags": (rows(test=Y), "test.npy: its entries must be False or True"),
    "no training": (rows(test=np.ones(20, bool)), "no training examples"),
    "unknown": (rows(tset=SPLIT), "unknown file 'tset.npy'; did you mean 'test.npy'?"),
    "names": (lambda f: (f / "classes.json").write_text("{}"), "it is not a list of names"),
    "no names": (lambda f: (f / "classes.json").write_text("["), "classes.json cannot be read"),
    "few names": (lambda f: (f / "classes.json").write_text('["a"]'), "not in 0 .. 0"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_invalid_files_are_a_one_line_error(case, tmp_path):
    damage, expected = BROKEN[case]
    folder = save(tmp_path / "own", x=X, y=Y)
    damage(folder)
    message = complaint(mapped, path=str(folder))
    assert message.startswith(str(folder)) and expected in message


def test_an_empty_path_or_missing_folder_is_rejected(tmp_path):
    assert "data.path is empty" in complaint(mapped, path="")
    assert "is not a folder" in complaint(mapped, path=str(tmp_path / "nothing"))
