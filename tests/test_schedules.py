"""Checks learning rate schedules: their curves against PyTorch's, and runs that use them."""

import math

import numpy as np
import pytest
import toys
from commands import call
from inputs import complaint
from slow_cases import exhaustive_but

from fedjax_lab.commands import descriptions
from fedjax_lab.engine import views
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.input import unscheduled
from fedjax_lab.experiment import experiment, joint, schedules, variants
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config

ROUNDS = 12
CURVES = {  # what PyTorch's schedulers give in epoch t with a learning rate of 1
    "constant": ({}, lambda t: 1.0),
    "exponential": ({"lr_decay": 0.9}, lambda t: 0.9**t),
    "exponential over 4": ({"lr_decay": 0.5, "lr_decay_every": 4}, lambda t: 0.5 ** (t / 4)),
    "step": ({"lr_decay": 0.5, "lr_decay_every": 4}, lambda t: 0.5 ** (t // 4)),
    "multistep": ({"lr_decay": 0.1, "lr_decay_at": (3, 7)}, lambda t: 0.1 ** ((t >= 3) + (t >= 7))),
    "linear": ({"lr_end": 0.25}, lambda t: 1 - 0.75 * t / ROUNDS),
    "linear until 5": ({"lr_end": 0.25, "lr_decay_rounds": 5}, lambda t: 1 - 0.75 * min(t, 5) / 5),
    "cosine": ({}, lambda t: (1 + math.cos(math.pi * t / ROUNDS)) / 2),
    "cosine until 8": (
        {"lr_end": 0.1, "lr_decay_rounds": 8},
        lambda t: 0.1 + 0.9 * (1 + math.cos(math.pi * min(t, 8) / 8)) / 2,
    ),
}


@pytest.mark.parametrize("name", CURVES)
def test_curves_equal_those_of_pytorch(name):
    settings, expected = CURVES[name]
    made = getattr(schedules, name.split()[0])(ROUNDS, **settings)
    curve = schedules.curve(made, ROUNDS)
    np.testing.assert_allclose(curve, [expected(t) for t in range(ROUNDS)], rtol=1e-5)


def test_a_warmup_rises_to_the_first_value_of_the_schedule():
    made = schedules.after_warmup(schedules.linear, 4, ROUNDS)
    left = 1 - np.arange(8) / 8  # the schedule covers the rounds that are left
    expected = [0.2, 0.4, 0.6, 0.8, *left]
    np.testing.assert_allclose(schedules.curve(made, ROUNDS), expected, rtol=1e-6)


# Schedules in configs.


toy = toys.config_file(run={"rounds": 3, "eval_every": 3, "cohort": 3})


def config_of(toy, method="fedavg", **overrides):
    keys = {key.replace("__", ".", 1): str(value) for key, value in overrides.items()}
    return resolve(load_config(f"{toy}:{method}"), list(keys.items()))


def test_both_learning_rates_are_listed_for_each_round(toy):
    config = config_of(
        toy, "scaffold", local__schedule="exponential", local__lr_decay=0.5, run__server_warmup=1
    )
    rates = variants.learning_rates(config, [3])
    np.testing.assert_allclose(rates["local.lr"], [0.1, 0.05, 0.025])
    np.testing.assert_allclose(rates["method.server_lr"], [0.5, 1.0, 1.0])
    assert variants.learning_rates(config_of(toy), [3]) == {}
    assert experiment.build(config_of(toy)).simulation.scheduled is unscheduled
    config = config_of(toy, local__schedule="linear", local__warmup=1)
    rates = variants.learning_rates(config, [1, 3])["local.lr"]
    np.testing.assert_allclose(rates, [0.05, 0.05, 0.1, 0.05], rtol=1e-6)  # each stage restarts
    config = {"local": {"optimizer": "sgd", "schedule": "step", "lr_decay": 0.3}}
    assert resolve(config, [("local.optimizer", "adam")]).local.lr_decay == 0.3
    other = resolve(config, [("local.schedule", "exponential")])
    assert other.local.lr_decay == 0.99  # the default of the other schedule


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"run__server_schedule": "step"}, "a method with the setting server_lr, which"),
        ({"run__server_warmup": 2}, "fedavg does not have; methods that have it: adcol, ca2fl"),
        ({"local__warmup": 3}, "config.local.warmup=3 must be less than the 3 rounds"),
        ({"local__schedule": "cosin"}, "no schedule 'cosin'; did you mean 'cosine'?"),
        (
            {"local__schedule": "cosine", "local__lr_decay_rounds": 2},
            "config.local.schedule=cosine: its factor of the learning rate is 0 in round 3 of 3",
        ),
        (
            {"local__schedule": "step", "local__lr_decay_every": -3},
            "config.local.lr_decay_every must be above 0",
        ),
        ({"local__schedule": "linear", "local__lr_decay_rounds": -5}, "lr_decay_rounds must"),
        ({"local__schedule": "step", "local__lr_deacy": 0.5}, "'lr_deacy'; did you mean 'lr_decay"),
    ],
)
def test_an_invalid_schedule_is_a_one_line_error(toy, settings, message):
    assert message in complaint(lambda: experiment.build(config_of(toy, **settings)))


