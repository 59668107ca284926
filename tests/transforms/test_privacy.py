"""Differential privacy: each mechanism against NumPy, and what the method's server learns."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import optional
import pytest
import toys
from inputs import complaint
from naive import KEYS, vector

from fedjax_lab import sampling, streams, tree, wire
from fedjax_lab.experiment import registry
from fedjax_lab.simulation import simulate
from fedjax_lab.transforms import accounting, cohort, correlated_noise, privacy
from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Exchange, Failures, Work

optional.module("dp_accounting")

TWO_BANDS = {correlated_noise.banded: {"bands": 2}}
M, DRAWN = 6, np.array([1, 1, 0, 1, 1, 0], bool)
TASK = toys.TASK
SIZES = tuple(np.asarray(toys.FEDERATION.train.count).tolist())


def setup(cohort, rounds=10):
    return Setup(toys.C, cohort, rounds, SIZES, toys.PLAN.batch_size, toys.PLAN.epochs)


def central(method, cohort, **settings):
    return privacy.central(method, TASK, setup(cohort), **settings)


def updates_of(seed):
    """Updates [M, 10] of very different norms. Those of clients not drawn must not count."""
    u = np.random.default_rng(seed).normal(size=(M, 10)) * 10.0 ** np.arange(-2, M - 2)[:, None]
    return np.float32(u)


def leaves(u):
    return [jnp.asarray(u[:, :6].reshape(-1, 3, 2)), jnp.asarray(u[:, 6:])]


def by_hand(u, drawn, clip, cohort):
    total = np.zeros(u.shape[1])
    for one in u[drawn]:
        total += one * min(1, clip / np.linalg.norm(one))
    return total / cohort


def noise_of(key):
    """Standard normal noise, drawn for each leaf of an update."""
    shapes = enumerate([(3, 2), (4,)])
    return vector([jax.random.normal(streams.extra(key, j), shape) for j, shape in shapes])


def bare(method):
    """The method, but clients upload updates themselves and the server keeps their mean."""

    def updates(message, id, upload):
        return wire.itself(upload)

    def mean(server, uploads, clients):
        return tree.mix(clients.weight, uploads)

    exchange = Exchange(lambda s, id: s, lambda s, c, w: (s, ()), mean, updates=updates)
    return method._replace(
        init=lambda key, count: simulate.State([jnp.zeros((3, 2)), jnp.zeros(4)], ()),
        round=(exchange,),
    )


def cohort_of(ids, drawn=DRAWN):
    clients = tree.take(toys.POPULATION, jnp.asarray(ids))
    return clients._replace(weight=jnp.asarray(drawn / drawn.sum(), jnp.float32))


def server_after(wrapped, u, clients, server=None):
    (exchange,) = wrapped.round
    server = wrapped.init(KEYS.init, toys.C).server if server is None else server
    return jax.jit(exchange.aggregate)(server, leaves(u), clients)


def listening(part):
    """The bare method, and a list of what its clients ("local") or its server ("aggregate") get."""
    seen, method = [], bare(toys.make("fedavg"))

    def note(first, *others):
        seen.append(others)
        return first if part == "aggregate" else (first, ())

    return method._replace(round=(method.round[0]._replace(**{part: note}),)), seen


def test_the_mean_of_clipped_updates_equals_numpy():
    """One update changes the sum by at most the clip, whatever its numbers."""
    u = updates_of(0)
    made = privacy.clipped_mean(leaves(u), jnp.asarray(DRAWN), 0.5, 5)
    np.testing.assert_allclose(vector(made), by_hand(np.float64(u), DRAWN, 0.5, 5), rtol=1e-5)
    others = by_hand(np.float64(u), DRAWN & (np.arange(M) != 1), 0.5, 1)
    for bad in (np.nan, np.inf, 1e30, 1e5, 1e-30, 0):
        u[1] = bad
        made = vector(privacy.clipped_mean(leaves(u), jnp.asarray(DRAWN), 0.5, 1))
        assert np.linalg.norm(made - others) <= 0.5 * (1 + 1e-5)


def test_the_server_adds_noise_from_a_separate_random_stream_to_the_mean():
    u, wrapped = updates_of(2), central(bare(toys.make("fedavg")), 4, clip=0.5, noise=1.0)
    first = server_after(wrapped, u, cohort_of(np.arange(M)))
    again = server_after(wrapped, u, cohort_of(np.arange(M)), first)
    mean = by_hand(np.float64(u), DRAWN, 0.5, 4)
    for t, server in enumerate((first, again)):
        noise = noise_of(jax.random.fold_in(streams.noise(KEYS.init), t))
        expected = mean + 1.0 * 0.5 / 4 * noise
        np.testing.assert_allclose(vector(server.base), expected, rtol=1e-4, atol=1e-6)
    assert int(again.extra.releases) == 2 and int(again.extra.full) == 0


def test_the_method_learns_only_the_released_mean_of_a_cohort():
    plain, seen = listening("aggregate")
    wrapped = central(plain, 4, epsilon=np.inf)
    u, other = updates_of(3), updates_of(4)
    other[DRAWN] = u[DRAWN][::-1]
    (exchange,), server = wrapped.round, wrapped.init(KEYS.init, toys.C).server
    exchange.aggregate(server, leaves(u), cohort_of(np.arange(M)))
    exchange.aggregate(server, leaves(other), cohort_of(np.arange(M)[::-1] % toys.C))
    (uploads, clients), (others, other_clients) = seen
    assert clients.id.shape == (4,) and float(clients.weight.sum()) == 1
    toys.same(clients, other_clients)
    toys.close(uploads, others, rtol=1e-5, atol=0)
    toys.same(uploads, [np.broadcast_to(a[0], a.shape) for a in uploads])


@pytest.mark.parametrize("make", [privacy.central, privacy.adaptive, privacy.local])
def test_a_client_learns_of_others_only_what_the_server_sends(make):
    """Otherwise clients of FedDyn would know the ratio of their number of examples to the mean."""
    plain, seen = listening("local")
    (exchange,) = make(plain, TASK, setup(4), noise=0.1).round
    client = tree.take(toys.POPULATION, 0)
    work = Work(*[None] * 5, upload_key=lambda: KEYS.local)
    message = [jnp.zeros((3, 2)), jnp.zeros(4)]
    for others in (1.0, 2.0):
        exchange.local(message, client._replace(weight=others / 4, mean_n=others), work)
    (told, _), (told_again, _) = seen
    toys.same(told, told_again)
    assert float(told.n) == float(client.n)


@pytest.mark.parametrize("attack", ["none", "inner_product"])
def test_local_privacy_hides_how_many_examples_a_client_has(attack):
    plain, seen = listening("aggregate")
    wrapped = registry.look_up("attack", attack)(plain, TASK)
    wrapped = privacy.local(wrapped, TASK, setup(4), noise=1.0)
    ids, shares = wrapped.sample(KEYS.cohort, (), toys.POPULATION, 4)
    np.testing.assert_array_equal(ids, plain.sample(KEYS.cohort, (), toys.POPULATION, 4)[0])
    np.testing.assert_array_equal(shares, np.full(4, 0.25, np.float32))
    some = tree.take(toys.POPULATION, ids)._replace(weight=shares)
    server = [jnp.zeros((3, 2)), jnp.zeros(4)]
    for factor in (1, 3):
        n, counts, mean = (factor * a for a in (some.n, some.label_count, some.mean_n))
        clients = some._replace(n=n, label_count=counts, mean_n=mean)
        wrapped.round[0].aggregate(server, leaves(updates_of(1)[:4]), clients)
    toys.same(seen[0][1], seen[1][1])


def test_changes_by_colluding_attackers_come_before_clipping():
    doubled = cohort.changed(bare(toys.make("fedavg")), lambda u, clients: optax.tree.scale(2, u))
    u = updates_of(8)
    for clip in (0.5, np.inf):
        wrapped = central(doubled, 4, clip=clip, epsilon=np.inf)
        expected = by_hand(2 * np.float64(u), DRAWN, clip, 4)
        server = server_after(wrapped, u, cohort_of(np.arange(M)))
        np.testing.assert_allclose(vector(server.base), expected, rtol=1e-4)
        assert np.isfinite(server.extra.clip)  # a run whose state is not finite has diverged


@pytest.mark.parametrize("attack", ["inner_product", "little_is_enough"])
def test_no_epsilon_is_claimed_if_attackers_use_updates_of_other_clients(attack):
    attacked = registry.look_up("attack", attack)(bare(toys.make("fedavg")), TASK)
    for make in (privacy.central, privacy.adaptive, correlated_noise.banded):
        message = complaint(make, attacked, TASK, setup(4), noise=0.3, **TWO_BANDS.get(make, {}))
        assert "attackers compute their updates from those of other clients" in message
    assert privacy.central(attacked, TASK, setup(4), epsilon=np.inf).extra.guarantee is None
    assert privacy.local(attacked, TASK, setup(4), noise=0.3).extra.guarantee is not None


def test_rounds_with_a_full_cohort_are_counted():
    wrapped = central(bare(toys.make("fedavg")), 4, noise=1.0)
    all_drawn = cohort_of(np.arange(M), np.ones(M, bool))
    assert int(server_after(wrapped, updates_of(5), all_drawn).extra.full) == 1
    weight, arrived = all_drawn.weight.at[2].set(0), all_drawn.arrived.at[2].set(False)
    lost = all_drawn._replace(weight=weight, arrived=arrived)
    assert int(server_after(wrapped, updates_of(5), lost).extra.full) == 1
    assert int(server_after(wrapped, updates_of(5), cohort_of(np.arange(M))).extra.full) == 0


@pytest.mark.slow
def test_a_round_whose_uploads_are_all_lost_releases_noise():
    """A missing release would reveal who was drawn."""
    plain = bare(toys.make("fedavg"))
    plan = toys.PLAN._replace(failures=Failures(dropout=1 - 1e-7))
    state, sums = toys.player(central(plain, 4, noise=1.0), plan=plan)(KEYS, 0, 2)
    assert int(state.server.extra.releases) == 2
    assert float(jnp.abs(jax.tree.leaves(state.server.base)[0]).max()) > 0
    without, _ = toys.player(central(plain, 4, epsilon=np.inf), plan=plan)(KEYS, 0, 2)
    assert float(jnp.abs(jax.tree.leaves(without.server.base)[0]).max()) == 0


def test_adaptive_clipping_follows_the_rule_of_its_paper():
    u = updates_of(6)
    settings = {"clip": 0.5, "noise": 0.2, "quantile": 0.3, "clip_lr": 0.7}
    made = privacy.adaptive(bare(toys.make("fedavg")), TASK, setup(4), **settings)
    server = server_after(made, u, cohort_of(np.arange(M)))
    key = jax.random.fold_in(streams.noise(KEYS.init), 0)
    short = np.linalg.norm(u[DRAWN], axis=1) <= 0.5
    assert 0 < short.sum() < len(short)
    count = (short - 0.5).sum() + 0.05 * 4 * float(jax.random.normal(streams.extra(key, 2)))
    expected = 0.5 * np.exp(-0.7 * (count / 4 + 0.5 - 0.3))
    np.testing.assert_allclose(server.extra.clip, expected, rtol=1e-5)
    z = (0.2**-2 - (2 * 0.05 * 4) ** -2) ** -0.5
    mean = by_hand(np.float64(u), DRAWN, 0.5, 4) + z * 0.5 / 4 * noise_of(key)
    np.testing.assert_allclose(vector(server.base), mean, rtol=1e-4, atol=1e-6)


def test_local_privacy_clips_and_adds_noise_on_the_client():
    plain = bare(toys.make("fedavg"))
    (exchange,) = privacy.local(plain, TASK, setup(4), clip=0.5, noise=2.0).round
    client = tree.take(toys.POPULATION, 0)
    work = Work(*[None] * 5, upload_key=lambda: KEYS.local)
    u = updates_of(7)[3:4]
    sent, _ = jax.jit(lambda s: exchange.local(s, client, work))([a[0] for a in leaves(u)])
    key = streams.extra(KEYS.local, privacy.NOISE)
    expected = u[0] * 0.5 / np.linalg.norm(u[0]) + 2.0 * 0.5 * noise_of(key)
    np.testing.assert_allclose(vector(sent), expected, rtol=1e-4, atol=1e-6)


def test_a_poisson_cohort_draws_each_client_with_the_same_probability():
    C, m, capacity, count = 20, 5, 7, 4000
    population = tree.take(toys.POPULATION, jnp.zeros(C, int))

    def draw(key):
        return sampling.poisson(key, (), population, m, capacity)

    ids, shares = jax.jit(jax.vmap(draw))(jax.random.split(KEYS.cohort, count))
    ids, drawn = np.asarray(ids), np.asarray(shares) > 0
    k = drawn.sum(1)
    binomial = np.minimum(np.random.default_rng(0).binomial(C, m / C, 200_000), capacity)
    assert abs(k.mean() - binomial.mean()) < 5 * binomial.std() / count**0.5
    assert abs(k.std() / binomial.std() - 1) < 0.06
    frequency = np.bincount(ids[drawn], minlength=C) / count
    assert np.abs(frequency - binomial.mean() / C).max() < 5 * (frequency.mean() / count) ** 0.5
    assert all(len(set(row)) == capacity for row in ids[:50])
    np.testing.assert_allclose(np.asarray(shares).sum(1)[k > 0], 1, rtol=1e-6)
    assert sampling.room(100, 1000) == 157 and sampling.room(9, 10) == 10


@pytest.mark.slow
def test_a_round_equals_dp_fedavg_in_numpy():
    plan = naive.FULL
    wrapped = privacy.central(
        toys.make("fedavg", TASK), TASK, setup(plan.cohort), clip=0.2, noise=0.3, sampling="fixed"
    )
    state, _ = toys.player(wrapped, plan=plan)(KEYS, 0, 1)
    w, ids = naive.first_weights(), naive.cohort(wrapped, 0)
    updates = [naive.sub(naive.sgd(w, *naive.data_of(i)), w) for i in ids]
    u = np.stack([vector(one) for one in updates])
    assert (np.linalg.norm(u, axis=1) > 0.2).any()
    key = jax.random.fold_in(streams.noise(KEYS.init), 0)
    model, shape = jax.tree.flatten(state.server.base)
    noise = [jax.random.normal(streams.extra(key, j), a.shape) for j, a in enumerate(model)]
    noise = vector(naive.weights_of(jax.tree.unflatten(shape, noise)))
    mean = by_hand(np.float64(u), np.ones(len(u), bool), 0.2, plan.cohort)
    expected = vector(w) + mean + 0.3 * 0.2 / plan.cohort * noise
    actual = vector(naive.weights_of(state.server.base))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_without_clipping_and_noise_the_method_only_gets_equal_shares():
    plain = toys.make("scaffold", weights="size")
    made = central(plain, 3, clip=np.inf, epsilon=np.inf, sampling="fixed")
    assert made == plain._replace(sample=sampling.equal)
    assert privacy.local(plain, TASK, setup(3), clip=np.inf, epsilon=np.inf) is plain


@pytest.mark.slow
def test_clients_that_are_not_drawn_keep_their_private_state():
    made = central(toys.make("scaffold", TASK), 2, noise=0.1)
    state, _ = toys.player(made, plan=toys.PLAN._replace(cohort=2))(KEYS, 0, 1)
    key = jax.random.fold_in(KEYS.cohort, 0)
    ids, shares = sampling.poisson(key, (), toys.POPULATION, 2)
    drawn = set(np.asarray(ids)[np.asarray(shares) > 0].tolist())
    moved = np.abs(np.asarray(jax.tree.leaves(state.private)[0])).reshape(toys.C, -1).max(1) > 0
    assert drawn == set(np.flatnonzero(moved).tolist()) and len(drawn) < len(ids)


def test_unsupported_methods_and_settings_are_one_line_errors():
    def rejected(name, make=privacy.central, **settings):
        return complaint(make, toys.make(name), TASK, setup(4), **{"noise": 1.0, **settings})

    assert "several clients at once" in rejected("pfedhn")
    assert "models of their own" in rejected("ifca")
    assert "models of their own" in rejected("ifca", privacy.local)
    assert "must be above 0" in rejected("fedavg", clip=0.0)
    assert "must be finite" in rejected("fedavg", clip=np.inf)
    assert "did you mean 'poisson'" in rejected("fedavg", sampling="poison")
    assert "at least config.run.cohort=4, got 3" in rejected("fedavg", capacity=3)
    assert "count_noise is too low" in rejected("fedavg", privacy.adaptive, noise=0.4)
    assert "clip_lr must be at least 0" in rejected("fedavg", privacy.adaptive, clip_lr=-1.0)
    with_norm = central(toys.make("fedavg", toys.NORM), 4, noise=1.0)
    assert "running statistics" in complaint(toys.player(with_norm), KEYS, 0, 1)
    one = setup(1)._replace(num_clients=1)
    message = complaint(privacy.central, toys.make("fedavg"), TASK, one, noise=1.0)
    assert "config.privacy.delta must be given" in message


def test_no_aggregator_replaces_a_private_sum():
    made = central(toys.make("fedavg"), 4, noise=1.0)
    message = complaint(registry.look_up("aggregator", "median"), made, TASK)
    assert "only learns a noisy sum" in message and "config.privacy.name=local" in message
    protected = privacy.local(toys.make("fedavg"), TASK, setup(4), noise=1.0)
    made = registry.look_up("aggregator", "median")(protected, TASK)
    assert made.extra.guarantee is protected.extra.guarantee


def test_either_noise_or_epsilon_is_given_and_determines_the_other():
    def guarantee_of(make=privacy.central, **settings):
        return make(toys.make("scaffold"), TASK, setup(4), **settings).extra.guarantee

    given = guarantee_of(noise=0.7)
    assert (given.noise, given.rounds, given.delta) == (0.7, None, toys.C**-1.1)
    computed = guarantee_of(epsilon=3.0, delta=0.01)
    assert type(computed.noise) is float and computed.rounds == 10 and computed.delta == 0.01
    assert 2.9 < computed.epsilons([10])[0] <= 3
    assert (
        guarantee_of(privacy.adaptive, epsilon=3.0, delta=0.01, count_noise=9.0).noise
        == computed.noise
    )
    assert (
        guarantee_of(epsilon="inf") is None and guarantee_of(privacy.local, epsilon="inf") is None
    )
    for both in ({}, {"noise": 0.7, "epsilon": 3.0}):
        assert "config.privacy.epsilon" in complaint(guarantee_of, **both)


def test_epsilon_of_local_privacy_covers_all_that_a_client_sends():
    method = toys.make("fedavg")
    made = privacy.local(method, TASK, setup(4), noise=2.0, delta=1e-5).extra.guarantee
    assert made.unit == "client" and "any two sets of data" in made.neighbors
    run = accounting.Run(10, 10, "poisson", capacity=10)  # all clients: the plain mechanism
    assert made.epsilons([3]) == [
        pytest.approx(accounting.epsilon(run, 1.0, 3, 1e-5), abs=2e-3)  # S / (2 S)
    ]
