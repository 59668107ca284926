"""Runs that are resumed with more rounds, other evaluations or more seeds, also after a kill."""

import functools
import json
import shutil

import numpy as np
import pytest
import toys
from commands import call, comparable
from slow_cases import slow_but
from stops import stopping_after

import fedjax_lab
from fedjax_lab import aliases
from fedjax_lab.config import DEFAULTS, value_at
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import BadInput
from fedjax_lab.running import growth, metrics, runner

EXACT = {"seeds": "sequential"}  # vectorized seeds compute sums in another order


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The config file of a run with six clients and an evaluation every second round."""
    folder = tmp_path_factory.mktemp("toy")
    toys.write_examples(folder / "data.npz")
    return toys.write_config(folder, run={"cohort": 3, "eval_every": 2}, engine=EXACT)


def play(toy, folder, rounds, seeds=(0,), method="fedavg", resume=True, **run):
    """Plays or resumes a run; `run`, `settings` and `engine` override keys of its config."""
    config = load_config(f"{toy}:{method}")
    config["run"] = {**config["run"], "rounds": rounds, **run.pop("run", {})}
    config["method"] = {**config["method"], **run.pop("settings", {})}
    config["engine"] = {**config["engine"], **run.pop("engine", {})}
    assert not run
    return fedjax_lab.run(config, workdir=folder, seeds=list(seeds), resume=resume, quiet=True)


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


# More rounds.


@pytest.mark.parametrize("method", slow_but(["fedavg"], ["fedavg", "scaffold"]))
def test_a_run_resumed_with_more_rounds_equals_an_uninterrupted_run(method, toy, tmp_path):
    whole = play(toy, tmp_path / "whole", 8, (0, 1), method)
    play(toy, tmp_path / "grown", 4, (0, 1), method)
    result = play(toy, tmp_path / "grown", 8, (0, 1), method)
    check_same_run(tmp_path / "grown", tmp_path / "whole", result, whole)
    run = fedjax_lab.load(tmp_path / "grown")
    assert run.rounds == 8 and [row["round"] for row in run.rows[::2]] == [2, 4, 6, 8]


@pytest.mark.slow
def test_the_evaluation_at_the_end_of_the_shorter_run_remains(toy, tmp_path):
    whole = play(toy, tmp_path / "whole", 8)
    play(toy, tmp_path / "grown", 3)
    result = play(toy, tmp_path / "grown", 8)
    toys.same(result.states, whole.states)
    rows = {row["round"]: row for row in comparable(tmp_path / "grown")}
    assert list(rows) == [2, 3, 4, 6, 8]
    expected = {row["round"]: row for row in comparable(tmp_path / "whole")}
    for after in (2, 6, 8):
        assert rows[after] == expected[after]
    mean = np.mean([rows[3]["train_loss"], rows[4]["train_loss"]])
    np.testing.assert_allclose(mean, expected[4]["train_loss"], rtol=1e-6)
    assert growth.read_evaluated(tmp_path / "grown") == (3, (2, 3))
    assert len(fedjax_lab.load(tmp_path / "grown").rows) == 5


def test_a_run_cannot_have_fewer_rounds_than_it_has_played(toy, tmp_path):
    play(toy, tmp_path / "run", 4)
    before = comparable(tmp_path / "run")
    with pytest.raises(BadInput, match="already has 4 rounds, more than config.run.rounds=2"):
        play(toy, tmp_path / "run", 2)
    assert comparable(tmp_path / "run") == before and (tmp_path / "run/summary.json").exists()


@pytest.mark.slow
def test_an_unfinished_run_may_be_resumed_with_fewer_rounds(toy, tmp_path, monkeypatch):
    play(toy, tmp_path / "whole", 6)
    interrupted(toy, tmp_path / "run", monkeypatch, after=5, rounds=20)
    play(toy, tmp_path / "run", 6)
    check_same_run(tmp_path / "run", tmp_path / "whole")


def interrupted(toy, folder, monkeypatch, after, rounds, **how):
    with monkeypatch.context() as patch, pytest.raises(runner.Interrupted):
        stopping_after(after, patch)
        play(toy, folder, rounds, **how)


ENCODERS = {"encoder_rounds": 2, "num_clusters": 2}


@pytest.mark.slow
def test_more_rounds_that_would_move_a_played_stage_are_rejected(toy, tmp_path):
    """FedConcat's encoders take a share of config.run.rounds, unless their rounds are given."""
    play(toy, tmp_path / "run", 4, method="fedconcat")
    before = comparable(tmp_path / "run")
    with pytest.raises(BadInput, match="stage encoders ended after round 2, but .* after round 6"):
        play(toy, tmp_path / "run", 10, method="fedconcat")
    assert comparable(tmp_path / "run") == before and (tmp_path / "run/summary.json").exists()
    assert fedjax_lab.load(tmp_path / "run").rounds == before[-1]["round"]


