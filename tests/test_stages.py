"""Checks runs of several stages: what is handed over, measured, saved and resumed."""

import itertools
import shutil
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from commands import comparable, without_clock
from inputs import complaint
from slow_cases import exhaustive_but
from stops import stopping_after

from fedjax_lab import streams
from fedjax_lab.engine import engine, views
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.placement import Jit
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import devices, experiment
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.running import loading, runner
from fedjax_lab.running.storage import metric_rows, stage_facts
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.client_work import fetch
from fedjax_lab.simulation.population import make_population
from fedjax_lab.types import Exchange, Stage, State


def build(folder, seeds=(0,), rounds=8, way="auto"):
    """An experiment of six clients, three per round, with an evaluation every third round."""
    run = {"rounds": rounds, "eval_every": 3, "cohort": 3}
    return toys.build(folder, seeds, run=run, engine={"seeds": way})


def two_stages(task, extra_of=lambda key: 2):
    """FedAvg, then FedAvg from a shifted model with `extra`, whose length `prepare` finds."""
    plain = fedavg(task)
    (exchange,) = plain.round

    def prepare(key, population, last):
        assert isinstance(last.server.params["head"]["bias"], np.ndarray)
        assert population.label_count.shape == (6, 3)
        shift = np.float32(np.abs(last.server.params["head"]["bias"]).sum())
        return {"shift": shift, "extra": np.arange(extra_of(key), dtype=np.float32)}

    def start(key, num_clients, last, facts):
        w = jax.tree.map(lambda a: a + facts["shift"], last.server)
        return State((w, facts["extra"]), ())

    second = plain._replace(
        round=(
            Exchange(
                lambda server, id: server[0],
                exchange.local,
                lambda server, w, cohort: (exchange.aggregate(server[0], w, cohort), server[1]),
            ),
        ),
        newcomer=lambda state: (state.server[0], ()),
    )
    return Stage("first", plain, 4), Stage("second", second, 4, prepare, start)


def staged(folder, seeds=(0,), way="auto", **how):
    e = build(folder, seeds, way=way)
    return toys.changed(e, stages=two_stages(e.task, **how))


@pytest.fixture(scope="module")
def whole(folder):
    """Uninterrupted runs."""
    return {
        way: runner.run(staged(folder, (0, 1), way), quiet=True)
        for way in ("vectorized", "sequential")
    }


@pytest.mark.exhaustive
def test_a_staged_run_equals_its_stages_played_by_hand(folder, whole):
    """Four rounds, the hand-over and four more rounds; round numbers continue.

    The training loss covers the rounds since the last evaluation, also if a stage ends in between.
    Vectorized and sequential seeds are equal.
    """
    e, result = staged(folder), whole["sequential"]
    keys = streams.make_keys(jax.random.key(0))
    federation = e.simulation.seeds[0].federation
    population = make_population(federation, 3)
    federation, population = jax.tree.map(jnp.asarray, (federation, population))
    lane, none = simulate.Lane(federation, population, keys), simulate.no_progress()
    programs = [
        simulate.Program(stage.method, e.simulation.plan, toys.VECTORIZED)
        for stage in e.simulation.stages
    ]
    first = partial(simulate.play, programs[0], lane)
    state, _ = first(simulate.init(e.simulation.stages[0].method, keys, 6), none, 0, 3)
    middle, sums = first(state, none, 3, 1)
    facts = e.simulation.stages[1].prepare(None, *jax.device_get((population, middle)))
    state = e.simulation.stages[1].start(None, 6, middle, facts)
    state, _ = simulate.play(programs[1], lane, state, none, 4, 4)
    toys.close(result.states[0], state)
    rows = [row for row in result.metrics if row["seed"] == 0]
    places = [(3, "first"), (4, "first"), (6, "second"), (8, "second")]
    assert [(row["round"], row["stage"]) for row in rows] == places
    assert rows[1]["train_loss"] == pytest.approx(float(sums.train_loss), rel=1e-5)
    other = whole["vectorized"]
    assert other.summary["seeds_vectorised"] and not result.summary["seeds_vectorised"]
    toys.close(result.states, other.states)


