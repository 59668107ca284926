"""Loggers: what they receive, that they do not block a run, and what real services store."""

import json
import struct
import threading
import time
from pathlib import Path

import optional
import pytest
import toys
from commands import call, comparable
from inputs import complaint
from shared_programs import shared_programs  # noqa: F401
from slow_cases import exhaustive_but
from stops import stopping_after

import fedjax_lab
from fedjax_lab.commands import sweep
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import loggers
from fedjax_lab.running.loggers import Facts, Logger, followers

CONFIG = {"method": {"name": "fedavg"}, "local": {"lr": 0.1}, "seeds": [0, 1]}


def rows(after, seeds=(0, 1)):
    """The rows of an evaluation."""
    return [
        {
            "round": after,
            "seed": seed,
            "stage": "train",
            "train_loss": 1 / after,
            "accuracy": {"mean": 50.0 + after + seed, "per_client": [50.0, None]},
            "domains": {"sød, a": 40.0},
            "global_loss": 0.5,
            "bytes_up": 10 * after,
            "bytes_down": 20 * after,
            "seconds": 0.5 * after,
        }
        for seed in seeds
    ]


def summary(after):
    way = {"mean": {"accuracy": {"mean": 50.5 + after}, "round": after}, "per_seed": {}}
    return {"rounds": after, "last": way, "stopped": {"rule": "target", "round": after}}


def follow(log, folder, evaluations, end, already=(), seeds=(0, 1)):
    """Sends the evaluations of a run to a logger; those in `already` precede a resume."""
    facts = Facts("a-run", "a-sweep", folder, {**CONFIG, "seeds": list(seeds)})
    following = followers.Followers(loggers.find(log), facts)
    for after in (*already, *evaluations):
        following.tell(rows(after, seeds))
    following.end(end)


def recorder(calls, id=None, round=0):
    """Returns a logger that appends to a list everything that it receives."""

    def begin(facts):
        calls.append(("begin", facts.id, facts.round))
        log = [lambda each: calls.append(each[0]["round"]), lambda summary: calls.append(summary)]
        return Logger(*log, id=id, round=facts.round if round is None else round)

    return begin


def test_a_logger_receives_everything_once(tmp_path):
    received = []
    log = {"mine": recorder(received)}
    follow(log, tmp_path, [2, 4], {"rounds": 4})
    assert received == [("begin", None, 0), 2, 4, {"rounds": 4}]
    received.clear()
    follow(log, tmp_path, [6], None, already=[2, 4])
    assert received == [("begin", None, 4), 2, 4, 6, None]  # all rows again, without an id


def test_a_service_that_has_the_earlier_rows_gets_only_new_ones(tmp_path):
    """A run whose file is damaged is a new run to a service."""
    received = []
    log = {"mine": recorder(received, "an-id", round=None)}
    follow(log, tmp_path, [2, 4], None)
    follow(log, tmp_path, [6], {"rounds": 6}, already=[2, 4])
    assert received == [("begin", None, 0), 2, 4, None, ("begin", "an-id", 4), 6, {"rounds": 6}]
    kept = tmp_path / "loggers.json"
    assert json.loads(kept.read_text())["mine"] == {"id": "an-id", "round": 6}
    kept.write_text('{"mine": {"id": "an-id", "round": 4, "seeds": [0]}}')  # of version 0.2.0
    received.clear()
    follow(log, tmp_path, [6], {"rounds": 6}, already=[2, 4])
    assert received == [("begin", "an-id", 4), 6, {"rounds": 6}]
    kept.write_text("{")
    follow(log, tmp_path, [], None, already=[2])
    assert received[-3:] == [("begin", None, 0), 2, None]


def test_rows_that_a_logger_failed_to_take_are_sent_again_with_one_warning(tmp_path, capsys):
    taken, is_down = [], threading.Event()

    def log(each):
        if is_down.is_set():
            raise ConnectionError("no route to host")
        taken.append(each[0]["round"])

    following = followers.Followers({"mine": lambda facts: Logger(log)}, Facts("a", None, None, {}))
    following.tell(rows(2))
    wait_for(lambda: taken == [2])
    is_down.set()
    for after in (4, 6):
        following.tell(rows(after))
        wait_for(following._followers[0].queue.empty)
    wait_for(lambda: following._followers[0]._failed)
    is_down.clear()
    following.end(None)
    assert taken == [2, 4, 6]
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.startswith("warning: --log=mine: ConnectionError: no rou")


