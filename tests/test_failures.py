"""Clients that fail: the server ignores lost uploads, and stragglers make fewer passes."""

import functools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from slow_cases import exhaustive_but, in_ci

from fedjax_lab import losses, streams, tree
from fedjax_lab.engine import parallel
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.input import Host
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import registry
from fedjax_lab.simulation import failures, simulate
from fedjax_lab.simulation.client_work import Public, WorkRows, make_work, work_rows
from fedjax_lab.types import Exchange, Failures, Method

LOSSY = toys.PLAN._replace(failures=Failures(dropout=0.4))
LATE = toys.PLAN._replace(failures=Failures(straggler=0.6), epochs=4)
ARRIVED = jnp.array([True, False, True, True, False])
PLAIN = {
    name: method
    for name in registry.METHODS
    if isinstance(method := toys.make(name), Method) and not method.extra.one_by_one
}


def in_round(t, ids):
    """The streams of these clients in round t."""
    return streams.clients(KEYS.local, t, jnp.asarray(ids))


def arrived(plan, t, ids):
    return np.asarray(failures.losses(plan, toys.turn(in_round(t, ids))).arrived)


def passes_in(plan, t, ids):
    return np.asarray(failures.stragglers(plan, toys.turn(in_round(t, ids))).work)


# Which clients fail.


def test_each_upload_is_lost_independently_with_the_given_probability():
    """In ten thousand rounds of eight clients, neither clients nor rounds are correlated.

    A straggler makes at least one pass and not all passes.
    """

    @jax.vmap
    def drawn(t):
        turn = toys.turn(in_round(t, np.arange(toys.C)))
        return ~failures.losses(LOSSY, turn).arrived, failures.stragglers(LATE, turn).work

    lost, passes = map(np.asarray, drawn(jnp.arange(10_000)))
    np.testing.assert_allclose(lost.mean(0), 0.4, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(lost.T), np.eye(toys.C), atol=0.05)
    assert abs(np.corrcoef(lost[1:, 0], lost[:-1, 0])[0, 1]) < 0.05
    shares = np.bincount(passes.ravel(), minlength=5) / passes.size
    np.testing.assert_allclose(shares, [0, 0.2, 0.2, 0.2, 0.4], atol=0.012)


def test_failures_depend_only_on_the_seed_the_round_and_the_client():
    """The other participants do not matter, and stragglers and lost uploads are uncorrelated."""
    plan = LATE._replace(failures=LATE.failures._replace(dropout=0.6))
    all_clients = np.arange(400)
    whole, part = (arrived(plan, 3, ids) for ids in (all_clients, all_clients[5::7]))
    assert whole[5::7].tolist() == part.tolist()
    late = passes_in(plan, 3, all_clients) < 4
    assert abs(np.corrcoef(late, ~whole)[0, 1]) < 0.15
    assert (whole != arrived(plan, 4, all_clients)).any()


def test_no_client_fails_by_default_and_none_that_pools_examples(folder):
    turn = toys.turn(in_round(0, [1, 2]))
    assert failures.losses(toys.PLAN, turn) is turn is failures.stragglers(toys.PLAN, turn)
    pooled = build(folder, "central", dropout=0.5, straggler=0.5)
    assert pooled.simulation.plan.failures == Failures()
    (told,) = [line for line in pooled.remarks if "no effect" in line]
    assert "central" in told and "config.run.dropout=0.5, config.run.straggler=0.5" in told
    plan = build(folder, "fedavg", dropout=0.5, straggler=0.25).simulation.plan
    assert plan.failures == Failures(dropout=0.5, straggler=0.25)


# What the server receives.


def test_a_lost_upload_becomes_zeros_without_weight():
    cohort = tree.take(toys.POPULATION, jnp.arange(5))._replace(weight=jnp.arange(1, 6) / 15)
    w = jnp.where(ARRIVED[:, None], jnp.ones((5, 2)), jnp.nan)
    sent = {"w": w, "key": jax.random.split(KEYS.init, 5)}
    uploads, seen = failures.received(sent, cohort, ARRIVED)
    assert uploads["w"].tolist() == [[1, 1], [0, 0], [1, 1], [1, 1], [0, 0]]
    np.testing.assert_allclose(seen.weight, np.array([1, 0, 3, 4, 0]) / 8, rtol=1e-6)
    assert seen.n.tolist() == (cohort.n * ARRIVED).tolist()
    assert jnp.zeros(toys.C).at[seen.id].set(1).tolist() == [1, 0, 1, 1, 0, 0, 0, 0]


