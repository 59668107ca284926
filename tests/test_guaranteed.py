"""The privacy guarantee of a run: in its rows, in its summary, and when the run is resumed."""

import jax
import numpy as np
import optional
import pytest
import toys
from commands import comparable
from inputs import complaint
from shared_programs import shared_programs  # noqa: F401
from slow_cases import exhaustive_but
from stops import stopping_after

import fedjax_lab
from fedjax_lab.commands import descriptions, report
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import guaranteed, runner
from fedjax_lab.running.storage import metric_rows
from fedjax_lab.simulation import units
from fedjax_lab.transforms import accounting

optional.module("dp_accounting")

DELTA = 6**-1.1  # for six clients


RUN = {"cohort": 3, "rounds": 4, "eval_every": 2}
toy = toys.config_file(run=RUN, engine={"seeds": "sequential"})


def built(toy, method="fedavg", **overrides):
    named = [(key.replace("_", ".", 1), value) for key, value in overrides.items()]
    return experiment.build(resolve(load_config(f"{toy}:{method}"), named))


def central(toy, **overrides):
    return built(toy, privacy_name="central", **overrides)


def in_rows(made, rounds):
    with guaranteed.stated_in_rows(made, rounds) as entries_after:
        return [entries_after(number) for number in rounds]


def test_a_row_has_delta_and_epsilon_which_is_null_without_noise(toy):
    made = central(toy, privacy_noise="0.7", privacy_sampling="fixed")
    run = accounting.Run(6, 3, "fixed", capacity=6)
    expected = accounting.epsilons(run, 0.7, DELTA, (2, 4))
    rows = [{"epsilon": epsilon, "delta": DELTA} for epsilon in expected]
    assert in_rows(made, (2, 4)) == rows and expected[0] < expected[1]
    free = central(toy, privacy_epsilon="inf")
    assert in_rows(free, (2,)) == [{"epsilon": None}]
    assert guaranteed.in_summary(free, [], 4) == {"privacy": {"epsilon": None, "noise": 0.0}}
    assert report._privacy({"epsilon": None, "noise": 0.0}).startswith("epsilon is infinite")
    assert in_rows(built(toy), (2,)) == [{}] and guaranteed.in_summary(built(toy), [], 2) == {}
    assert not units.is_free("epsilon")  # no user-defined metric can have this name


def test_a_summary_has_the_guarantee_and_the_number_of_full_cohorts(toy):
    """Once a run whose noise was computed has begun, its rounds are fixed."""
    made = central(toy, privacy_epsilon="8", privacy_delta="0.01", privacy_sampling="fixed")
    rows = [{"seed": 5, "recorded": {"full_cohorts": number}} for number in (1, 3)]
    entry = guaranteed.in_summary(made, rows, 4)["privacy"]
    assert 7 < entry["epsilon"] <= 8 and entry["delta"] == 0.01 and entry["full"] == {"5": 3}
    assert (entry["unit"], entry["neighbors"]) == ("client", accounting.NEIGHBORS["fixed"])
    line = report._privacy(entry)
    assert line.startswith(f"epsilon {entry['epsilon']:.4g} at delta 0.01 for each client, between")
    assert line.endswith(f"noise multiplier {entry['noise']:.4g}; 3 cohorts were full")
    error = complaint(experiment.check_noise, made, 4, 8, 2)
    assert "would have changed the noise of the first 2 rounds" in error
    experiment.check_noise(made, 4, 8, 0)
    experiment.check_noise(central(toy, privacy_noise="1"), 4, 8, 2)


def play(toy, folder, rounds=4, seeds=(0,), method="scaffold", **privacy):
    config = load_config(f"{toy}:{method}")
    config["privacy"] = {"noise": 0.3, **privacy}
    config["run"]["rounds"] = rounds
    return fedjax_lab.run(config, workdir=folder, seeds=seeds, resume=True, quiet=True)


@pytest.mark.parametrize("name", exhaustive_but([], ["central", "adaptive", "local"]))
def test_a_resumed_private_run_with_more_rounds_equals_an_uninterrupted_one(
    name, toy, tmp_path, monkeypatch
):
    whole = play(toy, tmp_path / "whole", 6, name=name)
    with monkeypatch.context() as patch, pytest.raises(runner.Interrupted):
        stopping_after(3, patch)
        play(toy, tmp_path / "run", name=name)
    grown = play(toy, tmp_path / "run", 6, name=name)
    rows = comparable(tmp_path / "run")
    assert rows == comparable(tmp_path / "whole")
    epsilons = [row["epsilon"] for row in rows]
    assert epsilons == sorted(epsilons) and epsilons[0] < epsilons[-1]
    assert grown.summary["privacy"] == whole.summary["privacy"]
    toys.same(grown.states, whole.states)
    if name == "adaptive":
        clips = [row["recorded"]["clip"] for row in rows]
        assert len(set(clips)) == len(clips)
        assert [int(state.server.extra.releases) for state in grown.states] == [6]