@pytest.mark.slow
def test_a_finished_run_with_stages_gets_more_rounds_in_its_last_stage(toy, tmp_path):
    how = {"method": "fedconcat", "settings": ENCODERS}
    whole = play(toy, tmp_path / "whole", 8, **how)
    play(toy, tmp_path / "grown", 4, **how)
    result = play(toy, tmp_path / "grown", 8, **how)
    assert comparable(tmp_path / "grown")[-1] == comparable(tmp_path / "whole")[-1]
    toys.same(result.states, whole.states)


@pytest.mark.slow
def test_a_run_gets_more_rounds_in_a_stage_that_has_not_ended(toy, tmp_path, monkeypatch):
    whole = play(toy, tmp_path / "whole", 10, method="fedconcat")
    interrupted(toy, tmp_path / "grown", monkeypatch, after=2, rounds=8, method="fedconcat")
    result = play(toy, tmp_path / "grown", 10, method="fedconcat")
    check_same_run(tmp_path / "grown", tmp_path / "whole", result, whole)


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_run_resumes_after_a_kill_while_its_config_is_replaced(left, toy, tmp_path, monkeypatch):
    """The kill comes after `left` written files. The run resumes with the new or the old config."""
    play(toy, tmp_path / "whole", 6, run={"eval_every": 1})
    interrupted(toy, tmp_path / "run", monkeypatch, after=5, rounds=10)
    replace, written = metrics.replace, []

    def killed(path, content):
        if len(written) == left:
            raise MemoryError
        written.append(path.name)
        replace(path, content)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(metrics, "replace", killed)
        play(toy, tmp_path / "run", 6, run={"eval_every": 1})
    assert written == ["evaluations.json", "config.json", "learning_curve.png"][:left]
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    play(toy, tmp_path / "run", 6, run={"eval_every": 1})
    rows = {row["round"]: row for row in comparable(tmp_path / "run")}
    assert (
        list(rows) == [2, 4, 6]
        and rows[6]["accuracy"] == comparable(tmp_path / "whole")[-1]["accuracy"]
    )
    play(toy, tmp_path / "other", 10)
    assert [row["round"] for row in comparable(tmp_path / "other")][-1] == 10


# Other evaluations, and state in other places.


@pytest.mark.slow
def test_a_run_resumes_with_other_evaluations(toy, tmp_path, monkeypatch):
    """It may also resume with other metrics; the training is the same."""
    whole = play(toy, tmp_path / "whole", 9, run={"eval_every": 3})
    interrupted(toy, tmp_path / "run", monkeypatch, after=5, rounds=9, run={"eval_every": 3})
    often = {"eval_every": 1, "metrics": ("macro_f1",)}
    result = play(toy, tmp_path / "run", 9, run=often)
    toys.same(result.states, whole.states)
    rows = {row["round"]: row for row in comparable(tmp_path / "run")}
    assert list(rows) == [3, 6, 7, 8, 9]
    assert "macro_f1" not in rows[3] and "macro_f1" in rows[6]
    assert rows[6]["train_loss"] == comparable(tmp_path / "whole")[1]["train_loss"]
    assert json.loads((tmp_path / "run/config.json").read_text())["run"]["eval_every"] == 1


def test_resuming_a_finished_run_changes_no_file(toy, tmp_path):
    play(toy, tmp_path / "run", 4)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    play(toy, tmp_path / "run", 4, run={"eval_every": 1, "metrics": ("macro_f1",)})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize("old, new", [("replicated", "sharded"), ("host", "disk")])
def test_a_run_resumes_with_its_state_in_another_place(old, new, toy, tmp_path):
    how = {"method": "scaffold", "seeds": (0, 1)}
    whole = play(toy, tmp_path / "whole", 6, engine={"state": new}, **how)
    play(toy, tmp_path / "run", 4, engine={"state": old}, **how)
    result = play(toy, tmp_path / "run", 6, engine={"state": new}, **how)
    toys.close(result.states, whole.states)