OWN = """
import optax


def halves(rounds, *, floor: float = 0.2):
    return lambda t: 1.0 - (1.0 - floor) * t / rounds


def none(rounds):
    return 0.5


def two(rounds):
    return lambda t: [t, t]


def steps(lr, *, lr_decay: float = 0.5):
    return optax.sgd(lr)
"""


def test_a_user_defined_schedule_is_used_and_checked(toy, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    config = config_of(toy, local__schedule=f"{own}:halves", local__floor=0.4)
    np.testing.assert_allclose(
        variants.learning_rates(config, [3])["local.lr"], [0.1, 0.08, 0.06], rtol=1e-6
    )
    for name, message in {
        "none": "must return a function",
        "two": "must return one number",
    }.items():
        config = config_of(toy, local__schedule=f"{own}:{name}")
        assert message in complaint(variants.learning_rates, config, [3])
    both = {"local__optimizer": f"{own}:steps", "local__schedule": "step"}
    message = complaint(lambda: config_of(toy, **both))
    assert "config.local.lr_decay is a setting of" in message and "and of step" in message


def test_show_config_prints_the_curve(toy, capsys):
    assert call(f"--config={toy}", "--show_config", "--config.local.schedule=linear") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "learning rate (above 0): 0.1 in round 1, 0.0667 in 2, 0.0333 in 3" in out
    assert "the number of rounds until `lr_end`, which holds afterwards; 0: the whole run" in out
    assert descriptions.shown_curve(np.array([0.5])) == "0.5 in round 1"


# Schedules in runs.

BOTH = {
    "local__schedule": "exponential",
    "local__lr_decay": 0.5,
    "run__server_schedule": "linear",
    "run__lr_end": 0.5,
}
METHODS = {  # clients that use the learning rate, a wrapper with stages, and a server that trains
    "scaffold": BOTH,
    "client2vec": {**BOTH, "method__base": "scaffold", "method__index": "feature_average"},
    "central": {"local__schedule": "step", "local__lr_decay_every": 1},
}


@pytest.mark.parametrize("method", exhaustive_but(["scaffold"], METHODS))
def test_each_round_equals_one_of_a_run_with_its_learning_rates(method, toy):
    job = experiment.build(config_of(toy, method, **METHODS[method]))
    lengths = [stage.rounds for stage in job.simulation.stages]
    rates = variants.learning_rates(job.config, lengths)
    engine, other = Engine(job.simulation), Engine(job.simulation)
    engine.compile()
    for t in range(sum(lengths)):
        given = {key.replace(".", "__"): float(curve[t]) for key, curve in rates.items()}
        plain = experiment.build(config_of(toy, method, **METHODS[method], **given)).simulation
        other.simulation = plain._replace(scheduled=unscheduled)
        other._images = views.unviewed(other.simulation, other.place)  # with the plan's rate
        other.compile()
        for each in (engine, other):
            each.play(1)
            if each.stage_is_over:
                each.next_stage()
                each.compile()
        toys.close(engine.states[0], other.states[0], rtol=1e-4, atol=1e-5)


def test_more_rounds_must_not_change_the_learning_rates_of_past_rounds(toy):
    def check(played, **settings):
        config = config_of(toy, "scaffold", **settings)
        variants.check_rates(config, [3], [6], played)

    check(3, local__schedule="exponential", local__warmup=1)
    check(3, local__schedule="cosine", local__lr_decay_rounds=9)
    check(1, local__schedule="cosine")  # every schedule begins at 1
    message = complaint(check, 3, local__schedule="cosine")
    assert "config.local.schedule=cosine depends on config.run.rounds" in message
    message = complaint(check, 3, run__server_schedule="linear")
    assert "would have changed method.server_lr in the first 3" in message


@pytest.mark.exhaustive
def test_tuning_before_evaluation_uses_the_learning_rate_of_the_last_round(toy):
    """It is so small in round 2 that tuning changes nothing."""
    given = {"local__schedule": "exponential", "local__lr_decay": 1e-9, "local__lr": 1.0}
    given["partition__validation"] = 0.3
    engine, untuned = (
        Engine(experiment.build(config_of(toy, method, **given)).simulation)
        for method in ("finetune", "fedavg")
    )
    alike = []
    for each in (engine, untuned):
        each.compile()
    for _ in range(2):
        engine.play(1)
        untuned.play(1)
        toys.same(engine.states[0].server, untuned.states[0].server)
        right = [each.evaluate()[0].validation.correct for each in (engine, untuned)]
        alike.append(np.array_equal(*right))
    assert alike == [False, True]


@pytest.mark.exhaustive
def test_runs_trained_together_follow_separate_schedules(toy):
    configs = [
        config_of(toy, "scaffold", **{**BOTH, "local__lr_decay": decay, "local__lr": lr})
        for decay, lr in ((0.5, 0.1), (0.9, 0.2))
    ]
    parts = [experiment.build(config) for config in configs]
    engine = Engine(joint.join(parts).simulation)
    engine.compile()
    engine.play(3)
    for part, together in zip(parts, engine.final_states(), strict=True):
        alone = Engine(part.simulation)
        alone.compile()
        alone.play(3)
        toys.close(alone.final_states()[0], together, rtol=1e-4, atol=1e-5)
