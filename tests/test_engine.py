"""Cohorts, strategies, scores: what runs where, at what cost, and that nothing else changes."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys

from fedjax_lab import evaluate, parallel, sampling, simulate, tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models import conv, nets
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Exchange, State

KEYS = simulate.make_keys(jax.random.key(0))


# Cohorts.


@pytest.mark.parametrize("count, m", [(7, 7), (10, 4), (5000, 1), (5000, 30), (100_000, 1000)])
def test_a_cohort_has_distinct_members(count, m):
    ids = np.asarray(
        jax.jit(sampling.without_replacement, static_argnums=(1, 2))(KEYS.cohort, count, m)
    )
    assert len(ids) == m and len(set(ids.tolist())) == m
    assert ids.min() >= 0 and ids.max() < count


@pytest.mark.parametrize("count", [12, 20])
def test_every_client_is_drawn_equally_often(count):
    """Both ways to draw 3, by rank and by repeated draws: chi-square over members and pairs."""
    draws = 200 * count
    keys = jax.random.split(KEYS.cohort, draws)
    ids = np.asarray(jax.vmap(lambda k: sampling.without_replacement(k, count, 3))(keys))

    def chi_square(counts):
        """In standard deviations above its mean."""
        expected, freedom = counts.mean(), counts.size - 1
        return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)

    assert chi_square(np.bincount(ids.ravel(), minlength=count)) < 4
    pairs = np.zeros((count, count))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        np.add.at(pairs, (np.minimum(ids[:, a], ids[:, b]), np.maximum(ids[:, a], ids[:, b])), 1)
    assert chi_square(pairs[np.triu_indices(count, 1)]) < 4


def test_shares():
    people = toys.PEOPLE
    ids, share = sampling.by_size(KEYS.cohort, (), people, 3)
    n = np.asarray(people.n)[np.asarray(ids)]
    np.testing.assert_allclose(share, n / n.sum(), rtol=1e-6)
    np.testing.assert_allclose(sampling.equal(KEYS.cohort, (), people, 4)[1], 0.25)
    ids, share = sampling.everyone(KEYS.cohort, (), people, 3)
    assert len(ids) == toys.C
    np.testing.assert_allclose(share, people.n / people.n.sum(), rtol=1e-6)


def test_population_counts():
    for i in range(toys.C):
        rows = np.asarray(toys.FEDERATION.train[i])
        rows = rows[rows >= 0]
        assert int(toys.PEOPLE.n[i]) == len(rows)
        labels = np.asarray(toys.FEDERATION.y)[rows]
        np.testing.assert_array_equal(
            toys.PEOPLE.label_count[i], np.bincount(labels, minlength=toys.K)
        )
    assert float(toys.PEOPLE.weight.sum()) == pytest.approx(1)
    assert toys.PEOPLE.num_clients.tolist() == [toys.C] * toys.C
    np.testing.assert_allclose(toys.PEOPLE.mean_n, float(toys.PEOPLE.n.mean()), rtol=1e-6)


# Strategies.

STEPS = np.array([3, 1, 9, 4, 7, 2, 5])


def lane_steps(strategy):
    order = np.asarray(strategy.deal(jnp.asarray(STEPS)))
    assert sorted(order.tolist()) == list(range(len(STEPS)))
    return int(strategy.lane_steps(jnp.asarray(STEPS)[order]))


def test_lane_steps():
    assert lane_steps(parallel.vectorised()) == 7 * 9
    assert lane_steps(parallel.sequential()) == STEPS.sum()
    assert lane_steps(parallel.chunked(3)) == 3 * (9 + 4 + 1)  # 9 7 5, 4 3 2, 1 and two more
    mesh = parallel.make_mesh(2)
    assert lane_steps(parallel.on_mesh(mesh, parallel.sequential())) == STEPS.sum()
    # 9 4 2 1 on one device; 7 5 3 on the other, whose fourth place is empty but runs along
    assert lane_steps(parallel.on_mesh(mesh, parallel.vectorised())) == 4 * 9 + 4 * 7


def test_devices_get_equal_shares():
    """The longest first, to who has least: no device has much more than its part of W3's sizes."""
    sizes = np.clip(np.random.default_rng(0).lognormal(5, 1, 40), 20, 3000).astype(int)
    strategy = parallel.on_mesh(parallel.make_mesh(4), parallel.sequential())
    dealt = sizes[np.asarray(strategy.deal(jnp.asarray(sizes)))].reshape(4, 10).sum(1)
    assert dealt.max() / dealt.mean() < 1.05