@pytest.mark.slow
def test_state_does_not_move_between_the_host_and_the_devices(toy, tmp_path):
    for old, new in (("replicated", "host"), ("host", "auto")):
        play(toy, tmp_path / old, 4, method="scaffold", engine={"state": old})
        place = "host" if old == "host" else "devices"
        with pytest.raises(BadInput, match=f"keeps its clients' state on the {place}; resume"):
            play(toy, tmp_path / old, 6, method="scaffold", engine={"state": new})
        play(toy, tmp_path / old, 6, method="scaffold", engine={"state": old})


def test_every_key_that_a_resumed_run_may_change_exists(toy):
    for key in growth.FREE:
        value_at(DEFAULTS, key)


# Configs of other versions, and resuming without a config.


@pytest.mark.slow
def test_a_key_missing_from_a_saved_config_has_its_default(toy, tmp_path):
    """This holds for keys of sections and for settings of methods; no table has to list them."""
    how = {"method": "fedprox"}
    play(toy, tmp_path / "run", 2, **how)
    saved = json.loads((tmp_path / "run/config.json").read_text())
    del saved["local"]["clip"], saved["method"]["mu"], saved["run"]["sampling"]
    (tmp_path / "run/config.json").write_text(json.dumps(saved))
    play(toy, tmp_path / "run", 4, **how)
    assert fedjax_lab.load(tmp_path / "run").config.method.mu > 0
    (tmp_path / "run/config.json").write_text(json.dumps(saved))
    with pytest.raises(BadInput, match=r"config.method.mu is .*, not 7\.0"):
        play(toy, tmp_path / "run", 4, settings={"mu": 7.0}, **how)


def test_a_missing_key_with_a_new_default_has_the_earlier_value(toy, tmp_path, monkeypatch):
    play(toy, tmp_path / "run", 2)
    saved = json.loads((tmp_path / "run/config.json").read_text())
    del saved["local"]["clip"]
    (tmp_path / "run/config.json").write_text(json.dumps(saved))
    monkeypatch.setitem(aliases.ADDED, "local", {"clip": 5.0})
    with pytest.raises(BadInput, match="config.local.clip is 5.0, not 0.0"):
        play(toy, tmp_path / "run", 2)


@pytest.mark.parametrize("key", ["name", "base"])
def test_scaffold_of_version_0_1_averages_by_size(key):
    saved = {"method": {"name": "client2vec"} | {key: "scaffold"}, "local": {"lr": 0.1}}
    assert aliases.current_saved(saved) == {
        "method": {**saved["method"], "weights": "size"},
        "local": {"lr": 0.1},
    }
    saved["method"]["weights"] = "uniform"
    assert aliases.current_saved(saved) == saved
    other = {"method": {"name": "fedgma"}}
    assert aliases.current_saved(other) == other


@pytest.mark.slow
def test_resume_without_a_config_takes_config_and_seeds_from_the_folder(toy, tmp_path, capsys):
    folder = f"--workdir={tmp_path / 'run'}"
    config = [f"--config={toy}:scaffold", "--config.run.rounds=4", "--seeds=0,1"]
    assert call(*config, folder) == 0
    play(toy, tmp_path / "whole", 6, (0, 1), "scaffold")
    assert call("--resume", folder) == 0
    assert call("--resume", folder, "--config.run.rounds=6") == 0
    check_same_run(tmp_path / "run", tmp_path / "whole")
    result = fedjax_lab.run(None, workdir=tmp_path / "run", resume=True, quiet=True)
    assert result.summary["seeds"] == [0, 1] and result.summary["rounds"] == 6
    capsys.readouterr()
    assert call("--resume", folder, "--config.local.lr=0.5") == 2
    assert "config.local.lr is 0.1, not 0.5" in capsys.readouterr().err
    assert call("--resume", f"--workdir={tmp_path / 'nothing'}") == 2
    assert "holds no run to resume" in capsys.readouterr().err


# More seeds.


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, engine, settings",
    [("fedavg", {}, {}), ("scaffold", {"state": "host"}, {}), ("fedconcat", {}, ENCODERS)],
)
def test_seeds_added_on_resume_equal_seeds_run_at_once(method, engine, settings, toy, tmp_path):
    """Afterwards the run can be resumed with more rounds."""
    how = {"method": method, "engine": engine, "settings": settings}
    whole = play(toy, tmp_path / "whole", 4, (0, 1, 2), **how)
    play(toy, tmp_path / "grown", 4, (0,), **how)
    result = play(toy, tmp_path / "grown", 4, (0, 1, 2), **how)
    check_same_run(tmp_path / "grown", tmp_path / "whole", result, whole)
    for folder in ("whole", "grown"):
        result = play(toy, tmp_path / folder, 6, (0, 1, 2), **how)
    check_same_run(tmp_path / "grown", tmp_path / "whole")
    assert len(result.states) == 3


