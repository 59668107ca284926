"""Runs that are resumed with more rounds or other evaluations, also after a kill."""

import json
import shutil

import numpy as np
import pytest
import toys
from commands import call, comparable, contents, refusal
from shared_programs import shared_programs  # noqa: F401
from slow_cases import exhaustive_but
from stops import stopping_after

import fedjax_lab
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import aliases
from fedjax_lab.experiment.config import value_at
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.experiment.keys import DEFAULTS
from fedjax_lab.running import growth, runner
from fedjax_lab.running.storage import metric_rows

EXACT = {"seeds": "sequential"}  # vectorized seeds compute sums in another order
ENCODERS = {"encoder_rounds": 2, "num_clusters": 2}


toy = toys.config_file(run={"cohort": 3, "eval_every": 2}, engine=EXACT)


def play(toy, folder, rounds, seeds=(0,), method="fedavg", **run):
    """Plays or resumes a run; `run`, `settings` and `engine` override keys of its config."""
    config = load_config(f"{toy}:{method}")
    config["run"] = {**config["run"], "rounds": rounds, **run.pop("run", {})}
    config["method"] = {**config["method"], **run.pop("settings", {})}
    config["engine"] = {**config["engine"], **run.pop("engine", {})}
    assert not run
    return fedjax_lab.run(config, workdir=folder, seeds=list(seeds), resume=True, quiet=True)


@pytest.fixture(scope="module")
def finished(toy, tmp_path_factory):
    """A function that returns the folder and the result of an uninterrupted run, played once."""
    played = {}

    def run(rounds, seeds=(0,), method="fedavg", **how):
        key = repr((rounds, seeds, method, how))
        if key not in played:
            folder = tmp_path_factory.mktemp("finished") / "run"
            played[key] = folder, play(toy, folder, rounds, seeds, method, **how)
        return played[key]

    return run


@pytest.fixture
def begun(finished, tmp_path):
    """A function that returns a copy of the folder of a finished run, which a test may resume."""
    return lambda *args, **how: shutil.copytree(finished(*args, **how)[0], tmp_path / "run")


def interrupted(toy, folder, monkeypatch, after, rounds, **how):
    with monkeypatch.context() as patch, pytest.raises(runner.Interrupted):
        stopping_after(after, patch)
        play(toy, folder, rounds, **how)
    return folder