def check_a_round(method, plan, federation, population, state):
    """Asserts that the server state is that of a round without the clients of lost uploads."""
    client = tree.take(population, 0)._replace(private=tree.take(state.private, 0), arrived=None)
    entry, rng = (client, KEYS.local, None), np.random.default_rng(0)
    cohort = tree.take(population, jnp.array([5, 0, 3, 1, 4]))
    cohort = cohort._replace(weight=cohort.n / cohort.n.sum(), key=tree.repeat(KEYS.init, 5))
    cohort = cohort._replace(public=Public(federation, plan))
    rows = WorkRows(*(a if a is None else a[0] for a in work_rows(method, federation)))
    positions = np.flatnonzero(ARRIVED)
    few = tree.take(cohort, positions)
    few = few._replace(weight=few.weight / few.weight.sum(), arrived=jnp.ones(len(positions), bool))
    whole = partial = state.server
    for exchange in method.round:
        run = simulate.one_client(exchange, plan)
        (shapes, _), _ = jax.eval_shape(run, whole, federation, rows, entry)
        uploads = jax.tree.map(lambda a: values(rng, a), shapes)
        whole = exchange.aggregate(whole, *failures.received(uploads, cohort, ARRIVED))
        partial = exchange.aggregate(partial, tree.take(uploads, positions), few)
    toys.close(whole, partial)
    if jax.tree.leaves(uploads):
        pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(state.server), strict=True)
        assert any((a != b).any() for a, b in pairs)


def values(rng, shape):
    """Random values [5, ...]: numbers near 1, or integers below 2."""
    size = (5, *shape.shape)
    if jnp.issubdtype(shape.dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 2, size), shape.dtype)
    return jnp.asarray(rng.uniform(0.5, 1.5, size), shape.dtype)


SETTINGS = {
    "fedgma": [{"weights": "size"}, {"mode": "average_plus_masked_step"}, {"tau": 0.9}],
    "hfedf": [{"grad_align": False}, {"nu_lazy": True}, {"embedding": "random"}],
    "ifca": [{"by_size": True}],
    "cfl": [{"eps1": 1e6, "eps2": 0.0}],
    "feddisco": [{"distance": "l2"}],
    "mimelite": [{"base_optimizer": "adam"}],
    "fedopt": [{"server_optimizer": "yogi"}],
    "fedc2i": [{"head": "mean"}],
}
# Methods that count clients in different ways, or scatter by their id.
COUNTING = "fedavg feddyn fedproto ifca scaffold".split()


SERVERS = [
    *((name, {}) for name in PLAIN),
    *((name, each) for name, those in SETTINGS.items() for each in those),
]
CHOSEN = [(name, {}) for name in COUNTING]


@pytest.mark.parametrize(("name", "settings"), in_ci(CHOSEN, SERVERS))
def test_the_server_learns_only_from_uploads_that_arrive(name, settings):
    method = toys.make(name, **settings)
    state = simulate.init(method, KEYS, toys.C)
    federation, *_ = toys.pooled(method)
    check_a_round(method, toys.PLAN, federation, toys.POPULATION, state)