@pytest.mark.parametrize("m", [1, 4, 5, 8])
@pytest.mark.parametrize("name", ["chunked(3)", "sequential", "mesh(4)", "mesh(2) of chunks"])
def test_strategies_give_what_vmap_gives(name, m):
    inner = {
        "chunked(3)": parallel.chunked(3),
        "sequential": parallel.sequential(),
        "mesh(4)": parallel.on_mesh(parallel.make_mesh(4), parallel.sequential()),
        "mesh(2) of chunks": parallel.on_mesh(parallel.make_mesh(2), parallel.chunked(2)),
    }[name]

    def fn(shared, mine):
        return {"sum": shared + mine[0], "row": mine[1] * 2}

    stacked = jnp.arange(m), jnp.arange(m * 3.0).reshape(m, 3)
    expected = jax.vmap(fn, (None, 0))(10, stacked)
    toys.same(jax.jit(inner.each(fn))(10, stacked), expected)
    toys.same(jax.jit(parallel.in_groups(inner, 2)(fn))(10, stacked), expected)


INNER = {"vectorised": parallel.vectorised(), "chunked": parallel.chunked(2)}
INNER |= {"sequential": parallel.sequential()}


@pytest.mark.parametrize("name", INNER)
def test_a_cohort_that_the_devices_do_not_divide_needs_no_more_memory(name):
    """Five and seven clients on four devices cost what eight cost, not a pool for each client."""
    big = toys.FEDERATION._replace(x=jnp.zeros((200_000, toys.D)))
    method, strategy = fedavg(toys.TASK), parallel.on_mesh(parallel.make_mesh(4), INNER[name])
    state = jax.eval_shape(lambda: simulate.init(method, KEYS, toys.C))

    def temporary(cohort):
        plan = toys.PLAN._replace(cohort=cohort, equal_steps=True)
        clients = tree.take((big.train, big.test, toys.PEOPLE), jnp.arange(cohort))
        few = big._replace(train=clients[0], test=clients[1])
        play = jax.jit(partial(simulate.play_round, method, plan, strategy))
        score = jax.jit(partial(evaluate.score, method, plan, strategy))
        programs = [
            play.lower(big, toys.PEOPLE, KEYS, state, 0).compile(),
            score.lower(few, clients[2], KEYS, state, 0).compile(),
        ]
        return [program.memory_analysis().temp_size_in_bytes for program in programs]

    whole = temporary(8)
    for cohort in (5, 7):
        for part, full in zip(temporary(cohort), whole, strict=True):
            assert part < full + big.x.nbytes / 4


def test_convolutions_are_not_replicated():
    """Eight devices with one client each: a device does an eighth of the work, give or take."""
    net = nets.simple_cnn(toys.K).clone(convolution=conv.grouped)  # no loop: all of it is counted
    task = make_task(net, (24, 24, 1), toys.K)
    federation = toys.FEDERATION._replace(x=jnp.zeros((600, 24, 24, 1)))
    plan, method = toys.PLAN._replace(cohort=8, batch_size=32), fedavg(task)

    def flops(strategy):
        state = jax.eval_shape(lambda: simulate.init(method, KEYS, toys.C))
        play = jax.jit(partial(simulate.play_round, method, plan, strategy))
        lowered = play.lower(federation, toys.PEOPLE, KEYS, state, 0)
        return lowered.compile().cost_analysis()["flops"]

    one = flops(parallel.vectorised())
    many = flops(parallel.on_mesh(parallel.make_mesh(8), parallel.vectorised()))
    assert many < one / 5