def check_same_run(folder, other, result=None, expected=None):
    """Checks that two folders hold the same run, apart from its timings."""
    assert comparable(folder) == comparable(other)
    for name in ("config.json", "fingerprint.json"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    files = [{path.name for path in each.iterdir()} for each in (folder, other)]
    assert files[0] == files[1]
    ours, theirs = (json.loads((each / "summary.json").read_text()) for each in (folder, other))
    for key in ("seeds", "rounds", "last", "max_over_rounds", "bytes_up", "bytes_down"):
        assert ours[key] == theirs[key]
    if result is not None:
        toys.same(result.states, expected.states)


def rows_of(folder):
    return {row["round"]: row for row in comparable(folder)}


# More rounds.


@pytest.mark.slow
def test_a_run_resumed_with_more_rounds_equals_an_uninterrupted_run(toy, finished, begun):
    how = (0, 1), "scaffold"
    folder, whole = finished(6, *how)
    grown = begun(4, *how)
    result = play(toy, grown, 6, *how)
    check_same_run(grown, folder, result, whole)
    run = fedjax_lab.load(grown)
    assert run.rounds == 6 and [row["round"] for row in run.rows[::2]] == [2, 4, 6]


@pytest.mark.exhaustive
def test_the_evaluation_at_the_end_of_the_shorter_run_remains(toy, finished, begun):
    folder, whole = finished(6)
    grown = begun(3)
    result = play(toy, grown, 6)
    toys.same(result.states, whole.states)
    rows, expected = rows_of(grown), rows_of(folder)
    assert list(rows) == [2, 3, 4, 6]
    assert rows[2] == expected[2] and rows[6] == expected[6]
    mean = np.mean([rows[3]["train_loss"], rows[4]["train_loss"]])
    np.testing.assert_allclose(mean, expected[4]["train_loss"], rtol=1e-6)
    evaluated = json.loads((grown / growth.EVALUATED).read_text())
    assert evaluated == {"until": 3, "rounds": [2, 3]}
    assert len(fedjax_lab.load(grown).rows) == 4


@pytest.mark.slow
def test_a_run_cannot_have_fewer_rounds_than_it_has_played(toy, begun):
    """Resuming a finished run with other evaluations changes no file either."""
    folder = begun(4)
    before = contents(folder)
    with pytest.raises(BadInput, match="already has 4 rounds, more than config.run.rounds=2"):
        play(toy, folder, 2)
    play(toy, folder, 4, run={"eval_every": 1, "metrics": ("macro_f1",)})
    assert contents(folder) == before


@pytest.mark.exhaustive
def test_more_rounds_that_would_move_a_played_stage_are_rejected(toy, begun):
    """FedConcat's encoders take a share of config.run.rounds, unless their rounds are given."""
    folder = begun(4, method="fedconcat")
    before = comparable(folder)
    with pytest.raises(BadInput, match="stage encoders ended after round 2, but .* after round 6"):
        play(toy, folder, 10, method="fedconcat")
    assert comparable(folder) == before and (folder / "summary.json").exists()
    assert fedjax_lab.load(folder).rounds == before[-1]["round"]


@pytest.mark.exhaustive
def test_a_finished_run_with_stages_gets_more_rounds_in_its_last_stage(toy, finished, begun):
    how = {"method": "fedconcat", "settings": ENCODERS}
    folder, whole = finished(6, **how)
    grown = begun(4, **how)
    result = play(toy, grown, 6, **how)
    assert comparable(grown)[-1] == comparable(folder)[-1]
    toys.same(result.states, whole.states)


@pytest.mark.exhaustive
def test_a_run_gets_more_rounds_in_a_stage_that_has_not_ended(toy, finished, tmp_path, monkeypatch):
    folder, whole = finished(10, method="fedconcat")
    grown = interrupted(toy, tmp_path / "grown", monkeypatch, after=2, rounds=8, method="fedconcat")
    result = play(toy, grown, 10, method="fedconcat")
    check_same_run(grown, folder, result, whole)


@pytest.mark.parametrize("left", exhaustive_but([1], [0, 1, 2]))
def test_a_run_resumes_after_a_kill_while_its_config_is_replaced(
    left, toy, finished, tmp_path, monkeypatch
):
    """The kill comes after `left` written files. The run resumes with the new or the old config."""
    folder = interrupted(toy, tmp_path / "run", monkeypatch, after=5, rounds=8)
    replace, written = metric_rows.replace, []

    def killed(path, content):
        if len(written) == left:
            raise MemoryError
        written.append(path.name)
        replace(path, content)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(metric_rows, "replace", killed)
        play(toy, folder, 6, run={"eval_every": 1})  # of an unfinished run, also with fewer rounds
    assert written == ["evaluations.json", "config.json", "learning_curve.png"][:left]
    other = shutil.copytree(folder, tmp_path / "other")
    play(toy, folder, 6, run={"eval_every": 1})
    rows = rows_of(folder)
    assert list(rows) == [2, 4, 6]
    assert rows[6]["accuracy"] == rows_of(finished(6)[0])[6]["accuracy"]
    play(toy, other, 8)
    assert max(rows_of(other)) == 8


# Other evaluations, and state in other places.


@pytest.mark.slow
def test_a_run_resumes_with_other_evaluations(toy, finished, tmp_path, monkeypatch):
    """It may also resume with other metrics; the training is the same."""
    whole_folder, whole = finished(6)
    folder = interrupted(toy, tmp_path / "run", monkeypatch, after=3, rounds=6)
    result = play(toy, folder, 6, run={"eval_every": 1, "metrics": ("macro_f1",)})
    toys.same(result.states, whole.states)
    rows = rows_of(folder)
    assert list(rows) == [2, 4, 5, 6]
    assert "macro_f1" not in rows[2] and "macro_f1" in rows[4]
    assert rows[4]["train_loss"] == rows_of(whole_folder)[4]["train_loss"]
    assert json.loads((folder / "config.json").read_text())["run"]["eval_every"] == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("old, new", [("replicated", "sharded"), ("host", "disk")])
def test_a_run_resumes_with_its_state_in_another_place(old, new, toy, finished, begun):
    """State does not move between the host and the devices."""
    how = {"method": "scaffold", "seeds": (0, 1)}
    folder = begun(4, engine={"state": old}, **how)
    other = {"host": "auto", "replicated": "host"}[old]
    place = "host" if old == "host" else "devices"
    with pytest.raises(BadInput, match=f"keeps its clients' state on the {place}; resume"):
        play(toy, folder, 6, engine={"state": other}, **how)
    result = play(toy, folder, 6, engine={"state": new}, **how)
    toys.close(result.states, finished(6, (0, 1), "scaffold")[1].states)


def test_every_key_that_a_resumed_run_may_change_exists(toy):
    for key in growth.FREE:
        value_at(DEFAULTS, key)


# Configs of other versions, and resuming without a config.


@pytest.mark.slow
def test_a_missing_key_with_a_new_default_has_the_earlier_value(toy, begun, monkeypatch):
    folder = begun(4)
    saved = json.loads((folder / "config.json").read_text())
    del saved["local"]["clip"]
    (folder / "config.json").write_text(json.dumps(saved))
    monkeypatch.setitem(aliases.ADDED, "local", {"clip": 5.0})
    with pytest.raises(BadInput, match="config.local.clip is 5.0, not 0.0"):
        play(toy, folder, 4)


@pytest.mark.parametrize("key", ["name", "base"])
def test_methods_of_earlier_versions_keep_their_defaults(key):
    saved = {"method": {"name": "client2vec"} | {key: "scaffold"}, "local": {"lr": 0.1}}
    by_size = {**saved["method"], "weights": "size"}
    assert aliases.current_saved(saved) == {"method": by_size, "local": {"lr": 0.1}}
    saved["method"]["weights"] = "uniform"
    assert aliases.current_saved(saved) == saved
    momentum = {"method": {"name": "client2vec", key: "fedavgm"}}
    assert aliases.current_saved(momentum)["method"]["nesterov"] is False
    models = {"method": {"name": "fedfomo"}}
    assert aliases.current_saved(models)["method"]["reference"] == "last"
    other = {"method": {"name": "fedgma"}}
    assert aliases.current_saved(other) == other


@pytest.mark.slow
def test_resume_without_a_config_takes_config_and_seeds_from_the_folder(
    toy, finished, begun, tmp_path, capsys
):
    folder = begun(4, (0, 1), "scaffold")
    there = "--resume", f"--workdir={folder}"
    assert call(*there) == 0
    assert call(*there, "--config.run.rounds=6") == 0
    check_same_run(folder, finished(6, (0, 1), "scaffold")[0])
    result = fedjax_lab.run(None, workdir=folder, resume=True, quiet=True)
    assert result.summary["seeds"] == [0, 1] and result.summary["rounds"] == 6
    capsys.readouterr()
    assert call(*there, "--config.local.lr=0.5") == 2
    assert "config.local.lr is 0.1, not 0.5" in capsys.readouterr().err
    assert call("--resume", f"--workdir={tmp_path / 'nothing'}") == 2
    assert "holds no run to resume" in capsys.readouterr().err


# The folder of --resume: one without a run is refused, unless --resume_or_start is given.


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The config file of a run of one round, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return toys.write_config(tmp_path, run={"rounds": 1, "eval_every": 1, "cohort": 3})


def begin_in(folder, name="config.json"):
    folder.mkdir(parents=True)
    (folder / name).write_text("{}")


def test_a_folder_that_is_none_is_refused_and_not_made(here, tmp_path, capsys):
    begin_in(tmp_path / "runs/first")
    (tmp_path / "runs/empty").mkdir()
    for name in ("frist", "empty", "first/plots", "other"):
        message = refusal(capsys, f"--config={here}", "--resume", f"--workdir=runs/{name}")
        assert f"runs/{name} holds no run to resume: it has no config.json" in message
        assert "--resume_or_start starts a new run there" in message
        assert ("did you mean runs/first?" in message) == (name == "frist")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["empty", "first"]
    assert not any((tmp_path / "runs/empty").iterdir())


@pytest.mark.parametrize("name", ["config.json", "fingerprint.json", ".lock"])
def test_a_folder_in_which_a_run_began_is_accepted(name, tmp_path):
    with pytest.raises(BadInput, match="holds no run"):
        growth.check_begun(tmp_path / "run")
    begin_in(tmp_path / "run", name)
    growth.check_begun(tmp_path / "run")


def test_each_flag_needs_a_folder_and_a_config(here, capsys):
    for flag in ("--resume", "--resume_or_start"):
        message = refusal(capsys, f"--config={here}", flag)
        assert f"{flag} needs the folder of the run: --workdir=DIR" in message
    message = refusal(capsys, "--resume_or_start", "--workdir=new")
    assert "new holds no run to resume: it has no config.json" in message


@pytest.mark.slow
def test_one_command_starts_a_run_and_resumes_it(here, tmp_path, capsys):
    words = [f"--config={here}", "--resume_or_start", "--workdir=run"]
    for rounds in (1, 2):
        assert call(*words, f"--config.run.rounds={rounds}") == 0
        assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == rounds
    assert "round 1/2" not in capsys.readouterr().out
