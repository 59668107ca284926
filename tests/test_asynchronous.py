"""Asynchronous rounds against an event queue in NumPy, and what a schedule promises."""

import functools
import hashlib
import json

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS
from slow_cases import exhaustive_but

from fedjax_lab import sampling, tree
from fedjax_lab.experiment import availability, speeds
from fedjax_lab.methods import _staleness
from fedjax_lab.running.runner import run
from fedjax_lab.simulation import asynchronous, outline, simulate
from fedjax_lab.simulation.asynchronous import Rules, make_schedule
from fedjax_lab.simulation.clock import Clock, Pace, until_available
from fedjax_lab.simulation.population import population_on_host
from fedjax_lab.transforms import staleness
from fedjax_lab.types import Failures

PLAIN = Clock(factor=jnp.ones_like)
UPDATES = 12
SECONDS = np.linspace(1.0, 3.1, toys.C) ** 2  # of a task of each client
EVERYONE = Rules(updates=UPDATES, buffer=1, concurrency=toys.C)


def schedule_of(rules, seconds=SECONDS, clock=PLAIN, seed=0, **fields):
    pace = Pace(np.asarray(seconds, np.float32), np.zeros(len(seconds), np.float32), **fields)
    return make_schedule(clock, pace, rules, 0, seed)


def played(method, schedule, plan=naive.FULL):
    """The state after all updates of a schedule."""
    schedule = jax.tree.map(jnp.asarray, schedule)
    program = simulate.Program(method, plan, toys.VECTORIZED)
    state = simulate.init(method, KEYS, toys.C)
    history = asynchronous.first_history(method, state.server, asynchronous.num_places([schedule]))
    sums = simulate.no_progress(["seconds"])._replace(history=history)
    lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS, schedule=schedule)
    play = jax.jit(functools.partial(simulate.play, program))
    count = len(schedule.ids)
    return play(lane, state, sums, jnp.int32(0), jnp.int32(count))


def queue(buffer, use, train=naive.sgd, max_staleness=0):
    """Processes one arrival after another. All clients train all the time.

    use(w, uploads [(client, start, trained, staleness)]) -> the server's new weights. Returns
    them after UPDATES updates, the stalenesses of the used uploads, and the time.
    """
    w, version, waiting, used = naive.first_weights(), 0, [], []
    events = [(SECONDS[i], i, w, 0) for i in range(toys.C)]
    while version < UPDATES:
        time, i, start, began = min(events, key=lambda event: event[0])
        events = [event for event in events if event[1] != i]
        if max_staleness and version - began > max_staleness:
            events.append((time + SECONDS[i], i, w, version))
            continue
        waiting.append((i, start, train(start, *naive.data_of(i)), version - began))
        if len(waiting) == buffer:
            w, version = use(w, waiting), version + 1
            used += [tau for *_, tau in waiting]
            events += [(time + SECONDS[j], j, w, version) for j, *_ in waiting]
            waiting = []
    return w, used, time


def s(tau):
    return (1 + tau) ** -0.5


def buffered(w, uploads):
    """The update of FedBuff with a server's learning rate of 0.7."""
    for _, start, trained, tau in uploads:
        w = naive.add(w, naive.sub(trained, start), 0.7 / len(uploads) * s(tau))
    return w


@pytest.mark.slow
def test_fedbuff_is_an_event_queue():
    rules = EVERYONE._replace(buffer=3)
    schedule, tasks = schedule_of(rules)
    w, used, time = queue(3, buffered)
    state, sums = played(toys.make("fedbuff", toys.TASK, server_lr=0.7), schedule)
    naive.close(state.server, w)
    lag = np.arange(UPDATES)[:, None] - schedule.version
    assert sorted(lag.ravel()) == sorted(used)
    assert lag.max() >= 3
    np.testing.assert_allclose(float(sums.counts["seconds"]), time, rtol=1e-6)
    assert schedule.started.sum() >= 3 * UPDATES + toys.C - 3
    assert tasks.lost.sum() == 0
    everywhere = schedule._replace(place=schedule.version, new_place=np.arange(1, UPDATES + 1))
    again, _ = played(toys.make("fedbuff", toys.TASK, server_lr=0.7), everywhere)
    toys.close(again.server, state.server, rtol=0, atol=0)  # places do not change numbers
    assert len(sums.history[0]) < UPDATES