def test_clients_and_rounds_have_streams_of_their_own():
    """Everyone holds the same rows and draws one: not the same one, and another next round."""
    federation = toys.FEDERATION._replace(train=jnp.tile(jnp.arange(400), (toys.C, 1)))
    people = simulate.population(federation, toys.K)
    drawn = Exchange(
        send=lambda server, id: (),
        local=lambda message, client, work: (work.draw(1).x[0], client.private),
        aggregate=lambda server, uploads, cohort: uploads,
    )
    method = fedavg(toys.TASK)._replace(round=(drawn,))
    play = jax.jit(partial(simulate.play_round, method, toys.PLAN, toys.VECTORISED))
    state = State(jnp.zeros((toys.PLAN.cohort, toys.D)), ())
    rounds = [np.asarray(play(federation, people, KEYS, state, t)[0].server) for t in (0, 1, 0)]
    assert len(np.unique(rounds[0], axis=0)) >= toys.PLAN.cohort - 1
    assert not np.allclose(np.sort(rounds[0], axis=0), np.sort(rounds[1], axis=0))
    np.testing.assert_array_equal(rounds[0], rounds[2])


def test_no_second_trace():
    """Any number of blocks of any length costs one trace."""
    method = fedavg(toys.TASK)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(*args):
        return simulate.play(method, toys.PLAN, toys.VECTORISED, *args)

    state, sums = simulate.init(method, KEYS, toys.C), simulate.no_progress()
    for start, count in ((0, 1), (1, 3), (4, 2)):
        now = jnp.int32(start), jnp.int32(count)
        state, sums = run(toys.FEDERATION, toys.PEOPLE, KEYS, state, sums, *now)
    assert float(sums.examples) > 0


def test_nothing_returns_to_the_host_inside_a_block():
    """A block is one program without callbacks or outfeeds."""
    method = fedavg(toys.NORM)
    state, sums = simulate.init(method, KEYS, toys.C), simulate.no_progress()
    play = partial(simulate.play, method, toys.PLAN, toys.VECTORISED)
    args = toys.FEDERATION, toys.PEOPLE, KEYS, state, sums, jnp.int32(0), jnp.int32(2)
    program = str(jax.make_jaxpr(play)(*args))
    assert "while" in program or "scan" in program
    assert not any(word in program for word in ("callback", "outfeed", "infeed", "debug_print"))


