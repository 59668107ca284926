"""Checks sweeps: the plan, bad input before any run, and small sweeps from start to end."""

import csv
import json
import os
import signal
import sys
import time

import numpy as np
import own_parts
import pytest
import toys
from children import ROOT, finish, start
from commands import comparable
from inputs import complaint
from shared_programs import shared_programs  # noqa: F401

from fedjax_lab.commands import report, sweep
from fedjax_lab.commands.sweep import Outcome, Shared
from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import aliases, experiment, registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.running import runner
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.sweeping import sweep_folder, sweep_plan, sweep_workers

QUICK = Shared(str(ROOT / "configs/quickstart.py"))


toy = toys.config_file(run={"rounds": 2, "eval_every": 2, "cohort": 3})


def call(*arguments):
    return sweep.main(["sweep", *arguments])


# The plan.


def test_a_grid_setting_that_a_method_lacks_adds_no_cells():
    texts = ["method.mu=0.1,1", "config.model.widths=(4, 5),(6,)", "partition.name=iid"]
    assert list(sweep.parse_grid(texts).items()) == [
        ("method.mu", ["0.1", "1"]),
        ("model.widths", ["(4, 5)", "(6,)"]),
        ("partition.name", ["iid"]),
    ]
    grid = {"method.mu": ["0.1", "1"], "local.lr": ["0.1", "1e-3"]}
    shared = QUICK._replace(overrides=[("run.rounds", "3")], seeds=[4, 5])
    cells = sweep.plan(shared, ["fedavg", "fedprox"], grid)
    assert list(cells) == [
        "fedavg,local.lr=0.1",
        "fedavg,local.lr=0.001",
        "fedprox,mu=0.1,local.lr=0.1",
        "fedprox,mu=0.1,local.lr=0.001",
        "fedprox,mu=1.0,local.lr=0.1",
        "fedprox,mu=1.0,local.lr=0.001",
    ]
    cell = cells["fedprox,mu=1.0,local.lr=0.001"]
    assert cell.grid == {"method.mu": "1", "local.lr": "1e-3"}
    assert (cell.config.method.mu, cell.config.local.lr) == (1.0, 0.001)
    assert cell.saved["seeds"] == [4, 5]
    assert all(c.config.run.rounds == 3 and c.seeds == [4, 5] for c in cells.values())
    grid = {"method.base": ["fedavg", "fedprox"], "method.mu": ["0.1", "1"]}
    names = [f"client2vec,base={base}" for base in ("fedavg", "fedprox,mu=0.1", "fedprox,mu=1.0")]
    assert list(sweep.plan(QUICK, ["client2vec"], grid)) == names  # a base adds its settings
    grid = {"data.unseen": ["a/b c", "a_b"], "partition.name": ["iid"]}
    names = list(sweep.plan(QUICK, [""], grid))  # which are names of folders
    assert len(names) == 2 and not any("/" in name for name in names)
    assert names[1] == "fedavg,data.unseen=a_b,partition.name=iid"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file own.py in the current folder, with user-defined parts and a config."""
    monkeypatch.chdir(tmp_path)
    return own_parts.write(tmp_path)


def test_methods_and_values_of_a_grid_may_be_user_defined(own):
    methods = ["fedprox", "near", "own.py:near", f"{own}:near"]
    grid = {"method.pull": ["1"], "model.name": ["mlp", "own.py:Net"]}
    cells = sweep.plan(Shared("own.py"), methods, grid)
    assert list(cells)[:4] == [
        "fedprox,model.name=mlp",
        "fedprox,model.name=own.py:Net",
        "own.py:near,pull=1.0,model.name=mlp",
        "own.py:near,pull=1.0,model.name=own.py:Net",
    ]
    assert len(cells) == 6 and not any("/" in name for name in cells)
    assert cells["own.py:near,pull=1.0,model.name=mlp"].saved["parts"]["own.py:near"]


def test_a_sweep_rejects_lambdas_and_a_changed_source(own, tmp_path):
    own.write_text(own.read_text().replace('"name": halves', '"name": lambda *of: halves(*of)'))
    message = complaint(sweep.plan, Shared("own.py"), ["near"], {})
    assert "config.partition.name=" in message and "<lambda>" in message
    own_parts.write(tmp_path)
    cells = sweep.plan(Shared("own.py"), ["near"], {})
    sweep.write_plan({}, cells, tmp_path / "out")
    assert list(sweep.check_folder(Shared("own.py"), cells, tmp_path / "out")) == list(cells)
    own.write_text(own.read_text() + "# changed\n")
    message = complaint(sweep.check_folder, Shared("own.py"), cells, tmp_path / "out")
    assert "own.py has changed since it began" in message


def test_a_sweep_of_an_earlier_version_resumes(tmp_path, monkeypatch):
    """The same command finds its cells although a key and a value of the grid were renamed."""
    command = {"local.rate": ["0.1"], "engine.strategy": ["vectorised"]}
    monkeypatch.setitem(aliases.ALIASES, "local.rate", "local.lr")
    grid = sweep.parse_grid(f"{key}={','.join(texts)}" for key, texts in command.items())
    cells = sweep.plan(QUICK, ["fedavg"], grid)
    assert list(cells) == ["fedavg,local.lr=0.1,engine.strategy=vectorised"]
    sweep.write_plan({}, cells, tmp_path)
    plan = (tmp_path / "sweep.json").read_text()
    (tmp_path / "sweep.json").write_text(plan.replace("vectorized", "vectorised"))
    assert list(sweep.check_folder(QUICK, cells, tmp_path)) == list(cells)


def test_shares_are_disjoint_and_cover_all_cells():
    cells = {name: None for name in "abcdefg"}
    shares = [sweep.share_of(cells, f"{i}/3") for i in range(3)]
    assert [list(share) for share in shares] == [list("adg"), list("be"), list("cf")]
    assert sweep.share_of(cells, "0/1") == cells and sweep.share_of(cells, "8/9") == {}
    for wrong in ("3/3", "1", "-1/3", "0/0", "a/b"):
        assert "is not I/N" in complaint(sweep.share_of, cells, wrong)


def test_a_folder_accepts_more_cells_of_the_same_sweep_only(tmp_path):
    shared = QUICK._replace(overrides=[("run.rounds", "3")], seeds=[0])
    first = sweep.plan(shared, ["fedavg"], {"local.lr": ["0.1"]})
    (tmp_path / "sweep.json.0123.tmp").touch()  # another share is still writing its plan
    assert sweep.check_folder(shared, first, tmp_path) == {}
    sweep.write_plan({}, first, tmp_path)
    more = sweep.plan(shared, ["fedprox"], {"local.lr": ["0.1", "1"]})
    sweep.write_plan(sweep.check_folder(shared, more, tmp_path), more, tmp_path)
    planned = json.loads((tmp_path / "sweep.json").read_text())["cells"]
    assert list(planned) == [*first, *more]
    for changed, message in (
        ({"overrides": [("run.rounds", "4")]}, "config.run.rounds is 3, not 4"),
        ({"overrides": []}, "config.run.rounds is 3, not 20"),
        ({"seeds": [0, 1]}, "config.seeds is [0], not [0, 1]"),
        ({"overrides": [("run.rounds", "3"), ("local.lr", "1")]}, "config.local.lr is both"),
    ):
        other = shared._replace(**changed)
        cells = sweep.plan(other, ["moon"], {})
        assert message in complaint(sweep.check_folder, other, cells, tmp_path)
    (tmp_path / "sweep.json").unlink()
    (tmp_path / "thesis.txt").touch()
    message = complaint(sweep.check_folder, shared, first, tmp_path)
    assert "something other than a sweep" in message


def test_the_outcome_of_a_cell_is_recorded_and_read(tmp_path):
    assert sweep_folder.ended(tmp_path / "a") is sweep_folder.failure(tmp_path / "a") is None
    sweep.record(Outcome(0), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    sweep.record(Outcome(1, "one\ntwo"), tmp_path / "a")
    assert sweep_folder.ended(tmp_path / "a") is None  # so it is retried
    assert sweep_folder.failure(tmp_path / "a") == Outcome(1, "one\ntwo")
    assert sweep.shown(tmp_path / "a") == "failed: two"
    sweep.record(Outcome(3, "diverged in round 1"), tmp_path / "a")
    assert sweep_folder.ended(tmp_path / "a") == Outcome(3, "diverged in round 1")
    metric_rows.write_json(tmp_path / "a/summary.json", {**toys.SUMMARY, "diverged": {"round": 2}})
    assert sweep_folder.ended(tmp_path / "a") == Outcome(3)


BAD = [
    (["--methods=fedprox", "--grid=method.mo=1"], "did you mean 'method.mu'?"),
    (["--grid=metod.mu=1"], "did you mean 'method'?"),
    (["--grid=mu=1"], "--grid=mu=1 is not SECTION.KEY"),
    (["--grid=local.lr=0.1,"], "--grid=local.lr=0.1, is not"),
    (["--grid=local.lr=1", "--grid=local.lr=2"], "--grid=local.lr is given twice"),
    (["--grid=local.lr=1", "--config.local.lr=2"], "config.local.lr is both"),
    (["--grid=local.lr=fast"], "config.local.lr must be of type float"),
    (["--grid=run.seed=1,2"], "use --seeds"),
    (["--grid=method.name=moon"], "use --methods"),
    (["--methods=fedavg,fedprx"], "did you mean 'fedprox'?"),
    (
        ["--methods=fedavg,moon", "--grid=method.tau=1,0"],
        "method.tau must be above 0, got 0.0",
    ),
    (["--grid=partition.num_clients=6,500"], "fedavg,partition.num_clients=500: "),
    (["--metods=fedavg"] * 400, "did you mean '--methods'?"),
    (["--workers=two"], "--workers"),
    (["--workers=100000"], "--workers must be from 0 to 1000, got 100000"),
    (["--grid=" + "k" * 5000], "is not SECTION.KEY"),
    (["--grid=data.path=" + "x" * 300], "the folder name too long"),
    (["--workers=2", "--together"], "drop one"),
    (["--config.run.rounds"], "--config.run.rounds needs a value"),
    (["--tune=random:2"], "--on=validation needs validation examples: --config.partition.valid"),
    (["--on=test"], "--on needs --tune, which is missing"),
    (["--range=method.mu=log:1,2"], "--range needs --tune"),
    (["--seeds=0-2,1"], "seed 1 is given more than once"),
]


@pytest.mark.parametrize("arguments, message", BAD)
def test_bad_input_is_a_one_line_error_before_any_run(arguments, message, toy, tmp_path, capsys):
    out = tmp_path / "out"
    assert call(f"--config={toy}", f"--out={out}", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert len(error) < 600
    assert not out.exists()


# Small sweeps.

SMALL = ["--methods=fedavg,fedprox", "--grid=method.mu=0.1,1", "--seeds=0,1"]
RUN_FILES = ["config.json", "fingerprint.json", "metrics.jsonl", "names.json", "summary.json"]
NAMES = ["fedavg", "fedprox,mu=0.1", "fedprox,mu=1.0"]


@pytest.fixture(scope="module")
def swept(toy, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "out"
    assert call(f"--config={toy}", f"--out={out}", *SMALL) == 0
    return out


@pytest.mark.slow
def test_each_cell_is_a_run_with_its_files_and_is_not_run_again(swept, toy, capsys, monkeypatch):
    for name in NAMES:
        files = {file.name for file in (swept / name).iterdir()}
        assert files == {*RUN_FILES, "checkpoints", "plots"}
        assert [(r["round"], r["seed"]) for r in comparable(swept / name)] == [(2, 0), (2, 1)]
    config = json.loads((swept / NAMES[2] / "config.json").read_text())
    assert config["method"] == {"name": "fedprox", "mu": 1.0} and config["seeds"] == [0, 1]
    monkeypatch.setattr(runner, "run", lambda *_, **__: pytest.fail("it was run"))
    assert call(f"--config={toy}", f"--out={swept}", *SMALL) == 0
    out = capsys.readouterr().out
    assert "3 of them done" in out
    last = json.loads((swept / NAMES[1] / "summary.json").read_text())["last"]
    mean, std = (metric_rows.headline(last[of]) for of in ("mean", "std"))
    row = next(line for line in out.splitlines() if line.startswith("fedprox  0.1 "))
    assert row.split() == ["fedprox", "0.1", f"{mean:.2f}", "+-", f"{std:.2f}"]


@pytest.mark.exhaustive
def test_more_seeds_of_a_cell_are_a_run_beside_it(toy, tmp_path, capsys):
    """Tables and reports show both as one row; the plan has both."""
    arguments = [f"--config={toy}", f"--out={tmp_path}", "--methods=fedavg"]
    assert call(*arguments, "--seeds=0,1") == 0
    before = comparable(tmp_path / "fedavg")
    assert call(*arguments, "--seeds=0-2") == 0
    assert comparable(tmp_path / "fedavg") == before
    assert [row["seed"] for row in comparable(tmp_path / "fedavg-seeds-2")] == [2]
    assert "2 cells" in (printed := capsys.readouterr().out) and "1 of them done" in printed
    accuracies = [metric_rows.headline(row) for row in before]
    accuracies += [metric_rows.headline(*comparable(tmp_path / "fedavg-seeds-2"))]
    shown = f"{np.mean(accuracies):.2f} +- {np.std(accuracies, ddof=1):.2f}"
    rows = [line.split() for line in printed.splitlines() if line.startswith("fedavg")]
    assert rows[-1] == ["fedavg", *shown.split()]
    assert report.main([str(tmp_path), "--format=csv"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["n"] == "3"
    assert call(*arguments, "--seeds=0-3", "--config.run.rounds=4") == 0
    assert "3 cells" in (printed := capsys.readouterr().out) and "0 of them done" in printed
    assert call("--status", str(tmp_path)) == 0
    assert "3 runs: 3 done" in capsys.readouterr().out
    assert call(*arguments, "--seeds=0", "--config.run.rounds=4") == 2
    assert "its config.seeds is [0, 1], not [0]" in capsys.readouterr().err
    arguments[-1] = "--methods=local"  # another method joins the cells that have runs beside them
    assert call(*arguments, "--seeds=0-2", "--config.run.rounds=4") == 0


@pytest.mark.slow
def test_an_interrupted_sweep_resumes(swept, toy, tmp_path, monkeypatch, capsys):
    """It has the numbers of an uninterrupted sweep and repeats no finished or saved round."""
    out, running, played, run = tmp_path / "out", [], [], runner.run

    def noted(job, *rest, **options):
        running.append(job.config.method.name)
        return run(job, *rest, **options)

    def one_round(self, at_most, play=Engine.play):
        play(self, 1)
        played.append(running[-1])
        if stop and len(played) == 3:  # the first round of the second cell
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(runner, "run", noted)
    monkeypatch.setattr(Engine, "play", one_round)
    stop = True
    assert call(f"--config={toy}", f"--out={out}", *SMALL) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert sweep_folder.ended(out / NAMES[0]) == Outcome(0)
    assert [file.name for file in (out / NAMES[1] / "checkpoints").glob("[0-9]*")] == ["1"]
    assert not (out / NAMES[1] / "error.txt").exists() and not (out / NAMES[2]).exists()
    stop = False
    assert call(f"--config={toy}", f"--out={out}", *SMALL) == 0
    assert played == ["fedavg"] * 2 + ["fedprox"] * 4
    for name in NAMES:
        assert comparable(out / name) == comparable(swept / name)


def test_cells_that_run_together_differ_only_in_numbers_of_method_and_local(tmp_path):
    grid = {"method.mu": ["0.1", "1"], "local.lr": ["0.1", "1"], "local.epochs": ["1", "2"]}
    cells = sweep.plan(QUICK, ["fedavg", "fedprox"], grid)
    names = list(cells)

    def groups():
        found = sweep.alike(cells.values(), tmp_path)
        return [[names.index(cell.name) for cell in group] for group in found]

    assert groups() == [[0, 2], [1, 3], [4, 6, 8, 10], [5, 7, 9, 11]]
    metric_rows.make_folder(tmp_path / names[6])
    metric_rows.write_json(tmp_path / names[6] / "config.json", {})  # it has begun
    assert groups() == [[0, 2], [1, 3], [4, 8, 10], [5, 7, 9, 11], [6]]


@pytest.mark.slow
def test_cells_run_together_have_the_numbers_of_cells_run_one_by_one(toy, swept, tmp_path, capsys):
    """Numbers are equal up to rounding, and each cell saves what it would have saved alone."""
    out = tmp_path / "out"
    assert call(f"--config={toy}", f"--out={out}", *SMALL, "--together") == 0
    assert "one by one" not in capsys.readouterr().out
    for name, together in zip(NAMES, (None, 2, 2), strict=True):
        summary = json.loads((out / name / "summary.json").read_text())
        assert summary.get("runs_together") == together
        check_alike(swept / name, out / name)
        settings = [f"method.{part}".split("=") for part in name.split(",")[1:]]
        cell = sweep_plan.make_cell(Shared(toy), name.partition(",")[0], dict(settings))
        states = []
        for folder in (swept / name, out / name):
            job = experiment.build(cell.config, [0, 1])
            states.append(runner.run(job, folder, resume=True, quiet=True).states)
        toys.close(*states)
    losses = [comparable(out / name)[0]["train_loss"] for name in NAMES]
    assert len(set(losses)) == 3


def check_alike(alone, other, rel=1e-5):
    for ours, theirs in zip(comparable(alone), comparable(other), strict=True):
        assert ours["seed"] == theirs["seed"] and ours["bytes_up"] == theirs["bytes_up"]
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=rel)


@pytest.mark.exhaustive
def test_cells_interrupted_together_resume_one_by_one(toy, swept, tmp_path, monkeypatch):
    played = []

    def one_round(self, at_most, play=Engine.play):
        play(self, 1)
        played.append(self.simulation.seed_numbers)
        if len(played) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Engine, "play", one_round)
    arguments = [f"--config={toy}", f"--out={tmp_path / 'out'}", "--methods=fedprox", *SMALL[1:]]
    assert call(*arguments, "--together") == 130
    assert call(*arguments, "--together") == 0
    assert played == [[0, 1, 0, 1], [0, 1], [0, 1]]
    for name in NAMES[1:]:
        check_alike(swept / name, tmp_path / "out" / name)


def picky(task, *, mu: float = 0.0):
    """A method whose server branches on a setting in Python, which cannot be traced."""
    method = fedavg(task)
    (exchange,) = method.round

    def aggregate(server, uploads, cohort):
        return exchange.aggregate(server, uploads, cohort) if mu > 0 else server

    return method._replace(round=(exchange._replace(aggregate=aggregate),))


CANNOT = [
    (["--methods=picky", "--grid=method.mu=1,2"], "TracerBoolConversionError"),
    (["--methods=finetune", "--grid=local.lr=0.1,0.2"], "config.engine.seeds"),
    (["--methods=fedconcat", "--grid=local.lr=0.1,0.2"], "has stages"),
    (["--methods=fedprox", "--grid=method.mu=1,2", "--config.run.target=50"], "run.target"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("arguments, why", CANNOT)
def test_cells_that_cannot_run_together_run_one_by_one(
    arguments, why, toy, tmp_path, monkeypatch, capsys
):
    alone = []
    monkeypatch.setitem(registry.METHODS, "picky", picky)
    monkeypatch.setattr(runner, "run", lambda *of, **options: alone.append((of, options)))
    more = ["--together", "--config.run.rounds=12", "--config.run.cohort=0", "--seeds=0,1"]
    more += ["--config.engine.seeds=sequential"] * ("finetune" in arguments[0])
    call(f"--config={toy}", f"--out={tmp_path}", *arguments, *more)
    printed = capsys.readouterr().out
    assert printed.count("running one by one instead of together") == 1 and why in printed
    assert len(alone) == 2
    assert all(options["resume"] == (why[0] == "T") for _, options in alone)  # it had begun


def cells_of(commands, monkeypatch):
    """Cells that run these Python programs."""
    monkeypatch.setattr(sweep_workers, "_devices", lambda: ("cpu", 1))
    program = lambda cell, *_: [sys.executable, "-c", commands[cell.name]]  # noqa: E731
    monkeypatch.setattr(sweep_workers, "_command", program)
    return [sweep.Cell(name, "", {}, None, [0]) for name in commands]


def test_the_progress_of_workers_is_the_round_in_the_last_line_of_their_files(tmp_path):
    config = resolve({})
    cells = [sweep.Cell(name, "", {}, config, [0]) for name in "abc"]
    for name, lines in {
        "a": '{"round": 2, "seed": 0}\n{"round": 14, "seed": 0}\n',
        "b": "",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(lines)
    assert sweep_workers.described(cells, tmp_path) == f"a 14/{config.run.rounds}, b, c"


def test_workers_divide_the_cores_and_fail_separately(tmp_path, monkeypatch):
    show = "import os, sys; sys.exit(f'{sorted(os.sched_getaffinity(0))}')"
    cells = cells_of(dict(a="", b=show, c=show, d="import os; os._exit(7)"), monkeypatch)
    cores = os.sched_getaffinity(0)
    ends = {cell.name: end for cell, end in sweep.run_in_workers(cells, tmp_path, QUICK, 2)}
    assert (ends["a"], ends["d"]) == (Outcome(0), Outcome(7)) and ends["b"].code == 1
    shares = [sorted(cores)[i::2] or sorted(cores) for i in range(2)]
    assert json.loads(ends["b"].said) in shares and json.loads(ends["c"].said) in shares
    assert os.sched_getaffinity(0) == cores


def test_an_interrupt_reaches_each_worker_once(tmp_path, monkeypatch):
    wait = """
