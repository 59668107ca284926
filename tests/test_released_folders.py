"""Folders of runs that released versions have begun load, report and resume.

`golden/run_VERSION.zip` has the folder of a run of this version: SCAFFOLD on the examples of
`toys.write_examples` (config.data.path=data.npz), evaluated after 2, 4 and 6 rounds. This version
draws other test examples, so that the file names those of the run, `toys.random_split`.
"""

import csv
import json
import zipfile
from pathlib import Path

import pytest
import toys
from commands import call, contents, refusal
from inputs import complaint

import fedjax_lab
from fedjax_lab.commands import report
from fedjax_lab.running.storage import metric_rows

GOLDEN = Path(__file__).with_name("golden")
TRAIN_LOSS = {"0.1.0": 0.261214, "0.2.0": 0.315528}  # of round 8, continued by version 0.2.0
VERSIONS = list(TRAIN_LOSS)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A function that writes a version's folder, beside which the examples are."""
    monkeypatch.chdir(tmp_path)
    toys.write_examples(tmp_path / "data.npz", split=toys.random_split())

    def write(version):
        zipfile.ZipFile(GOLDEN / f"run_{version}.zip").extractall("run")
        return tmp_path / "run"

    return write


def reported(capsys, *arguments):
    """The row of a report of the folder `run`, as CSV."""
    capsys.readouterr()
    assert report.main(["run", "--format=csv", *arguments]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    return row


@pytest.mark.parametrize("version", VERSIONS)
def test_every_released_version_has_a_folder_that_reports(version, begun, capsys):
    begun(version)
    row = reported(capsys)
    last = metric_rows.read_metrics(Path("run/metrics.jsonl"))[-1]
    assert float(row["mean"]) == last["accuracy"]["mean"] and row["rounds"] == "6.0"


def test_no_released_version_is_forgotten():
    changelog = (GOLDEN.parents[1] / "CHANGELOG.md").read_text()
    released = {line[4:].partition("]")[0] for line in changelog.splitlines() if "## [" in line}
    assert released - {"Unreleased"} == set(VERSIONS)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_folder_loads_resumes_and_reports(version, begun, capsys):
    """New rows have more measures, which are blank in the rows before."""
    folder = begun(version)
    run = fedjax_lab.load("run")
    data = run.experiment.dataset
    scores = run.score((data.x[data.test], data.y[data.test]))
    assert scores["global"] == pytest.approx(run.rows[-1]["global"], abs=1e-4)
    before = (folder / "metrics.jsonl").read_text()
    assert call("--resume", "--workdir=run", "--config.run.rounds=8") == 0
    assert (folder / "metrics.jsonl").read_text().startswith(before)
    *earlier, last = metric_rows.read_metrics(folder / "metrics.jsonl")
    assert last["train_loss"] == pytest.approx(TRAIN_LOSS[version], abs=1e-4)
    assert "gini" in last["accuracy"] and "gini" not in earlier[-1]["accuracy"]
    assert float(reported(capsys)["accuracy.gini mean"]) == last["accuracy"]["gini"]


@pytest.mark.parametrize(
    "key, value",
    [("method.name", "fedopt"), ("privacy.name", "central")],
    ids=["fedopt", "private"],
)
def test_a_run_whose_next_rounds_would_differ_is_refused_untouched(key, value, begun, capsys):
    folder = begun("0.2.0")
    config = json.loads((folder / "config.json").read_text())
    section, name = key.split(".")
    config["method"] = {"name": "fedavg"}
    config["privacy"] = {"name": "none"}
    config[section] = {name: value}
    if section == "privacy":
        config["run"]["cohort"], config[section] = 3, {**config[section], "sampling": "poisson"}
    (folder / "config.json").write_text(json.dumps(config))
    before = contents(folder)
    error = refusal(capsys, "--resume", "--workdir=run", "--config.run.rounds=8")
    assert "which only version 0.2.0 can continue" in error
    assert contents(folder).items() <= before.items()


@pytest.mark.slow
def test_a_damaged_checkpoint_of_the_first_version_is_noticed(begun):
    folder = begun("0.1.0")
    description = folder / "checkpoints/6/digest/metadata"
    description.write_text(json.dumps({"sha256": "0"}))
    assert "its arrays do not match their checksum" in complaint(fedjax_lab.load, "run")