def test_measured_work_is_what_the_method_did():
    """A second training of two steps counts, with its loss and its examples."""
    from fedjax_lab import losses

    risk = losses.risk(toys.TASK)

    def twice(w_t, client, work):
        w = work.train(w_t, risk, epochs=1)
        return work.train(w, risk, epochs=3, steps=1), client.private

    one = toys.player(fedavg(toys.TASK, twice))(KEYS, 0, 1)[1]
    method = fedavg(toys.TASK)
    ids, _ = method.sample(jax.random.fold_in(KEYS.cohort, 0), (), toys.PEOPLE, toys.PLAN.cohort)
    n = np.asarray(toys.PEOPLE.n)[np.asarray(ids)]
    assert float(one.steps) == (-(-n // 8) + 3).sum()
    assert float(one.examples) == (n + 3 * np.minimum(n, 8)).sum()
    assert float(one.lane_steps) == len(n) * ((-(-n // 8)).max() + 3)
    assert 0.2 < float(one.train_loss) < 3


def test_divergence_names_its_round():
    plan = toys.PLAN._replace(optimizer=optax.sgd(1e30))
    _, sums = toys.player(fedavg(toys.TASK), plan=plan)(KEYS, 5, 3)
    assert 5 <= int(sums.diverged) <= 6


# Scores.


def hits_of(w, rows):
    x, y = np.asarray(toys.FEDERATION.x)[rows], np.asarray(toys.FEDERATION.y)[rows]
    return np.asarray(toys.TASK.apply(w, x).logits).argmax(1) == y


def test_scores_against_numpy():
    """FedAvg on own test rows of different lengths, validation, the world, an unseen domain."""
    test = np.asarray(toys.FEDERATION.test).copy()
    test[1, 7:] = -1
    test[4, :] = -1  # a client without test rows is left out
    domain = np.arange(600) % 3
    federation = toys.FEDERATION._replace(
        test=jnp.asarray(test),
        validation=jnp.asarray(test[:, :9]),
        unseen=jnp.arange(500, 533),
        domain=jnp.asarray(domain, jnp.int32),
    )
    method = fedavg(toys.TASK)
    state = toys.player(method)(KEYS, 0, 5)[0]
    plan = toys.PLAN._replace(num_domains=3, eval_batch=8)
    run = jax.jit(partial(evaluate.score, method, plan, toys.VECTORISED))
    got = evaluate.summarise(run(federation, toys.PEOPLE, KEYS, state, 5), ("a", "b", "c"))

    rows = [r[r >= 0] for r in test]
    each = [100 * hits_of(state.server, r).mean() for r in rows if len(r)]
    every = np.concatenate(rows)
    assert got["accuracy"]["mean"] == pytest.approx(np.mean(each))
    assert got["accuracy"]["weighted"] == pytest.approx(100 * hits_of(state.server, every).mean())
    assert got["accuracy"]["worst10"] == got["accuracy"]["min"] == pytest.approx(min(each))
    assert got["accuracy"]["max"] == pytest.approx(max(each))
    per_client = iter(each)
    for value, r in zip(got["accuracy"]["per_client"], rows, strict=True):
        assert value == (pytest.approx(next(per_client)) if len(r) else None)
    for k, name in enumerate("abc"):
        mine = every[domain[every] == k]
        assert got["domains"][name] == pytest.approx(100 * hits_of(state.server, mine).mean())
    world = 100 * hits_of(state.server, np.arange(400, 600)).mean()
    assert got["global"] == pytest.approx(world)
    assert got["ood"] == pytest.approx(100 * hits_of(state.server, np.arange(500, 533)).mean())
    held = [100 * hits_of(state.server, r[:9]).mean() for r in rows if len(r)]
    assert got["id"] == pytest.approx(np.mean(held))


def test_worst_tenth_of_many_clients():
    right = jnp.arange(25.0)[:, None]
    hits = evaluate.Hits(right, jnp.full((25, 1), 100.0))
    got = evaluate.summarise(evaluate.Scores(None, hits, None, None), ("all",))
    assert got["accuracy"]["worst10"] == 0.5  # the two lowest: 0 and 1
    assert "domains" not in got and "global" not in got


def test_global_of_a_personal_method_is_the_mean_over_clients():
    method = toys.make("local", toys.TASK)
    state = toys.player(method)(KEYS, 0, 3)[0]
    scores = jax.jit(partial(evaluate.score, method, toys.PLAN, toys.VECTORISED))(
        toys.FEDERATION, toys.PEOPLE, KEYS, state, 3
    )
    models = [jax.tree.map(lambda a, i=i: a[i], state.private) for i in range(toys.C)]
    expected = np.mean([100 * hits_of(w, np.arange(400, 600)).mean() for w in models])
    assert evaluate.summarise(scores, ("all",))["global"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "strategy", [parallel.sequential(), parallel.chunked(3)], ids=lambda strategy: strategy.name
)
def test_scores_do_not_depend_on_the_strategy(strategy):
    method = toys.make("ifca")
    state = simulate.init(method, KEYS, toys.C)
    args = toys.FEDERATION, toys.PEOPLE, KEYS, state, 0
    a, b = (
        jax.jit(partial(evaluate.score, method, toys.PLAN, s))(*args)
        for s in (strategy, toys.VECTORISED)
    )
    toys.same(a, b)


# Trees and checkpoints.


def test_split_and_join():
    w = toys.NORM.init(KEYS.init)
    head, body = tree.split(lambda name: "head" in name, w)
    assert tree.names(head) == ["params/head/bias", "params/head/kernel"]
    toys.same(tree.join(head, body), w)


def test_mix():
    stacked = {"a": jnp.arange(6.0).reshape(3, 2)}
    np.testing.assert_allclose(tree.mix(jnp.array([0.5, 0.5, 0]), stacked)["a"], [1, 2])
    two = tree.mix(jnp.array([[1.0, 0, 0], [0, 0, 1]]), stacked)["a"]
    np.testing.assert_allclose(two, [[0, 1], [4, 5]])