import pathlib, signal, time
note = pathlib.Path({!r})
signal.signal(signal.SIGTERM, lambda *_: note.open("a").write("stop"))
note.touch()
while not note.read_text(): time.sleep(0.01)
time.sleep(0.1)
"""
    notes = [tmp_path / name for name in "ab"]
    programs = {note.name: wait.format(str(note)) for note in notes}
    programs = {"first": "", **programs, "last": ""}
    results = sweep.run_in_workers(cells_of(programs, monkeypatch), tmp_path, QUICK, 3)
    assert next(results)[0].name == "first"
    while not all(note.exists() for note in notes):
        time.sleep(0.01)
    results.close()
    assert [note.read_text() for note in notes] == ["stop"] * 2


def test_gpus_are_assigned_to_workers_in_turn(monkeypatch):
    monkeypatch.setattr(sweep_workers, "_devices", lambda: ("gpu", 2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    dealt = [worker.environment for worker in sweep_workers._workers(3)]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in dealt] == ["0", "1", "0"]
    assert all(e["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" for e in dealt)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    dealt = [worker.environment for worker in sweep_workers._workers(2)]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in dealt] == ["4", "7"]
    assert not any("XLA_PYTHON_CLIENT_PREALLOCATE" in e for e in dealt)


@pytest.mark.exhaustive
def test_workers_give_the_numbers_of_one_process(own, tmp_path):
    """They find user-defined parts. Numbers are equal up to rounding, as devices differ."""
    arguments = ["--config=own.py", "--methods=near,own.py:twice", "--config.run.rounds=1"]
    workers = ["-m", "fedjax_lab.sweep", *arguments, "--out=out", "--workers=2"]
    out, _ = finish(start(*workers, cwd=tmp_path))
    assert "2 cells in out, 0 of them done" in out and "2/2" in out
    assert call(*arguments, "--out=alone") == 0
    for name in ("own.py:near", "own.py:twice"):
        check_alike(tmp_path / "alone" / name, tmp_path / "out" / name, rel=1e-4)


# Searches for settings.

TUNED = ["--methods=fedavg,fedprox", "--tune=random:2", "--config.partition.validation=0.2"]
TUNED += ["--seeds=0,1"]


def numbers_of(out):
    """The metrics of every run of a sweep, by the path of its folder."""
    folders = [path.parent for path in out.rglob("summary.json")]
    return {str(folder.relative_to(out)): comparable(folder) for folder in folders}


def cells_of_plan(out):
    return json.loads((out / "sweep.json").read_text())["cells"]


@pytest.fixture(scope="module")
def tuned(toy, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "out"
    assert call(f"--config={toy}", f"--out={out}", *TUNED) == 0
    return out


@pytest.mark.exhaustive
def test_a_search_runs_draws_then_the_best_with_all_seeds(tuned, toy, capsys):
    numbers, plan = numbers_of(tuned), cells_of_plan(tuned)
    draws = {name: rows for name, rows in numbers.items() if name.startswith("draws/")}
    finals = {name: rows for name, rows in numbers.items() if name not in draws}
    assert [
        sum(name.startswith(f"draws/{m},") for name in draws) for m in ("fedavg", "fedprox")
    ] == [2, 2]
    assert all([row["seed"] for row in rows] == [0] for rows in draws.values())
    for name, rows in finals.items():
        method = name.partition(",")[0]
        best = max(
            (each[0]["id"], -each[0]["id_loss"])
            for other, each in draws.items()
            if other.startswith(f"draws/{method},")
        )
        assert (draws[f"draws/{name}"][0]["id"], -draws[f"draws/{name}"][0]["id_loss"]) == best
        assert plan[name]["tuned"]["draws"] == 2
        assert [row["seed"] for row in rows] == [0, 1]
    assert len(finals) == 2
    # Finished runs are not repeated, and the report states how many draws were made.
    assert call(f"--config={toy}", f"--out={tuned}", *TUNED) == 0
    assert "4 draws in" in (printed := capsys.readouterr().out) and "4 of them done" in printed
    assert report.main([str(tuned)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("the best of 2 draws (random:2) chosen on validation examples") == 2
    assert "\nfedprox" in printed and "\ndraws" not in printed


# A search is eight runs: CI has one that is whole, and an interrupted sweep without a search.
@pytest.mark.exhaustive
def test_an_interrupted_search_resumes(tuned, toy, tmp_path, monkeypatch, capsys):
    """A draw fails; the interrupts come in that draw and in a cell."""
    out, begun, played, stops, run = tmp_path / "out", [], [], [], runner.run
    arguments = [f"--config={toy}", f"--out={out}", *TUNED]

    def fail_one(job, folder, *rest, **options):
        begun.append(folder.name)
        if len(begun) == 2:
            raise RuntimeError("no memory")
        return run(job, folder, *rest, **options)

    def noted(self, at_most, play=Engine.play):
        play(self, 1)
        played.append(self.simulation.seed_numbers)
        if self.simulation.seed_numbers in stops:
            stops.clear()
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(runner, "run", fail_one)
    monkeypatch.setattr(Engine, "play", noted)
    monkeypatch.setattr("fedjax_lab.errors.place_of", lambda error: "")
    assert call(*arguments) == 1
    assert "fedavg: no draw is chosen, because 1 of 2 draws failed" in capsys.readouterr().out
    for seeds in ([0], [0, 1]):
        stops.append(seeds)
        assert call(*arguments) == 130
        assert "the same command continues" in capsys.readouterr().err
    assert call(*arguments) == 0
    assert len(played) == 2 * 6  # no round is repeated: 4 draws, 2 cells
    assert numbers_of(out) == numbers_of(tuned)


@pytest.mark.exhaustive
def test_a_share_of_a_search_has_its_cells_with_their_draws(tuned, toy, tmp_path):
    out = tmp_path / "out"
    arguments = [f"--config={toy}", f"--out={out}", *TUNED]
    assert call(*arguments, "--share=1/2") == 0
    assert all("fedprox" in name for name in numbers_of(out)) and len(numbers_of(out)) == 3
    assert call(*arguments, "--share=0/2") == 0
    assert numbers_of(out) == numbers_of(tuned)
