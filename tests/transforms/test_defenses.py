"""Rules that weigh clients, and what precedes a rule, against NumPy, with lost uploads."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.cluster
import toys
from inputs import complaint
from naive import KEYS, vector

from fedjax_lab import tree
from fedjax_lab.experiment import experiment, transforming
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.transforms import aggregators, backdoor, cohort, counted, defenses, mixing

M = 11
ARRIVED = np.array([1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1], bool)
ALL = np.ones(M, bool)


def clients_of(arrived=ARRIVED, attacks=None):
    clients = tree.take(toys.POPULATION, jnp.zeros(M, int))
    return clients._replace(
        id=jnp.where(arrived, jnp.arange(M), toys.C + 100),
        arrived=jnp.asarray(arrived),
        weight=jnp.asarray(arrived / arrived.sum(), jnp.float32),
        attacks=None if attacks is None else jnp.asarray(attacks),
        key=jnp.broadcast_to(jax.random.key(3), (M,)),
    )


def updates_of(seed, arrived=ARRIVED):
    """Updates [M, 10]: two are far away, and those of lost uploads are 0."""
    u = np.random.default_rng(seed).normal(size=(M, 10)) + 1
    u[:2] *= 50
    return np.float32(u * arrived[:, None])


def leaves(u):
    return [jnp.asarray(u[:, :6].reshape(-1, 3, 2)), jnp.asarray(u[:, 6:])]


def by_hand_spectral(u, left_out):
    apart = u - u.mean(0)
    score = (apart @ np.linalg.svd(apart)[2][0]) ** 2
    return np.argsort(np.argsort(score)) < len(u) - left_out


def by_hand_majority(u):
    norms = np.linalg.norm(u, axis=1)
    distance = np.clip(1 - u @ u.T / np.outer(norms, norms), 0, None)
    np.fill_diagonal(distance, 0)
    found = sklearn.cluster.HDBSCAN(
        min_cluster_size=len(u) // 2 + 1,
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    ).fit(distance)
    return found.labels_ == 0


def by_hand_trusted(u, g):
    lengths = np.linalg.norm(u, axis=1)
    weight = np.maximum(u @ g / (lengths * np.linalg.norm(g)), 0)
    return weight @ (u / lengths[:, None]) * np.linalg.norm(g) / weight.sum()


def by_hand_unlike(sums, kappa):
    n, lengths = len(sums), np.linalg.norm(sums, axis=1)
    cs = sums @ sums.T / np.outer(lengths, lengths) - np.eye(n) * 9
    v, pardoned = cs.max(1), cs.copy()
    for i in range(n):
        for j in range(n):
            if i != j and v[j] > v[i]:
                pardoned[i, j] = cs[i, j] * v[i] / v[j]
    weight = np.clip(1 - pardoned.max(1), 0, 1)
    weight = np.minimum(weight / weight.max(), 1 - 1e-12)
    with np.errstate(divide="ignore"):
        return np.clip(kappa * (np.log(weight / (1 - weight)) + 0.5), 0, 1)


DNC = partial(defenses.spectral, attackers=0.2, iterations=1, coordinates=99, filtered=1.0)


@pytest.mark.parametrize("arrived", [ARRIVED, ALL])
def test_weights_match_their_formulas_over_the_arrived_uploads(arrived):
    u, clients = updates_of(0, arrived), clients_of(arrived)
    here = np.float64(u[arrived])
    made = np.asarray(jax.jit(DNC)(leaves(u), clients))
    toys.same(made[arrived] > 0, by_hand_spectral(here, 2))
    made_all = [np.asarray(jax.jit(defenses.majority)(leaves(u), clients))]
    toys.same(made_all[0][arrived] > 0, by_hand_majority(here))
    g = np.float32(np.random.default_rng(1).normal(size=10) + 1)
    weight, scaled = defenses.trusted(leaves(u), clients, [a[0] for a in leaves(g[None])])
    mean = vector(cohort.weighted(weight, scaled))
    np.testing.assert_allclose(mean, by_hand_trusted(here, np.float64(g)), rtol=1e-4)
    weight = np.asarray(defenses.unlike(leaves(u), jnp.asarray(arrived), 1.0))
    np.testing.assert_allclose(weight[arrived], by_hand_unlike(here, 1.0), rtol=1e-3, atol=1e-4)
    for each in (made, *made_all, weight):
        assert not each[~arrived].any()


@pytest.mark.parametrize("weigh", [DNC, defenses.majority])
def test_attackers_have_no_weight_up_to_the_breakdown_point_and_all_of_it_beyond(weigh):
    """DNC with f = 2 of 11, and FLAME with less than half; equal honest updates are the mean."""
    honest = np.ones((M, 10), np.float32)
    bearable = 2 if weigh is DNC else 5
    for count, wins in ((bearable, "honest"), (6, "attackers")):
        u = honest.copy()
        u[:count] = -50
        u[:count, 0] = 50
        weight = np.asarray(jax.jit(weigh)(leaves(u), clients_of(ALL)))
        assert weight[:count].any() == (wins == "attackers"), count
        if wins == "honest":
            mean = cohort.weighted(jnp.asarray(weight), leaves(u))
            np.testing.assert_allclose(vector(mean), 1, rtol=1e-6)
    u = honest.copy()
    u[0], u[1, 3] = np.inf, np.nan
    weight = jax.jit(weigh)(leaves(u), clients_of(ALL))
    np.testing.assert_allclose(vector(cohort.weighted(weight, leaves(u))), 1, rtol=1e-6)


def test_clients_that_send_equal_updates_count_nothing_in_foolsgold():
    u = updates_of(5, ALL) * np.float32(0.1)
    u[:3] = u[0]
    weight = np.asarray(defenses.unlike(leaves(u), jnp.asarray(ALL), 1.0))
    assert not weight[:3].any() and weight.max() == 1


def test_robust_lr_turns_coordinates_without_agreement_around():
    u = updates_of(7)
    votes = abs(np.sign(u[ARRIVED]).sum(0))
    turned = np.where(votes < 0.6 * ARRIVED.sum(), -1, 1)
    (exchange,) = defenses.robust_lr(toys.bare(toys.make("fedavg")), None, agreement=0.6).round
    (change,) = cohort.parts(exchange)[1]
    made = np.concatenate([a.reshape(M, -1) for a in change(leaves(u), clients_of())], 1)
    np.testing.assert_allclose(made, u * turned)
    assert {*turned} == {-1, 1}


def test_flame_clips_to_the_median_norm_and_adds_noise_in_proportion():
    u = updates_of(0)
    here = np.float64(u[ARRIVED])
    norms = np.linalg.norm(here, axis=1)
    S = np.sort(norms)[(len(norms) - 1) // 2]
    clipped = here * np.minimum(1, S / norms)[:, None]
    expected = clipped[by_hand_majority(here)].mean(0)
    for noise in (0.0, 0.1):
        (exchange,) = defenses.flame(toys.bare(toys.make("fedavg")), None, noise=noise).round
        (rule,) = cohort.parts(exchange)[1]
        made = vector(rule.reduce(leaves(u), clients_of()))
        if not noise:
            np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    assert 0.01 * S < np.std(made - expected) < 0.3 * S


def by_hand_nearest(u, f):
    order = [np.argsort(((u - a) ** 2).sum(1))[: len(u) - f] for a in u]
    return np.stack([u[near].mean(0) for near in order])


def test_mixing_gives_a_rule_means_of_updates():
    """Groups of one, and no far updates, change nothing or give the mean."""
    u, clients = updates_of(1), clients_of()
    here = np.float64(u[ARRIVED])
    made, same = mixing.with_nearest(leaves(u), clients, far=0.3)
    rows = np.concatenate([a.reshape(M, -1) for a in made], 1)
    np.testing.assert_allclose(rows[ARRIVED], by_hand_nearest(here, 3), rtol=1e-4, atol=1e-4)
    toys.same(same.arrived, clients.arrived)
    median = partial(aggregators.trimmed, share=0.5)
    for bucket, expected in ((1, np.median(here, 0)), (M, here.mean(0))):
        made = vector(median(*mixing.in_buckets(leaves(u), clients, bucket=bucket)))
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    means, groups = mixing.in_buckets(leaves(u), clients, bucket=2)
    assert int(groups.arrived.sum()) == 5 and float(groups.weight.sum()) == pytest.approx(1)
    rows = np.concatenate([a.reshape(len(groups.id), -1) for a in means], 1)
    assert len(rows) == -(-M // 2)
    first = rows[np.asarray(groups.arrived)]
    pairs = (here[:, None] + here) / 2  # the ninth update is a group of its own
    assert all(abs(pairs - row).max(-1).min() < 1e-3 for row in first)


def test_an_unlike_client_is_trusted_beside_two_equal_ones():
    sums = [jnp.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])]
    weights = defenses.unlike(sums, jnp.ones(3, bool), confidence=1.0)
    np.testing.assert_allclose(weights, [0, 0, 1], atol=1e-6)


def test_theta_is_reached_by_exactly_the_share_of_clients():
    signs = jnp.where(jnp.arange(50) < 40, 1.0, -1.0)[:, None]  # |sum| = 30 = 0.6 of 50
    method = defenses.robust_lr(toys.bare(toys.make("fedavg")), toys.TASK, agreement=0.6)
    *_, (change,) = cohort.parts(method.round[0])
    clients = tree.take(toys.POPULATION, jnp.zeros(50, int))._replace(arrived=jnp.ones(50, bool))
    np.testing.assert_array_equal(change([signs], clients)[0], signs)


def test_attackers_hold_no_coordinate_that_did_not_change():
    last = {"a": jnp.zeros(10)}
    held = backdoor.most_changed({"a": jnp.eye(10)[3]}, last, 0.2, jnp.bool_(True))
    np.testing.assert_array_equal(held["a"], np.arange(10) == 3)


def test_counts_of_the_clients_that_a_rule_leaves_out_and_that_attack():
    attackers = np.arange(M) < 3
    u = updates_of(2)[:, :6]
    clients = clients_of(attacks=attackers)
    plain = aggregators.krum(toys.bare(toys.make("fedavg")), toys.TASK)
    method = counted.excluded(plain)
    server = method.init(KEYS.init, M).server
    server = server._replace(base=jnp.zeros(6))
    for _ in range(2):
        server = jax.jit(method.round[0].aggregate)(server, jnp.asarray(u), clients)
    chosen = np.asarray(aggregators.best([jnp.asarray(u)], clients, attackers=0.2, chosen=1))
    expected = {
        "arrived": ARRIVED,
        "attacked": ARRIVED & attackers,
        "excluded": ARRIVED & ~chosen,
        "excluded_attacks": ARRIVED & attackers & ~chosen,
    }
    toys.same(server.extra.counts, {key: np.int32(2 * a) for key, a in expected.items()})
    toys.same(server.base, plain.round[0].aggregate(jnp.zeros(6), jnp.asarray(u), clients))
    assert "leaves nobody out" in complaint(
        counted.excluded, aggregators.median(toys.bare(toys.make("fedavg")), toys.TASK)
    )


@pytest.mark.slow
def test_clients_with_momentum_send_the_mean_of_their_updates():
    """Two rounds; the weights of the first update are beta, and those of the second the rest."""
    plain, plan = toys.make("fedavg"), toys.PLAN._replace(cohort=toys.C)
    played = [toys.player(plain, plan=plan)(KEYS, 0, rounds)[0].server for rounds in (1, 2)]
    play = toys.player(mixing.momentum(plain, toys.NORM, 0.75), plan=plan)
    one, two = (vector(play(KEYS, 0, rounds)[0].server.params) for rounds in (1, 2))
    first = vector(plain.init(KEYS.init, toys.C).server.params)
    a, b = (vector(server.params) for server in played)
    np.testing.assert_allclose(one, a, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(two - a, 0.75 * (a - first) + 0.25 * (b - a), rtol=1e-3, atol=1e-5)


def test_centered_clipping_can_start_from_the_last_aggregate():
    u, clients = updates_of(3, ALL)[:, :6], clients_of(ALL)
    settings = {"radius": 0.5, "iterations": 1}
    method = aggregators.centered_clipping(
        toys.bare(toys.make("fedavg")), toys.TASK, start="last", **settings
    )
    server = method.init(KEYS.init, M).server._replace(base=jnp.zeros(6), extra=[jnp.zeros(6)])
    for _ in range(2):
        server = jax.jit(method.round[0].aggregate)(server, jnp.asarray(u), clients)
    expected = aggregators.centered([jnp.asarray(u)], clients, radius=0.5, iterations=2)
    np.testing.assert_allclose(server.extra[0], expected[0], rtol=1e-5)


toy = toys.config_file(run={"rounds": 2, "eval_every": 2})


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["aggregator.mixing=bucketing"], "config.aggregator.mixing needs an aggregator"),
        (["aggregator.name=norm_bound", "aggregator.mixing=bucketing"], "aggregator.mixing)"),
        (["aggregator.name=foolsgold", "aggregator.excluded=true"], "records by itself"),
        (["aggregator.name=fltrust"], "--config.partition.public=0.1"),
    ],
)
def test_rules_that_lack_something_are_rejected(toy, overrides, words):
    def check():
        pairs = [tuple(each.split("=")) for each in overrides]
        made = experiment.build(resolve(load_config(f"{toy}:fedavg"), pairs))
        transforming.check_first_round(made.config, made.simulation)

    assert words in complaint(check)