def test_fedasync_is_an_event_queue_that_drops_old_uploads():
    def mixed(w, uploads):
        ((_, _, trained, tau),) = uploads
        return naive.mean([1 - 0.6 * s(tau), 0.6 * s(tau)], [w, trained])

    def near(start, x, y):
        return naive.sgd(start, x, y, extra=lambda w: [0.5 * a for a in naive.sub(w, start)])

    schedule, tasks = schedule_of(EVERYONE._replace(max_staleness=4))
    w, used, _ = queue(1, mixed, near, max_staleness=4)
    state, _ = played(toys.make("fedasync", toys.TASK, rho=0.5), schedule)
    naive.close(state.server, w)
    assert schedule.received.sum() > UPDATES
    assert max(used) <= 4


@pytest.mark.slow
def test_ca2fl_is_an_event_queue():
    h = {i: [0 * a for a in naive.first_weights()] for i in range(toys.C)}

    def cached(w, uploads):
        v = naive.mean(np.full(toys.C, 1 / toys.C), list(h.values()))
        for i, start, trained, _ in uploads:
            v = naive.add(v, naive.sub(naive.sub(trained, start), h[i]), 1 / len(uploads))
        h.update({i: naive.sub(trained, start) for i, start, trained, _ in uploads})
        return naive.add(w, v, 0.8)

    schedule, _ = schedule_of(EVERYONE._replace(buffer=2))
    w, *_ = queue(2, cached)
    state, _ = played(toys.make("ca2fl", toys.TASK, server_lr=0.8), schedule)
    (model, mean), private = state.server, state.private
    naive.close(model, w)
    toys.close(mean, jax.tree.map(lambda a: a.mean(0), private))
    plan = naive.FULL._replace(
        failures=Failures(dropout=0.5)
    )  # a lost upload does not change the cache
    state, _ = toys.player(toys.make("ca2fl", toys.TASK), plan=plan)(KEYS, 0, 5)
    toys.close(state.server[1], jax.tree.map(lambda a: a.mean(0), state.private))


# Schedules.


