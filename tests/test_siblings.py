"""Seeds that a run does not have: they are a run of their own, in a folder beside it."""

import csv
import json

import pytest
import toys
from commands import call, comparable
from inputs import complaint
from shared_programs import shared_programs  # noqa: F401
from stops import stopping_after

import fedjax_lab
from fedjax_lab.commands import report
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import siblings


def begin(folder, seeds):
    folder.mkdir()
    sections = {"data": {}, "partition": {}, "method": {"name": "fedavg"}, "run": {}}
    (folder / "config.json").write_text(json.dumps(sections | {"seeds": seeds}))


def test_seeds_that_no_folder_has_are_a_new_run(tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert siblings.plan(run, [3, 1]) == {"": [3, 1]}
    begin(run, [3, 1])
    assert siblings.plan(run, [1, 3]) == {"": [3, 1]}
    assert siblings.plan(run, [1, 2, 3, 9, 4]) == {"": [3, 1], "-seeds-2-9": [2, 4, 9]}
    begin(tmp_path / "run-seeds-2", [2])
    begin(tmp_path / "run-seeds-7-8", [7, 8])
    begin(tmp_path / "run-2", [9])
    begun = {"": [3, 1], "-seeds-2": [2]}
    assert siblings.plan(run, range(1, 4)) == begun
    assert siblings.plan(run, range(1, 5)) == {**begun, "-seeds-4": [4]}
    assert siblings.plan(run, [1]) == {"": [1]}  # resuming it is refused
    message = complaint(siblings.plan, run, [1, 2, 3, 7])
    assert f"{run}-seeds-7-8 holds another run: its config.seeds is [7, 8], not" in message
    monkeypatch.chdir(run)
    there = [f"{run}-seeds-2", f"{run}-seeds-7-8"]
    for name in (".", "../run/../run", str(run)):
        assert siblings.folders(type(run)(name).resolve()) == there
    assert siblings.folders(type(run)(".")) == there
    assert siblings.place(type(run)("."), "-seeds-4") == f"{run}-seeds-4"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    toys.write_examples(folder / "data.npz", split=toys.random_split())
    run = {"rounds": 4, "eval_every": 2, "cohort": 3}
    return toys.write_config(folder, run=run, engine={"seeds": "sequential"})


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_more_seeds_are_trained_beside_the_run_and_reported_with_it(
    toy, tmp_path, monkeypatch, capsys
):
    """The command first finishes the run, and an interrupted one is continued by the same."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert call(f"--config={toy}", f"--workdir={whole}", "--seeds=0-3") == 0
    with monkeypatch.context() as patch:
        stopping_after(1, patch)
        assert call(f"--config={toy}", f"--workdir={run}") == 130
    more = "--resume", f"--workdir={run}"
    assert call(*more, "--seeds=0-2") == 0
    before = content(tmp_path)
    assert f"\nseeds 1,2: a run of their own in {run}-seeds-1-2\n" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        stopping_after(3, patch)
        assert call(*more, "--seeds=0-3") == 130
    assert f"the same command and --workdir={run} --resume" in capsys.readouterr().err
    assert call(*more, "--seeds=3,2,1,0", "--config.run.eval_every=1") == 0  # a row needs one value
    assert before.items() <= content(tmp_path).items()
    rows = [row for each in ("", "-seeds-1-2", "-seeds-3") for row in comparable(f"{run}{each}")]
    assert sorted(rows, key=lambda row: (row["round"], row["seed"])) == comparable(whole)
    capsys.readouterr()
    assert report.main([str(run), "--format=csv"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["n"] == "4"
    assert call(*more, "--seeds=1,2") == 2
    assert "its config.seeds is [0], not [1, 2]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_call_from_python_is_one_run(toy, tmp_path):
    run = tmp_path / "run"
    fedjax_lab.run(load_config(toy), workdir=run, quiet=True)
    with pytest.raises(BadInput, match=r"seeds is \[0\], not \[0, 1\]; a run keeps its seeds"):
        fedjax_lab.run(None, workdir=run, seeds=[0, 1], resume=True, quiet=True)


def test_only_folders_with_exactly_such_a_name_are_beside_a_run(tmp_path):
    for name in (
        "a",
        "a-seeds-2",
        "a-seeds-3-5",
        "a-seeds-2.bak",
        "a-seeds-2-seeds-5",
        "ab-seeds-1",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "a-seeds-7").write_text("a file")
    places = [place.rpartition("/")[2] for place in siblings.folders(tmp_path / "a")]
    assert places == ["a-seeds-2", "a-seeds-3-5"]