@pytest.mark.exhaustive
def test_seconds_count_only_training(folder, monkeypatch):
    """The clock gains a second at each reading, so a block of rounds takes one second.

    Each compiled program is first called for no rounds, which is not counted.
    """
    blocks, play = [], Engine.play
    monkeypatch.setattr(Engine, "play", lambda self, n: (blocks.append(self.played), play(self, n)))
    monkeypatch.setattr(engine.time, "perf_counter", map(float, itertools.count()).__next__)
    result = runner.run(staged(folder), quiet=True)
    assert result.summary["seconds"] == len(blocks) > 2
    for row in result.metrics:
        assert row["seconds"] == sum(start < row["round"] for start in blocks)
    once = 1 + 2 * 2  # placing the data; starting and compiling each of two stages
    assert result.summary["compile_seconds"] >= once


def interrupted(how, monkeypatch, tmp_path, experiment):
    """Runs the experiment in the folder `cut` until it is interrupted or killed by `how`."""
    with monkeypatch.context() as patch:
        how(patch)
        with pytest.raises((runner.Interrupted, KeyboardInterrupt)):
            runner.run(experiment, tmp_path / "cut", quiet=True)


def killed_while_facts_are_written(patch):
    """Only the first of two seeds has its facts saved; they are found again."""
    replace = metric_rows.replace

    def killed(path, content):
        if path.name == "second-1.npz":
            raise KeyboardInterrupt
        replace(path, content)

    patch.setattr(metric_rows, "replace", killed)


def stopped_between_the_stages(patch):
    """The state of the new stage must not be mistaken for that of the old one."""
    stop, compile_ = threading.Event(), Engine.compile

    def stopped(self):
        compile_(self)
        if self.stage_number == 1:
            stop.set()

    patch.setattr(runner.interrupts, "delayed", lambda: nullcontext(stop))
    patch.setattr(Engine, "compile", stopped)


INTERRUPTS = {  # how, the way of the seeds, and the number of files of facts, with checksums
    "second stage": (partial(stopping_after, 7), "sequential", 4),
    "facts": (killed_while_facts_are_written, "sequential", 2),
    "between": (stopped_between_the_stages, "sequential", 4),
}


@pytest.mark.parametrize("name", exhaustive_but(["facts"], INTERRUPTS))
def test_a_run_interrupted_in_any_stage_resumes_bit_for_bit(
    name, whole, folder, tmp_path, monkeypatch
):
    how, way, facts = INTERRUPTS[name]
    interrupted(how, monkeypatch, tmp_path, staged(folder, (0, 1), way))
    assert len(list((tmp_path / "cut").glob("stages/*"))) == facts

    def never(key):
        raise AssertionError("facts are read, not found again")

    again = staged(folder, (0, 1), way, **({"extra_of": never} if name == "second stage" else {}))
    result = runner.run(again, tmp_path / "cut", resume=True, quiet=True)
    toys.same(result.states, whole[way].states)
    assert comparable(tmp_path / "cut") == without_clock(whole[way].metrics)


@pytest.mark.exhaustive
def test_facts_of_vectorized_seeds_must_not_differ_in_size(folder, tmp_path, monkeypatch):
    """Sequential seeds have separate programs. Facts that are lost are an error."""
    sizes = iter([2, 3])
    with pytest.raises(BadInput, match="the facts of stage second differ in size between seeds"):
        job = staged(folder, (0, 1), "vectorized", extra_of=lambda key: next(sizes))
        runner.run(job, quiet=True)
    sizes = iter([2, 3])
    different = staged(folder, (0, 1), "sequential", extra_of=lambda key: next(sizes))
    interrupted(partial(stopping_after, 6), monkeypatch, tmp_path, different)
    result = runner.run(different, tmp_path / "cut", resume=True, quiet=True)
    assert [len(state.server[1]) for state in result.states] == [2, 3]
    shutil.rmtree(tmp_path / "cut/checkpoints/8")
    for file in (tmp_path / "cut/stages").iterdir():
        file.unlink()
    with pytest.raises(BadInput, match="is damaged or lost, and its stage needs it"):
        runner.run(different, tmp_path / "cut", resume=True, quiet=True)