@pytest.mark.parametrize(
    "rules",
    [
        EVERYONE,
        Rules(60, buffer=4, concurrency=12),
        Rules(60, buffer=5, concurrency=5),
        Rules(60, buffer=3, concurrency=20, max_staleness=4, lost=0.2, straggler=0.4, work=5),
        Rules(60, buffer=4, concurrency=9, start_rate=2.0),
        Rules(60, buffer=25, concurrency=25),
    ],
)
@pytest.mark.parametrize("on_and_off", [False, True])
def test_a_schedule_keeps_its_rules(rules, on_and_off):
    rng = np.random.default_rng(7)
    of_clients = {"seconds": rng.lognormal(size=25)}
    if on_and_off:
        of_clients["available"] = availability.on_off(25, rng, on=3.0, off=2.0)
    if rules is EVERYONE:
        of_clients = {}
    schedule, tasks = schedule_of(rules, **of_clients)
    T, K = rules.updates, rules.buffer
    assert schedule.ids.shape == (T, K)
    assert (np.diff(schedule.ids, axis=1) > 0).all()  # a client at most once
    assert (np.diff(schedule.time) >= 0).all()
    assert (schedule.version <= np.arange(T)[:, None]).all()
    staleness = np.arange(T)[:, None] - schedule.version
    stored = {0: 0}
    for t in range(T):  # the history has the versions that are asked for
        assert [stored[place] for place in schedule.place[t]] == list(schedule.version[t])
        stored[int(schedule.new_place[t])] = t + 1
    assert len(stored) == asynchronous.num_places([schedule])
    assert len(stored) <= min(rules.concurrency, staleness.max()) + 2
    dropped = schedule.received.sum() - T * K
    unfinished = schedule.started.sum() - schedule.received.sum() - tasks.lost.sum()
    assert 0 <= unfinished <= rules.concurrency
    assert (np.diff(tasks.busy) >= 0).all()
    assert 0 < tasks.busy[-1] <= schedule.time[-1] * rules.concurrency * (1 + 1e-9)
    if rules.max_staleness:
        assert staleness.max() <= rules.max_staleness < 10 < tasks.lost.sum()
        assert dropped > 0
        assert 1 <= schedule.work.min() < schedule.work.max() == rules.work
    else:
        assert schedule.work is None
        assert dropped == 0
    shorter, _ = schedule_of(rules._replace(updates=T // 2), **of_clients)
    for a, b in zip(jax.tree.leaves(shorter), jax.tree.leaves(schedule), strict=True):
        np.testing.assert_array_equal(a, b[: T // 2])


@pytest.mark.parametrize(
    ("rules", "digest"),
    [
        ({}, "69bef454361a249d658ba27f81dd707a"),
        (
            {"lost": 0.2, "straggler": 0.5, "max_staleness": 3, "work": 4},
            "483c7281e332d4e0433ab422172b31b4",
        ),
        (
            {"start_rate": 8.0, "lost": 0.1, "work": np.arange(50) % 3 + 1},
            "3bf98eadb6ccd07129254588016cdc99",
        ),
    ],
)
def test_a_schedule_keeps_every_bit_of_its_numbers(rules, digest):
    """The digests are of a queue that is slower, which the present one has replaced."""
    rules = Rules(updates=60, buffer=5, concurrency=20, **rules)
    tables = schedule_of(rules, np.random.default_rng(0).uniform(0.5, 4.0, 50), seed=3)
    found = hashlib.md5()
    for table in jax.tree.leaves(tables):
        found.update(str(table.dtype).encode() + np.ascontiguousarray(table).tobytes())
    assert found.hexdigest() == digest


@pytest.mark.slow
def test_equal_clients_make_synchronous_rounds():
    """FedBuff is then FedBuff in synchronous rounds bit for bit, and FedAvg with equal shares."""
    rules = Rules(4, buffer=3, concurrency=3)
    schedule, _ = schedule_of(rules, np.ones(toys.C))
    assert (schedule.version == np.arange(4)[:, None]).all()
    assert list(schedule.time) == [1, 2, 3, 4]
    ids = jnp.asarray(schedule.ids)

    def same(key, server, population, m):
        is_round = jnp.all(key_data == jax.random.key_data(key), axis=-1)
        return ids[jnp.argmax(is_round)], jnp.full(3, 1 / 3)

    each = jax.vmap(jax.random.fold_in, (None, 0))(KEYS.cohort, jnp.arange(4))
    key_data = jax.random.key_data(each)
    method = toys.make("fedbuff", toys.TASK)
    state, _ = played(method, schedule, toys.PLAN)
    synchronous = toys.player(method._replace(sample=same))(KEYS, 0, 4)[0]
    toys.close(state.server, synchronous.server, rtol=0, atol=0)
    averaged = toys.player(toys.make("fedavg", toys.TASK)._replace(sample=same))(KEYS, 0, 4)[0]
    toys.close(state.server, averaged.server)
    plain = toys.make("fedavg", toys.TASK)._replace(sample=sampling.equal)
    rebased, _ = played(staleness.weighted(plain, 0.5), schedule, toys.PLAN)
    toys.close(rebased.server, averaged.server)


@pytest.mark.slow
def test_updates_of_a_method_without_staleness_are_those_of_fedbuff():
    schedule, _ = schedule_of(EVERYONE._replace(buffer=3))
    plain = toys.make("fedavg", toys.TASK)._replace(sample=sampling.equal)
    ours, _ = played(staleness.weighted(plain, 0.5), schedule)
    w, *_ = queue(3, lambda w, uploads: _with_rate_of_one(w, uploads))
    naive.close(ours.server, w)


def _with_rate_of_one(w, uploads):
    return naive.add(w, naive.sub(buffered(w, uploads), w), 1 / 0.7)


@pytest.mark.slow
def test_one_client_after_another():
    """K = 1 and one task at a time with alpha = 1: each client continues from the one before."""
    schedule, _ = schedule_of(Rules(5, buffer=1, concurrency=1))
    state, _ = played(toys.make("fedasync", toys.TASK, alpha=1.0, rho=0.0), schedule)
    w = naive.first_weights()
    for i in schedule.ids[:, 0]:
        w = naive.sgd(w, *naive.data_of(i))
    naive.close(state.server, w)


def test_weights_of_staleness():
    tau = jnp.arange(8.0)
    np.testing.assert_allclose(_staleness.weight("hinge", tau, 0.5, 10, 4)[3:6], [1, 1, 1 / 11])
    np.testing.assert_allclose(_staleness.weight("polynomial", tau, 0.5, 10, 4)[3], 0.5)
    np.testing.assert_allclose(_staleness.weight("constant", tau, 0.5, 10, 4), 1)


@pytest.mark.parametrize("name, settings", [("fedasync", {"alpha": 1.0}), ("fedbuff", {})])
def test_the_slope_of_the_hinge_is_the_papers(name, settings):
    method = toys.make(name, toys.TASK, staleness="hinge", **settings)
    zero = tree.zeros(toys.TASK.init(KEYS.init))
    one = tree.repeat(jax.tree.map(jnp.ones_like, zero), 1)
    cohort = tree.take(toys.POPULATION, jnp.arange(1))._replace(staleness=jnp.array([8.0]))
    for leaf in jax.tree.leaves(method.round[0].aggregate(zero, one, cohort)):
        np.testing.assert_allclose(leaf, 1 / (10 * (8 - 4) + 1), rtol=1e-6)


# Runs.

SECTIONS = {
    "partition": {"name": "iid", "num_clients": 8},
    "local": {"lr": 0.1, "batch_size": 16},
    "clock": {"name": "log_normal", "concurrency": 6, "bandwidth": 1e5},
}


def rows_of(result):
    """The rows of a run without the times of this machine."""
    return [{**row, "seconds": 0} for row in result.metrics]


def built(folder, rounds, seeds=(0, 1), method="fedbuff", target=0.0, **engine):
    return toys.build(
        folder,
        seeds,
        **SECTIONS,
        method={"name": method},
        run={"rounds": rounds, "cohort": 2, "eval_every": 3, "target": target},
        engine=engine,
    )


@pytest.mark.exhaustive
def test_an_asynchronous_run_is_resumed_with_more_rounds(tmp_path):
    """Its numbers, on vectorized seeds and with a longer history, are those of one run."""
    whole = run(built(tmp_path, 18), tmp_path / "whole", quiet=True)
    run(built(tmp_path, 6), tmp_path / "twice", quiet=True)
    twice = run(built(tmp_path, 18), tmp_path / "twice", resume=True, quiet=True)
    assert rows_of(twice) == rows_of(whole)
    run(built(tmp_path, 18, target=1.0), tmp_path / "cut", quiet=True)  # ends at its first row
    cut = run(built(tmp_path, 6), tmp_path / "cut", resume=True, quiet=True)
    assert rows_of(cut) == rows_of(whole)[:4]  # the history is shorter again
    first = [row for row in whole.metrics if row["seed"] == 0]
    times = [row["virtual_seconds"] for row in first]
    assert (np.diff(times) > 0).all()
    simulation = built(tmp_path, 18).simulation
    np.testing.assert_allclose(times, simulation.seeds[0].timeline.schedule.time[2::3], rtol=1e-6)
    tasks = whole.summary["tasks"]["0"]
    _, sent = outline.checked(*_round_of(simulation)).message_bytes
    assert first[-1]["bytes_up"] == 36 * sent
    assert first[-1]["bytes_down"] == simulation.seeds[0].timeline.schedule.started.sum() * sent
    assert tasks["used"] == 36 == tasks["started"] - tasks["unfinished"]
    assert 0 < tasks["used_by_speed"][-1] < tasks["used_by_speed"][0] < 1


def _round_of(simulation):
    method = simulation.stages[0].method
    population = population_on_host(simulation.seeds[0].federation, simulation.num_classes)
    program = simulate.Program(method, simulation.plan, toys.VECTORIZED)
    state = jax.eval_shape(lambda: simulate.init(method, KEYS, 8))
    return program, simulate.Lane(simulation.seeds[0].federation, population, KEYS), state


ENGINES = [
    ("host", (0,), {"state": "host"}),
    ("sharded", (1, 0), {"state": "sharded"}),
    ("sharded alone", (0,), {"state": "sharded"}),
    ("chunked", (0,), {"strategy": "chunked", "chunk": 1}),
]


@pytest.mark.parametrize("name, seeds, engine", exhaustive_but(["host", "sharded"], ENGINES))
def test_strategies_and_hosts_give_an_asynchronous_run_the_same_numbers(
    tmp_path, name, seeds, engine
):
    """Also with private state, under which a client has one task at a time."""

    def losses(seeds=(0,), **engine):
        result = run(built(tmp_path, 9, seeds, "ca2fl", **engine), quiet=True)
        return [row["loss"]["mean"] for row in result.metrics if row["seed"] == 0]

    alone = losses(strategy="sequential")
    assert alone[-1] < alone[0]
    np.testing.assert_allclose(losses(seeds, **engine), alone, rtol=1e-4)


@pytest.mark.parametrize(
    "method, sections",
    exhaustive_but(
        ["scaffold", "fedprox"],
        [
            ("scaffold", {}),
            ("fedprox", {"compression": {"name": "top_k"}}),
            ("fedopt", {"aggregator": {"name": "median"}}),
            ("moon", {"attack": {"name": "sign_flip"}}),
        ],
    ),
)
def test_other_methods_and_transforms_run_asynchronously(tmp_path, method, sections):
    experiment = toys.build(
        tmp_path,
        **SECTIONS,
        **sections,
        method={"name": method},
        run={"rounds": 6, "cohort": 3, "eval_every": 6},
    )
    (row,) = run(experiment, quiet=True).metrics
    assert np.isfinite(row["train_loss"])


# Bad input.


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"clock": {"concurrency": 3}}, "config.clock.concurrency=3 needs the speeds"),
        ({"run": {"cohort": 7}}, "waits for 7 uploads"),
        ({"clock": {**SECTIONS["clock"], "concurrency": 9}}, "more than the 8 clients"),
        ({"clock": {**SECTIONS["clock"], "deadline": 3.0}}, "is for synchronous rounds"),
        ({"clock": {"name": "constant", "deadline": 1e-4}}, "nobody would be in time"),
        ({"clock": {"name": "constant", "over_selection": 0.5}}, "must be at least 1, got 0.5"),
        ({"clock": {"name": "constant", "over_selection": 9.0}}, "use at most 4"),
        ({"clock": {"name": "constant", "late": "partial"}}, "late=partial needs"),
        (
            {"clock": {"name": "constant", "seconds": -1.0}},
            "clock.seconds must be at least 0",
        ),
        (
            {"clock": {"name": "constant", "over_selection": 2.0}, "method": {"name": "local"}},
            "always draws 8",
        ),
        (
            {"clock": {"name": "constant", "deadline": 2.0}, "method": {"name": "pfedhn"}},
            "pfedhn: its clients take turns",
        ),
        (
            {
                "clock": {"name": "constant", "over_selection": 2.0},
                "privacy": {"name": "central", "noise": 1.0},
            },
            "than epsilon assumes",
        ),
        ({"clock": {"name": "constant", "max_staleness": 2}}, "needs config.clock.concurrency"),
        ({"method": {"name": "fedconcat"}}, "has stages"),
        ({"method": {"name": "pfedhn"}}, "never sees the updates of several clients"),
        ({"method": {"name": "central"}}, "trains on the examples of all clients at once"),
        ({"method": {"name": "local"}}, "draws its clients itself"),
        (
            {"method": {"name": "fediir"}},
            ": it has several exchanges in a round; docs/time.md",
        ),
        ({"privacy": {"name": "central"}}, "config.privacy.name=central"),
        ({"run": {"sampling": "all_clients"}}, "config.run.sampling=all_clients"),
        ({"clock": {"name": "lognormal"}}, "log_normal"),
        ({"clock": {"name": "trace"}}, "config.clock.speeds must name a file"),
    ],
)
def test_settings_of_the_clock_that_contradict_each_other(tmp_path, changes, words):
    sections = {**SECTIONS, "run": {"cohort": 2}, **changes}
    assert words in complaint(toys.build, tmp_path, **sections)