@pytest.mark.exhaustive
def test_privacy_without_clip_and_noise_equals_the_plain_method_exactly(toy, tmp_path):
    settings = {"noise": 0.0, "epsilon": "inf", "clip": "inf", "sampling": "fixed"}
    private = play(toy, tmp_path / "private", name="central", **settings)
    config = load_config(f"{toy}:scaffold")
    config["run"]["sampling"] = "equal"
    plain = fedjax_lab.run(config, workdir=tmp_path / "plain", quiet=True)
    rows = comparable(tmp_path / "private")
    assert [row.pop("epsilon") for row in rows] == [None] * len(rows)
    assert rows == comparable(tmp_path / "plain")
    toys.same(private.states, plain.states)
    assert metric_rows.tagged(private.metrics[0]) == metric_rows.tagged(plain.metrics[0])


USER_FILE = '''
from fedjax_lab.transforms.guarantee import Guarantee

def trusted(method, task, setup, *, budget: float = 0.5):
    """budget: epsilon of each round."""
    def epsilons(rounds):
        return [budget * number for number in rounds]

    promised = Guarantee("client", "any two populations", 1e-6, 0.0, epsilons, setup.rounds)
    return method.having(guarantee=promised)
'''


def test_a_mechanism_may_be_user_defined(toy, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(USER_FILE)
    monkeypatch.chdir(tmp_path)
    made = built(toy, privacy_name="own.py:trusted", privacy_budget="0.25")
    assert in_rows(made, (4,)) == [{"epsilon": 1.0, "delta": 1e-6}]
    assert experiment.guarantee(made).rounds == 4
    assert (
        descriptions.section_meanings("privacy", made.config.privacy)["budget"]
        == "epsilon of each round"
    )


REFUSED = [
    ({"method": "fedconcat"}, "=central does not fit method fedconcat: it has stages"),
    ({"run_sampling": "equal"}, "config.privacy.name=central both draw the clients"),
    ({"method": "central"}, "it trains on the examples of all clients at once"),
]


@pytest.mark.parametrize(("overrides", "said"), REFUSED)
def test_configs_that_cannot_be_private_are_one_line_errors(toy, overrides, said):
    assert said in complaint(central, toy, privacy_noise="1", **overrides)


# What a private run says before training if its guarantee is worth nothing.


@pytest.fixture
def private_run(tmp_path):
    """A function that builds a private run of 4 rounds with so many clients."""

    def build(clients, **privacy):
        y = np.arange(20 * clients) % 4
        x = np.random.default_rng(0).normal(size=(len(y), 5)).astype(np.float32)
        np.savez(tmp_path / "data.npz", x=x, y=y, client=np.arange(len(y)) % clients)
        partition = {"name": "by_client", "num_clients": 0}
        run, privacy = {"rounds": 4, "cohort": clients // 2}, {"name": "central", **privacy}
        return toys.build(tmp_path, partition=partition, run=run, privacy=privacy)

    return build


def test_a_large_delta_is_named_and_a_sound_guarantee_needs_no_remark(private_run):
    few = private_run(5, noise=1.0)  # delta is 5^-1.1 = 0.17
    assert "a delta of 0.17 for 5 clients is no guarantee" in guaranteed.remark(few)
    given = private_run(40, noise=0.1, delta=0.03)  # above 1/40
    assert "a delta of 0.03 for 40 clients" in guaranteed.remark(given)
    assert guaranteed.remark(private_run(40, noise=1.0, delta=1e-4)) == ""
    assert guaranteed.remark(private_run(40, epsilon="inf")) == ""


def test_the_length_of_the_noise_is_that_of_the_formula(private_run):
    made = private_run(40, noise=30.0, delta=1e-4)
    first = made.task.init(jax.random.key(0))
    d = sum(a.size for a in jax.tree.leaves(first.params))
    length = 30 * np.sqrt(4 * d) / (20 * 4)  # sigma S sqrt(d T) / m, over S T
    assert guaranteed.remark(made).startswith(
        f"privacy: the noise of all rounds together is {length:.2g} times as long"
    )