def wait_for(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_run_does_not_wait_for_a_service_that_does_not_answer(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(followers, "LAST_SECONDS", 0.1)
    answers = threading.Event()
    received = []

    def begin(facts):
        answers.wait()
        return recorder(received)(facts)

    before = set(threading.enumerate())
    follow({"mine": begin}, tmp_path, [2], None)  # returns
    (left,) = set(threading.enumerate()) - before
    assert "--log=mine: logging takes too long" in capsys.readouterr().err
    answers.set()
    left.join()
    assert not (tmp_path / "loggers.json").exists()  # another command may own the folder by now


def test_invalid_loggers_are_rejected(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own_logger.py").write_text("x = 3\ndef begin(facts): ...\n")
    assert list(loggers.find("own_logger.py:begin")) == ["own_logger.py:begin"]
    assert loggers.find("") == loggers.find(()) == {}
    for log, message in (
        ("wand", "did you mean 'wandb'"),
        ("own_logger.py:x", "must be a function, not of type int"),
        ("own_logger.py:begun", "did you mean 'begin'"),
        ([3], "a name or a function, got 3"),
        (3, "a name or a function, got 3"),
    ):
        assert message in complaint(loggers.find, log)
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'fedjax_lab[wandb]'" in complaint(loggers.find, "wandb")
    follow(lambda facts: None, tmp_path, [2], None)  # an error in a user's logger is a warning
    text = capsys.readouterr().err
    assert text.startswith("warning: --log=") and "NoneType" in text and text.count("\n") == 1


def test_scalars_of_several_seeds_are_means_and_values_by_seed():
    assert loggers.scalars(rows(2, seeds=[3])) == {
        "accuracy/mean": 55.0,
        "domains/sød, a": 40.0,
        "loss/global": 0.5,
        "train/loss": 0.5,
        "bytes/up": 20,
        "bytes/down": 40,
        "seconds": 1.0,
    }
    both = loggers.scalars(rows(2))
    assert both["accuracy/mean"] == 52.5
    assert (both["seed-0/accuracy/mean"], both["seed-1/accuracy/mean"]) == (52, 53)
    assert loggers.final(summary(4)) == {"last/accuracy/mean": 54.5}


# The services.


def wandb_records(folder):
    """Yields the records of an offline run's file, which is a log in LevelDB's format."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the end of a block, too short for a header
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record or its last part
            yield Record.FromString(parts)
            parts = b""


def wandb_history(folder):
    """Returns {step: {tag: value}} and the record of the run."""
    history, run = {}, None
    for record in wandb_records(folder):
        if record.HasField("run"):
            run = record.run
        if record.HasField("history"):
            items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            history[record.history.step.num] = {k: json.loads(v) for k, v in items.items()}
    return history, run


@pytest.mark.slow
def test_wandb_offline_has_all_rows_of_a_resumed_run(tmp_path, monkeypatch, capsys):
    optional.module("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))  # no user is logged in
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    follow("wandb", tmp_path, [2, 4], None)
    follow("wandb", tmp_path, [6], summary(6), already=[2, 4])
    assert capsys.readouterr().err.count("the run is logged offline") == 2
    _, folder = sorted(tmp_path.glob("wandb/offline-run-*"))
    wait_for(lambda: sorted(wandb_history(folder)[0]) == [2, 4, 6])  # written by another process
    history, run = wandb_history(folder)
    assert history[6]["seed-1/accuracy/mean"] == 57 and history[2]["train/loss"] == 0.5
    kept = json.loads((tmp_path / "loggers.json").read_text())
    assert kept == {"wandb": {"id": run.run_id, "round": 6, "seeds": [0, 1]}}
    assert (run.project, run.run_group, run.display_name) == ("fedjax_lab", "a-sweep", "a-run")
    config = {i.key: json.loads(i.value_json) for i in run.config.update}
    assert config["local"] == {"lr": 0.1} and config["seeds"] == [0, 1]


@pytest.mark.slow
def test_mlflow_resumes_the_same_run(tmp_path, monkeypatch):
    mlflow = optional.module("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    follow("mlflow", tmp_path, [2, 4], None)
    client = mlflow.MlflowClient()
    (kept,) = json.loads((tmp_path / "loggers.json").read_text()).values()
    assert client.get_run(kept["id"]).info.status == "KILLED"
    follow("mlflow", tmp_path, [6], summary(6), already=[2, 4])
    experiment = client.get_experiment_by_name("a-sweep")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.run_name) == (kept["id"], "a-run")
    assert run.info.status == "FINISHED" and json.loads(run.data.tags["stopped"])["round"] == 6
    assert run.data.params["local.lr"] == "0.1" and run.data.params["method.name"] == "fedavg"
    assert run.data.metrics["last/accuracy/mean"] == 56.5
    points = client.get_metric_history(run.info.run_id, "accuracy/mean")
    assert [(p.step, p.value) for p in points] == [(2, 52.5), (4, 54.5), (6, 56.5)]
    assert run.data.metrics["seed-1/domains/sød_ a"] == 40


# Runs.

USER_FILE = """
from fedjax_lab.running.loggers import Logger

def begin(facts):
    def note(what):
        with (facts.folder / "told.txt").open("a") as file:
            print(what, file=file)
    note(("begin", facts.name, facts.group, facts.config["method"]["name"]))
    return Logger(lambda rows: note([(r["round"], r["seed"]) for r in rows]),
                  lambda summary: note(summary and summary["rounds"]))
"""


@pytest.fixture(scope="module")
def toy(folder):
    (folder / "own.py").write_text(USER_FILE)
    return toys.write_config(folder, run={"rounds": 4, "eval_every": 2, "cohort": 3})


def log_flag(toy):
    return f"--log={Path(toy).parent / 'own.py'}:begin"


def notes_in(folder):
    return [eval(line) for line in (folder / "told.txt").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_is_logged_also_when_it_is_resumed_or_already_finished(toy, tmp_path, monkeypatch):
    optional.module("tensorboardX")
    here = [f"--config={toy}", f"--workdir={tmp_path / 'a'}", "--seeds=0,1"]
    begin, first, second = ("begin", "a", None, "fedavg"), [(2, 0), (2, 1)], [(4, 0), (4, 1)]

    def notes(code, *more):
        """The notes of a call of main, which must return this code."""
        (tmp_path / "a/told.txt").unlink(missing_ok=True)
        assert call(*here, *more) == code
        return notes_in(tmp_path / "a")

    with monkeypatch.context() as patch:
        stopping_after(3, patch)
        assert notes(130, log_flag(toy)) == [begin, first, None]
    assert notes(0, log_flag(toy), "--resume") == [begin, first, second, 4]
    before = comparable(tmp_path / "a")
    all_notes = notes(0, f"{log_flag(toy)},tensorboard", "--resume")  # no round is left to play
    assert all_notes == [begin, first, second, 4] and comparable(tmp_path / "a") == before
    files = {path.parent.name for path in tmp_path.rglob("events.out.tfevents.*")}
    assert files == {"tensorboard", "seed-0", "seed-1"}


@pytest.mark.parametrize("way", exhaustive_but([], ["", "--together", "--workers=1"]))
def test_each_cell_of_a_sweep_is_logged_as_one_run_of_a_group(way, toy, tmp_path):
    grid = ["--methods=fedprox", "--grid=method.mu=0.0,0.01", f"--out={tmp_path / 'sw'}"]
    words = ["sweep", f"--config={toy}", *grid, log_flag(toy), *way.split()]
    assert sweep.main(words) == 0
    for name in ("fedprox,mu=0.0", "fedprox,mu=0.01"):
        begin = ("begin", name, "sw", "fedprox")
        assert notes_in(tmp_path / "sw" / name) == [begin, [(2, 0)], [(4, 0)], 4]


@pytest.mark.slow
def test_run_accepts_a_logger_function_and_rejects_an_unknown_name(toy, tmp_path):
    received = []
    result = fedjax_lab.run(load_config(toy), quiet=True, log=recorder(received))
    assert received == [("begin", None, 0), 2, 4, result.summary]
    new = tmp_path / "new"
    assert "no logger 'wand'" in complaint(
        fedjax_lab.run, load_config(toy), workdir=new, log="wand"
    )
    assert not new.exists()