@pytest.mark.slow
def test_vectorized_seeds_may_be_added_on_resume(toy, tmp_path):
    how = {"engine": {"seeds": "vectorized"}, "method": "scaffold"}
    whole = play(toy, tmp_path / "whole", 6, (0, 1, 2), **how)
    play(toy, tmp_path / "grown", 4, (0, 1), **how)
    result = play(toy, tmp_path / "grown", 6, (2, 0, 1), **how)  # and more rounds
    toys.close(result.states, whole.states)
    assert seeds_in(tmp_path / "grown") == [0, 1, 2]
    assert len(fedjax_lab.load(tmp_path / "grown").states) == 3


@pytest.mark.slow
def test_new_seeds_are_evaluated_after_the_same_rounds_as_the_first(toy, tmp_path):
    play(toy, tmp_path / "run", 3)
    play(toy, tmp_path / "run", 6)
    play(toy, tmp_path / "run", 6, (0, 1))
    places = [(row["round"], row["seed"]) for row in comparable(tmp_path / "run")]
    assert places == [(after, seed) for after in (2, 3, 4, 6) for seed in (0, 1)]
    play(toy, tmp_path / "whole", 6, (0, 1))
    assert comparable(tmp_path / "run")[-2:] == comparable(tmp_path / "whole")[-2:]


@pytest.mark.slow
def test_seeds_cannot_be_removed_on_resume(toy, tmp_path, monkeypatch):
    play(toy, tmp_path / "run", 4, (0, 1))
    with pytest.raises(BadInput, match=r"config.seeds is \[0, 1\], not \[1, 2\]"):
        play(toy, tmp_path / "run", 4, (1, 2))
    interrupted(toy, tmp_path / "run", monkeypatch, after=2, rounds=4, seeds=(0, 1, 2, 3))
    with pytest.raises(BadInput, match="holds a run with more seeds; .* --seeds=0,1,2,3"):
        play(toy, tmp_path / "run", 4, (0, 1))
    assert seeds_in(tmp_path / "run" / growth.ADDED) == [2, 3]
    play(toy, tmp_path / "run", 4, (0, 1, 2, 3, 4))
    assert seeds_in(tmp_path / "run") == [0, 1, 2, 3, 4]


def seeds_in(folder):
    return json.loads((folder / "config.json").read_text())["seeds"]


@pytest.mark.slow
def test_resume_without_a_config_finishes_seeds_that_have_begun(toy, tmp_path, monkeypatch):
    play(toy, tmp_path / "whole", 4, (0, 1, 2))
    play(toy, tmp_path / "run", 4, (0,))
    interrupted(toy, tmp_path / "run", monkeypatch, after=2, rounds=4, seeds=(0, 1, 2))
    assert call("--resume", f"--workdir={tmp_path / 'run'}") == 0
    check_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_the_error_about_new_seeds_that_end_early_says_how_to_resume(toy, tmp_path):
    play(toy, tmp_path, 4)
    config = {**load_config(toy), "run": {"rounds": 4, "cohort": 3, "eval_every": 2}}
    more = functools.partial(fedjax_lab.run, config, workdir=tmp_path, resume=True, quiet=True)
    with pytest.raises(BadInput, match=r"\(1,2\) ended after 2 of 4 .* finish them with --r"):
        more(seeds=[0, 1, 2], on_evaluation=lambda row, state: fedjax_lab.STOP)
    assert more(seeds=[0, 1, 2]).summary["seeds"] == [0, 1, 2]


@pytest.mark.slow
def test_a_new_seed_that_diverges_does_not_change_the_others(toy, tmp_path, monkeypatch):
    play(toy, tmp_path / "run", 4, (0,))
    before = comparable(tmp_path / "run")

    def diverged(*_):
        raise runner.Diverged("fedavg diverged in round 1 (seed 1)")

    monkeypatch.setattr(runner, "_check_finite", diverged)
    with pytest.raises(runner.Diverged):
        play(toy, tmp_path / "run", 4, (0, 1))
    assert comparable(tmp_path / "run") == before and (tmp_path / "run/summary.json").exists()
