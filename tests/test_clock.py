"""Durations of clients and rounds against NumPy, and the laws of the clients' speeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS

from fedjax_lab import streams
from fedjax_lab.experiment import availability, speeds
from fedjax_lab.running.runner import run
from fedjax_lab.simulation.clock import Availability, Clock, Pace, timed, until_available
from fedjax_lab.types import Failures

M, WORK, SENT, TIME = 6, 4, 100, 7.0
COMPUTE = np.array([3.0, 1.0, 2.5, 0.5, 4.0, 1.5], np.float32)  # seconds of a pass
PER_BYTE = np.array([0.01, 0.02, 0.0, 0.05, 0.01, 0.0], np.float32)
ARRIVED = np.array([True, True, False, True, True, True])
CLIENTS = streams.clients(KEYS.local, 3, jnp.arange(M))
FOR_EVERYONE = Clock(factor=jnp.ones_like, minimum=0.5)
SECONDS = 0.5 + COMPUTE * WORK + PER_BYTE * SENT


def outcome_of(clock, arrived=None, work=None, in_turn=False, absent=None, **fields):
    """The turn after the clock; its seconds are those of the round."""
    pace = jax.tree.map(jnp.asarray, Pace(COMPUTE, PER_BYTE, **fields))
    cohort = jax.tree.map(lambda a: a[:M], toys.POPULATION)._replace(traits={"pace": pace})
    drawn = jnp.arange(M) != (M if absent is None else absent)
    given = {"arrived": arrived, "work": work, "drawn": drawn, "seconds": jnp.float32(TIME)}
    plan = toys.PLAN._replace(epochs=WORK, failures=Failures(clock=clock))
    turn = timed(plan, SENT, in_turn, toys.turn(CLIENTS, cohort, **given))
    return turn._replace(seconds=turn.seconds - TIME)


def test_a_round_lasts_until_the_last_upload():
    result = outcome_of(FOR_EVERYONE)
    np.testing.assert_allclose(result.seconds, SECONDS.max(), rtol=1e-6)
    assert result.arrived.all()
    assert result.work is None
    in_turn = outcome_of(FOR_EVERYONE, in_turn=True)
    np.testing.assert_allclose(in_turn.seconds, SECONDS.sum(), rtol=1e-6)
    fewer = np.array([1, 2, 4, 4, 1, 4])
    result = outcome_of(FOR_EVERYONE, work=jnp.asarray(fewer))
    by_hand = 0.5 + COMPUTE * fewer + PER_BYTE * SENT
    np.testing.assert_allclose(result.seconds, by_hand.max(), rtol=1e-6)


@pytest.mark.parametrize("first", [1, 2, 4, 5])
def test_over_selection_uses_the_uploads_that_arrive_first(first):
    """A lost upload never arrives. If too few do, the round lasts until all could have."""
    result = outcome_of(FOR_EVERYONE._replace(first=first), jnp.asarray(ARRIVED))
    order = [i for i in np.argsort(SECONDS) if ARRIVED[i]][:first]
    assert sorted(np.flatnonzero(result.arrived)) == sorted(order)
    np.testing.assert_allclose(result.seconds, SECONDS[order].max(), rtol=1e-6)
    too_few = outcome_of(FOR_EVERYONE._replace(first=5), jnp.arange(M) < 3)
    np.testing.assert_allclose(too_few.seconds, SECONDS.max(), rtol=1e-6)
    assert too_few.arrived.sum() == 3


def test_an_empty_place_of_a_cohort_takes_no_time_and_is_not_waited_for():
    slowest, fastest = int(np.argmax(SECONDS)), int(np.argmin(SECONDS))
    result = outcome_of(FOR_EVERYONE, absent=slowest)
    np.testing.assert_allclose(result.seconds, np.delete(SECONDS, slowest).max(), rtol=1e-6)
    result = outcome_of(FOR_EVERYONE._replace(first=2), absent=fastest)
    used = [i for i in np.argsort(SECONDS) if i != fastest][:2]
    assert sorted(np.flatnonzero(result.arrived)) == sorted([*used, fastest])
    np.testing.assert_allclose(result.seconds, SECONDS[used].max(), rtol=1e-6)


def test_a_deadline_loses_late_uploads_or_takes_partial_work():
    clock = FOR_EVERYONE._replace(deadline=9.0)
    late = outcome_of(clock, jnp.asarray(ARRIVED))
    np.testing.assert_array_equal(late.arrived, ARRIVED & (SECONDS <= 9))
    assert float(late.seconds) == 9
    partial = outcome_of(clock._replace(partial=True), jnp.asarray(ARRIVED))
    passes = np.floor((9 - 0.5 - PER_BYTE * SENT) / COMPUTE).clip(0, WORK)
    np.testing.assert_array_equal(partial.work, passes)
    np.testing.assert_array_equal(partial.arrived, ARRIVED)
    hopeless = outcome_of(clock._replace(deadline=3.4, partial=True))
    can = np.floor((3.4 - 0.5 - PER_BYTE * SENT) / COMPUTE) >= 1
    np.testing.assert_array_equal(hopeless.arrived, can)
    assert 0 < can.sum() < M


def test_a_client_begins_when_it_is_available():
    changes = np.tile(np.array([[2.0, 5.0]], np.float32), (M, 1))  # of a period of 10 seconds
    phase = np.arange(M, dtype=np.float32)
    of = Availability(changes, np.full(M, 10, np.float32), phase)
    waits = [5, 4, 3, 2, 1, 0]
    np.testing.assert_allclose(until_available(of, TIME, np), waits)
    result = outcome_of(FOR_EVERYONE, available=of)
    np.testing.assert_allclose(result.seconds, (SECONDS + waits).max(), rtol=1e-6)


def test_laws_of_speeds():
    rng = np.random.default_rng(0)
    u = jnp.asarray(rng.random(200_000), jnp.float32)
    for law in (speeds.constant, speeds.log_normal):
        np.testing.assert_array_equal(law(3, rng).factor(u[:4]), 1)
    each = speeds.log_normal(100_000, rng, seconds=2.0, sigma=0.5, bandwidth=9.0)
    np.testing.assert_allclose(np.median(each.seconds), 2, rtol=0.02)
    np.testing.assert_allclose(np.log(each.seconds).std(), 0.5, rtol=0.02)
    np.testing.assert_allclose(np.median(each.bandwidth), 9, rtol=0.02)
    assert (speeds.log_normal(4, rng).bandwidth == np.inf).all()
    np.testing.assert_allclose(speeds.exponential(3, rng).factor(u).mean(), 1, rtol=0.02)
    half = speeds.half_normal(3, rng, minimum=1.0, sigma=2.0)
    assert (half.of_tasks, half.minimum, half.seconds[0]) == (True, 1, 2)
    np.testing.assert_allclose(half.factor(u).mean(), np.sqrt(2 / np.pi), rtol=0.02)
    of = availability.on_off(2000, rng, on=3.0, off=1.0)
    shares = [(until_available(of, time, np) == 0).mean() for time in (0, 17.0, 1e4)]
    np.testing.assert_allclose(shares, 0.75, atol=0.05)


def test_blanks_in_a_file_of_speeds_do_not_count(tmp_path):
    file, rng = tmp_path / "speeds.csv", np.random.default_rng(0)
    file.write_text("client, seconds ,bandwidth\n 1, 0.5 ,0\n\n0,2, 1e10\n")
    made = speeds.trace(2, rng, speeds=str(file))
    assert made.seconds.tolist() == [2, 0.5] and made.bandwidth.tolist() == [1e10, np.inf]
    for row, said in (
        ("0,-1,1", "line 2 of"),
        ("0,1", "line 2 of"),
        ("0,inf,1", "line 2 of"),
        (f"{10**30},1,1", "line 2 of"),
        ("0," + "9" * 200_000 + ",1", "is damaged (field larger"),
    ):
        file.write_text(f"client,seconds,bandwidth\n{row}\n")
        assert said in complaint(speeds.trace, 1, rng, speeds=str(file))
    file.write_text("client, second,bandwidth\n0,1,1\n")
    assert "has no column seconds" in complaint(speeds.trace, 1, rng, speeds=str(file))
    file.write_text("client,seconds,seconds,bandwidth\n0,1,2,1\n")
    assert "has two columns seconds" in complaint(speeds.trace, 1, rng, speeds=str(file))


def test_a_first_stage_on_embeddings_has_a_clock(tmp_path):
    """The messages of `client2vec` hold embeddings, which are smaller than the images."""
    method = {"name": "client2vec", "index_epochs": 1}
    experiment = toys.build(tmp_path, method=method, clock={"name": "log_normal"})
    assert all(np.isfinite(seed.task_seconds).all() for seed in experiment.simulation.seeds)


@pytest.mark.slow
def test_a_clock_changes_no_other_number(tmp_path):
    """Rounds of the clock's duration are counted from row to row, for every seed."""
    sections = {
        "partition": {"name": "iid", "num_clients": 6},
        "method": {"name": "fedavg"},
        "run": {"rounds": 4, "cohort": 3, "eval_every": 2},
    }
    plain = run(toys.build(tmp_path, (0, 1), **sections), quiet=True)
    clock = {"name": "constant", "seconds": 0.01, "bandwidth": 1e4}
    experiment = toys.build(tmp_path, (0, 1), **sections, clock=clock)
    timed = run(experiment, tmp_path / "timed", quiet=True)
    times = [row.pop("virtual_seconds") for row in timed.metrics]
    for before, after in zip(plain.metrics, timed.metrics, strict=True):
        assert {**before, "seconds": 0} == {**after, "seconds": 0}
    counts = experiment.simulation.seeds[0].federation.train.count
    sent = (timed.metrics[0]["bytes_up"] + timed.metrics[0]["bytes_down"]) / 6  # two rounds
    assert len({*counts}) == 1  # equal clients: rounds of equal durations
    np.testing.assert_allclose(
        times, np.repeat([2, 4], 2) * (0.01 * counts[0] + sent / 1e4), rtol=1e-5
    )
    names = (tmp_path / "timed" / "names.json").read_text()
    assert '"seconds": [' in names


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (f"{10**30},1,1", "line 2 of"),
        ("0," + "9" * 200_000 + ",1", "line 2 of"),
        ("0,1", "line 2 of"),
        ("0,0,005,1", "line 2 of"),  # a decimal comma
        ("0,1,-1", "not 0,1,-1"),
        ("0,nan,1", "line 2 of"),
    ],
)
def test_a_damaged_file_of_speeds_is_one_line(row, words, tmp_path):
    (file := tmp_path / "speeds.csv").write_text(f"client, seconds ,bandwidth\n{row}\n")
    message = complaint(speeds.trace, 1, None, speeds=str(file))
    assert words in message and message.startswith("config.clock.speeds")
    file.write_text("client, seconds ,bandwidth\n0,2.5,0\n")
    assert speeds.trace(1, None, speeds=str(file)).seconds == [2.5]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"0": {"active": [0], "inactive": [1%s]}}'])
def test_a_damaged_file_of_sessions_is_one_line(text, tmp_path):
    (file := tmp_path / "sessions.json").write_text(text.replace("%s", "0" * 400))
    assert "must be a JSON object" in complaint(availability.trace, 1, None, sessions=str(file))