def test_damaged_facts_are_rejected(tmp_path):
    facts = {"shift": np.float32(1), "extra": np.arange(9.0)}
    file = tmp_path / "second-0.npz"
    stage_facts.write_arrays(file, facts)
    toys.same(stage_facts.read_arrays(file), facts)
    for damaged in (file, tmp_path / "second-0.npz.sha256"):
        content = damaged.read_bytes()
        for position in range(0, min(len(content), 64), 3):
            flipped = bytes([content[position] ^ 1])
            damaged.write_bytes(content[:position] + flipped + content[position + 1 :])
            message = complaint(stage_facts.read_arrays, file)
            assert f"{file} is damaged or lost, and its stage needs" in message
        damaged.write_bytes(content)


def test_rounds_are_divided_among_stages():
    method = fedavg(toys.TASK)
    (only,) = experiment.lay_out(method, 7)
    assert only.rounds == 7

    def stages(rounds):
        return Stage("a", method, 3), Stage("b", method, rounds - 3)

    assert [(s.name, s.rounds) for s in experiment.lay_out(stages, 7)] == [("a", 3), ("b", 4)]
    assert [(s.name, s.rounds) for s in experiment.lay_out(stages, 3)] == [("a", 3)]
    empty = lambda rounds: (Stage("a", method, 0), Stage("b", method, rounds))  # noqa: E731
    for wrong, rounds in ((stages, 2), (empty, 7), (lambda rounds: (), 7)):
        message = complaint(experiment.lay_out, wrong, rounds)
        assert f"config.run.rounds={rounds} does not fit the stages" in message
    central = method.having(pooled=True)
    both = (Stage("a", method, 3), Stage("b", central, 4))
    assert "do not train on the same clients" in complaint(experiment.lay_out, lambda _: both, 7)
    assert devices.vectorizes_seeds("auto", stages(7), False, "cpu")
    assert not devices.vectorizes_seeds("auto", two_stages(toys.TASK), False, "cpu")
    rows = [  # the best round of a run is one of its last stage
        {"round": r, "seed": 0, "stage": s, "train_loss": 1.0, "accuracy": {"mean": a}}
        for r, s, a in ((1, "one", 90.0), (2, "two", 50.0), (3, "two", 40.0))
    ]
    assert metric_rows.pick_rounds(rows)["max_over_rounds"]["round"] == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["vectorized", "sequential"])
def test_local_and_the_view_of_a_stage_get_the_frozen_part(way, folder):
    """The examples are shifted once and kept; `local` and the view get the same frozen part.

    The third stage has no `start` and begins from the initial state.
    """

    def stages(task):
        plain = fedavg(task)

        def local(message, client, work):
            shifted = work.mean(lambda batch: batch.x.mean())
            return {"frozen": work.frozen, "mean": shifted}, client.private

        def aggregate(server, uploads, cohort):
            return {**server, **jax.tree.map(lambda a: a[0], uploads)}

        def start(key, num_clients, last, facts):
            shift = 100 + jnp.abs(last.server.params["head"]["bias"]).sum()
            return State({"shift": shift, "frozen": jnp.zeros(()), "mean": jnp.zeros(())}, ())

        second = plain._replace(
            init=lambda key, num_clients: start(key, 6, plain.init(key, 6), None),
            round=(Exchange(lambda server, id: (), local, aggregate),),
            predict=lambda message, client, x: x[:, :3],
            newcomer=None,
        )
        again = Stage(
            "third",
            second,
            1,
            frozen=lambda server: server["shift"],
            view=lambda shift, x: 0 * x + shift,
        )
        return Stage("first", plain, 2), again._replace(name="second", start=start), again

    e = build(folder, (0, 1), rounds=4, way=way)
    played, shifts = Engine(toys.changed(e, stages=stages(e.task)).simulation), []
    biases = [state.server.params["head"]["bias"] for state in played.final_states()]
    initial = [100 + float(np.abs(bias).sum()) for bias in jax.device_get(biases)]
    for rounds in (2, 3, 4):
        played.compile()
        while played.played < rounds:
            played.play(rounds - played.played)
        if rounds > 2:
            for state in played.final_states():
                shift = float(state.server["shift"])
                shifts.append(shift)
                assert shift >= 100
                assert float(state.server["frozen"]) == shift
                assert float(state.server["mean"]) == pytest.approx(shift)
        if rounds < 4:
            played.next_stage()
    assert shifts[2:] == pytest.approx(initial) != shifts[:2]