STAGED = [
    {"name": "fedconcat", "clustering": "fesem"},
    {"name": "client2vec", "index": "federated", "index_epochs": 2, "base": "fedgma"},
    {"name": "lg_fedavg", "pretrain_rounds": 2},
    {"name": "fedconcat"},
    {"name": "fedconcat", "clustering": "ifca"},
    {"name": "fedconcat", "clustering": "fedsoft"},
    {"name": "fedconcat_id"},
    {"name": "fedconcat_id", "infer_from": "bias", "classifier_init": "clusters"},
    {"name": "client2vec", "index_epochs": 2},
    {"name": "client2vec", "index": "local_weights"},
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", STAGED)
def test_the_server_of_each_stage_learns_only_from_arriving_uploads(method, folder, small_network):
    """A stage that needs an upload of every client is left out: it loses none."""
    engine = Engine(build(folder, method).simulation)
    for stage in engine.simulation.stages:
        if stage is not engine.simulation.stages[0]:
            engine.next_stage()
        engine._apply_view()
        lane = engine.lanes[0].training
        population = lane.population._replace(arrived=jnp.ones(6, bool))
        if not stage.reliable:
            of_stage = engine.plan, lane.federation, population, engine.states[0]
            check_a_round(stage.method, *of_stage)


def without_the_lost(method, plan, t):
    """The method that draws only clients whose uploads arrive in round t, and the other ids."""
    state = simulate.init(method, KEYS, toys.C)
    key = jax.random.fold_in(KEYS.cohort, t)
    ids, share = method.sample(key, state.server, toys.POPULATION, plan.cohort)
    arriving = arrived(plan, t, ids)
    assert 0 < arriving.sum() < len(ids)

    def sample(key, server, population, m):
        return ids[arriving], share[arriving] / share[arriving].sum()

    return method._replace(sample=sample), np.asarray(ids)[~arriving]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedper", "fediir"])
def test_a_round_equals_one_of_the_clients_whose_uploads_arrive(name):
    """Also with several exchanges or one by one; the others train and keep private states."""
    method = toys.make(name)
    few, lost = without_the_lost(method, LOSSY, 2)
    state, sums = toys.player(method, plan=LOSSY)(KEYS, 2, 1)
    expected, _ = toys.player(few)(KEYS, 2, 1)
    toys.close(state.server, expected.server)
    others = np.setdiff1d(np.arange(toys.C), lost)
    toys.close(tree.take(state.private, others), tree.take(expected.private, others))
    private, first = jax.tree.leaves(state.private), simulate.init(method, KEYS, toys.C).private
    for a, b in zip(private, jax.tree.leaves(first), strict=True):
        assert (np.asarray(a)[lost] != np.asarray(b)[lost]).reshape(len(lost), -1).any(1).all()
    together, _ = toys.player(method)(KEYS, 2, 1)
    toys.same(together.private, state.private)
    assert not sums.counts and float(sums.steps) > 0


@pytest.mark.parametrize("name", exhaustive_but(["pfedhn"], ["fedopt", "pfedhn"]))
def test_the_server_is_unchanged_if_all_uploads_are_lost(name):
    method, plan = toys.make(name), toys.PLAN._replace(failures=Failures(dropout=1 - 1e-6))
    state, sums = toys.player(method, plan=plan)(KEYS, 0, 2)
    toys.same(state.server, simulate.init(method, KEYS, toys.C).server)
    assert int(sums.diverged) == -1 and float(sums.examples) > 0


def test_an_aggregate_that_returns_no_server_state_is_rejected():
    """If all uploads are lost, nothing could take the place of such a result."""
    method = toys.make("fedavg")
    (plain,) = method.round
    ask = Exchange(plain.send, plain.local, lambda server, uploads, cohort: (server, server))
    answer = Exchange(lambda server, id: server[0], plain.local, lambda both, w, cohort: both[0])
    method = method._replace(round=(ask, answer))
    toys.player(method)(KEYS, 0, 1)
    with pytest.raises(BadInput, match="where uploads may be lost, each `aggregate`"):
        toys.bytes_of(method, LOSSY)


# Stragglers.


def passes_of(method, plan):
    """The cohort of the first round, and the number of passes of each client in it."""
    ids = naive.cohort(method, 0)
    passes = passes_in(plan, 0, ids).tolist()
    assert len(set(passes)) > 1 and min(passes) < 4
    return ids, passes


@pytest.mark.slow
def test_a_straggler_makes_fewer_passes():
    """FedAvg in NumPy, where each client makes its number of full-batch steps."""
    method, plan = (
        toys.make("fedavg", toys.TASK),
        naive.FULL._replace(failures=Failures(straggler=0.7), epochs=4),
    )
    ids, passes = passes_of(method, plan)
    w = naive.first_weights()
    models = [naive.sgd(w, *naive.data_of(i), steps=p) for i, p in zip(ids, passes, strict=True)]
    state, sums = toys.player(method, plan=plan)(KEYS, 0, 1)
    naive.close(state.server, naive.mean_by_size(ids, models))
    assert float(sums.steps) == sum(passes)


@pytest.mark.slow
def test_fednova_uses_the_number_of_steps_of_each_straggler():
    plan = naive.FULL._replace(failures=Failures(straggler=0.7), epochs=4)
    method = toys.make("fednova", toys.TASK)
    (ids, passes), rho = passes_of(method, plan), naive.MOMENTUM
    w, p = naive.first_weights(), naive.shares(ids)
    a = np.array([(k - rho * (1 - rho**k) / (1 - rho)) / (1 - rho) for k in passes])
    d = [
        [x / a_i for x in naive.sub(w, naive.sgd(w, *naive.data_of(i), steps=k))]
        for i, k, a_i in zip(ids, passes, a, strict=True)
    ]
    expected = naive.add(w, naive.mean(p, d), -(p @ a))
    naive.close(toys.player(method, plan=plan)(KEYS, 0, 1)[0].server, expected)


def test_a_straggler_makes_the_same_share_of_a_methods_number_of_passes():
    """It is rounded up: a straggler makes FedRep's single pass over the head completely."""
    rows, risk = toys.FEDERATION.train[0], losses.risk(toys.TASK)
    w = toys.TASK.init(KEYS.init)

    @functools.partial(jax.jit, static_argnums=0)
    def done(epochs, passes):
        work, trainings = make_work(toys.FEDERATION, rows, LATE, KEYS.local, passes)
        work.train(w, risk, epochs=epochs)
        return trainings[0].steps * passes / work.steps

    for epochs, expected in ((4, [1, 2, 3, 4]), (10, [3, 5, 8, 10]), (1, [1] * 4)):
        assert [float(done(epochs, p)) for p in range(1, 5)] == expected


# In a run.


def simulation(**options):
    plan = toys.PLAN._replace(failures=Failures(dropout=0.4, straggler=0.5), epochs=2)
    return toys.simulation(toys.make("scaffold"), 6, plan, **options)


def played(blocks=(2, 4), **options):
    """The engine after six rounds in these blocks, with an evaluation after the first."""
    engine = Engine(simulation(**options))
    engine.compile()
    for i, goal in enumerate(np.cumsum(blocks)):
        while engine.played < goal:
            engine.play(int(goal) - engine.played)
        if i == 0:
            engine.evaluate()
    return engine


def counted(engine):
    return engine.final_states(), engine.progress(), engine.bytes


@functools.cache
def undisturbed():
    return counted(played())


@pytest.mark.exhaustive
def test_bytes_up_count_only_uploads_that_arrive():
    """Bytes down count every message to a client, even if its upload is lost."""
    method = toys.make("scaffold")
    each, (*_, sent) = toys.bytes_of(method), undisturbed()
    for seed, (up, down) in enumerate(sent):
        keys, total = streams.make_keys(jax.random.key(seed)), 0
        for t in range(6):
            key = jax.random.fold_in(keys.cohort, t)
            ids, _ = method.sample(key, (), toys.POPULATION, LOSSY.cohort)
            turn = toys.turn(streams.clients(keys.local, t, ids))
            total += np.asarray(failures.losses(LOSSY, turn).arrived).sum()
        assert 0 < total < 30 and (up, down) == (total * each[0], 30 * each[1])


MESH = parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2), by_client=True)
OTHERS = {
    "stream": {"host": Host(stream=True)},
    "mesh": {"strategy": MESH},
    "blocks": {"blocks": (1, 5)},
    "host": {"host": Host()},
    "together": {"vectorized_seeds": True},
    "chunked": {"strategy": parallel.chunked(2)},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", OTHERS)
def test_the_same_clients_fail_however_the_run_is_executed(how):
    states, sums, sent = counted(played(**OTHERS[how]))
    expected, expected_sums, expected_sent = undisturbed()
    toys.close(states, expected)
    assert sent.tolist() == expected_sent.tolist()
    if how != "blocks":
        toys.same(sums.counts, expected_sums.counts)
        assert sums.steps.tolist() == expected_sums.steps.tolist()


@pytest.mark.exhaustive
def test_a_resumed_run_counts_uploads_that_arrived_before():
    snapshot = jax.tree.map(np.array, played(blocks=(2, 1)).snapshot())
    engine = Engine(simulation())
    engine.go_on(snapshot, 3)
    engine.compile()
    while engine.played < 6:
        engine.play(6 - engine.played)
    toys.same(counted(engine), undisturbed())


def build(folder, method, **run):
    sections = {
        "embedding": toys.write_embeddings(folder),
        "method": method if isinstance(method, dict) else {"name": method},
        "local": {"epochs": 2},
        "run": {"rounds": 6, **run},
    }
    return toys.build(folder, **sections)


@pytest.mark.slow
def test_no_upload_is_lost_in_a_stage_that_needs_every_client(folder):
    """The first round of FedConcat-ID forms the clusters and needs an upload of every client."""
    engine = Engine(build(folder, "fedconcat_id", dropout=0.5).simulation)
    assert engine.simulation.plan.failures.dropout == 0.5
    first = engine.simulation.stages[0]
    assert first.reliable and not any(stage.reliable for stage in engine.simulation.stages[1:])
    engine.compile()
    engine.play(1)
    programs = engine.programs[0]
    assert engine.bytes.tolist() == [[6 * size for size in programs.of_round[0].message_bytes]]