@pytest.mark.parametrize(
    "text, words",
    [
        ("client,seconds\n0,1\n", "no column bandwidth"),
        ("client,seconds,bandwidth\n0,1,0\n1,-2,0\n", "line 3"),
        ("client,seconds,bandwidth\n0,1,0\n1,,0\n", "line 3"),
        ("client,seconds,bandwidth\n0,1,0\n1,1,0\n2,1,0\n", "client 2 does not exist"),
        ("client,seconds,bandwidth\n0,1,0\n", "client 1 is missing"),
        ("client,seconds,bandwidth\n0,1,0\n1,1,0\n1,1,0\n", "client 1 is repeated"),
    ],
)
def test_a_file_of_speeds_that_is_wrong(tmp_path, text, words):
    (tmp_path / "speeds.csv").write_text(text)
    path = str(tmp_path / "speeds.csv")
    assert words in complaint(speeds.trace, 2, None, speeds=path)


def test_traces(tmp_path):
    (tmp_path / "speeds.csv").write_text("bandwidth,client,seconds\n0,1,2.5\n8,0,1\n")
    read = speeds.trace(2, None, speeds=str(tmp_path / "speeds.csv"))
    assert list(read.seconds) == [1, 2.5]
    assert list(read.bandwidth) == [8, np.inf]
    file = tmp_path / "sessions.json"
    each = {
        "0": {"active": [0], "inactive": [4], "finish_time": 10},
        "1": {"active": [2, 7], "inactive": [3, 9], "finish_time": 12},
    }
    file.write_text(json.dumps(each))
    sessions = availability.trace(2, None, sessions=str(file))
    for library in (np, jnp):
        for time, waits in (
            (0, [0, 2]),
            (2.5, [0, 0]),
            (5, [5, 2]),
            (9.5, [0.5, 4.5]),
            (13, [0, 1]),
        ):
            of = jax.tree.map(library.asarray, sessions)
            np.testing.assert_allclose(until_available(of, time, library), waits, rtol=1e-6)
    file.write_text(json.dumps(each).replace('"1":', '"0":'))
    assert "client 1 is missing" in complaint(availability.trace, 2, None, sessions=str(file))
    each["1"]["inactive"] = [1, 9]
    file.write_text(json.dumps(each))
    assert "ascending" in complaint(availability.trace, 2, None, sessions=str(file))