@pytest.mark.exhaustive
def test_a_view_of_images_may_have_any_shape(four_domains):
    """The output of the view is flat in the pool and has its shape in a batch."""

    def stages(task):
        plain = fedavg(task)
        (exchange,) = plain.round
        idle = exchange._replace(local=lambda w, client, work: (w, client.private))
        other = plain._replace(round=(idle,), predict=lambda message, client, x: x[:, 0, :4])

        def halves(frozen, x):
            return x[:, ::2, :, 0]

        return (
            Stage("images", plain, 1),
            Stage("halves", other, 1, start=lambda *a: a[2], view=halves),
            Stage("images again", plain, 1, start=lambda *a: a[2]),
        )

    e = build(four_domains.parent, (0, 1), rounds=3, way="vectorized")
    playing = Engine(toys.changed(e, stages=stages(e.task)).simulation)
    rows = jnp.array([5, 2])
    images = e.dataset.x[[5, 2]] * np.float32(1 / 255)
    for expected in (images, images[:, ::2, :, 0], images):
        playing.compile()
        federation = playing.lanes[0].training.federation
        if federation.x.ndim == 3:  # one for each of the seeds
            federation = federation._replace(x=federation.x[0])
        assert federation.x.shape == (400, np.prod(expected.shape[1:]))
        np.testing.assert_array_equal(fetch(federation, rows, playing.plan).x, expected)
        if not playing.stage_is_over:
            playing.play(1)
        if playing.stage_is_over:
            playing.next_stage()


@pytest.mark.exhaustive
def test_new_clients_are_scored_through_the_view_of_a_stage(folder, tmp_path):
    """FedConcat scores them with the features of the concatenated encoders, as the loaded run does.

    The clusters are those of the other clients.
    """
    sections = {
        "partition": {"new_clients": 0.4},
        "method": {"name": "fedconcat", "num_clusters": 2, "classifier_rounds": 2},
        "run": {"rounds": 4, "eval_every": 1},
    }
    built = toys.build(folder, [3], **sections)
    rows = runner.run(built, tmp_path / "run", quiet=True).metrics
    assert all("new" not in row for row in rows if row["stage"] == "encoders")
    run = loading.load(tmp_path / "run")
    assert run.num_clients == 4
    federation = run.experiment.simulation.seeds[0].federation
    for held, percent in zip(federation.new_test, rows[-1]["new_per_client"], strict=True):
        held = held[held >= 0]
        right = run.predict(run.experiment.dataset.x[held]).argmax(1) == federation.y[held]
        assert percent == pytest.approx(100 * right.mean())


def test_a_stage_with_other_batches_has_no_common_number_of_steps(tmp_path):
    e = build(tmp_path)
    plan = e.simulation.plan._replace(equal_steps=True)

    def plan_of(size):
        stage = e.simulation.stages[0]._replace(plan=lambda plan: plan._replace(batch_size=size))
        simulation = toys.changed(e, stages=(stage,), plan=plan).simulation
        made = Engine(simulation, abstract=True)
        jit = Jit(made.place, simulation.precision)
        return views.viewed(simulation, 0, jit, views.Viewed(made.lanes, plan), None).plan

    assert plan_of(plan.batch_size) == plan
    assert plan_of(2) == plan._replace(batch_size=2, equal_steps=False)


def test_first_states_are_made_in_the_contexts_of_the_caller(tmp_path, monkeypatch):
    """Contexts of JAX are those of a thread, and the states are computed in another one."""
    simulation = build(tmp_path).simulation

    def states():
        return Engine(simulation).states

    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        made = states()
        monkeypatch.setattr(engine, "in_thread", finished)
        toys.same(made, states())
    with pytest.raises(AssertionError):
        toys.same(made, states())


def finished(function):
    """The future of a function that was called at once."""
    result = Future()
    result.set_result(function())
    return result
