"""Robust aggregators: each formula against NumPy, with lost uploads and unequal shares."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import vector

from fedjax_lab import tree
from fedjax_lab.transforms import aggregators

M = 11
ARRIVED = np.array([1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1], bool)
SHARE = np.where(ARRIVED, np.arange(1, M + 1), 0) / np.arange(1, M + 1)[ARRIVED].sum()


def cohort_of(arrived, share):
    cohort = tree.take(toys.POPULATION, jnp.zeros(len(arrived), int))
    return cohort._replace(arrived=jnp.asarray(arrived), weight=jnp.asarray(share, jnp.float32))


def updates_of(seed, arrived=ARRIVED):
    """Updates [M, 10]: two are far away, and those of lost uploads are 0."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(len(arrived), 10)) + 1
    u[:2] *= 50
    return np.float32(u * arrived[:, None])


def leaves(u):
    return [jnp.asarray(u[:, :6].reshape(-1, 3, 2)), jnp.asarray(u[:, 6:])]


def aggregated(reduce, u, arrived=ARRIVED, share=SHARE):
    """The aggregate of updates `u`, as one vector."""
    return vector(jax.jit(reduce)(leaves(u), cohort_of(arrived, share)))


def by_hand_trimmed(u, share, beta):
    u = np.sort(u, 0)
    cut = int(beta * len(u))
    return u[cut : len(u) - cut].mean(0)


def by_hand_krum(u, share, f, chosen):
    m = len(u)
    scores = [
        sum(sorted(((u[i] - u[j]) ** 2).sum() for j in range(m) if j != i)[: m - f - 2])
        for i in range(m)
    ]
    return u[np.argsort(scores)[: chosen or m - f - 2]].mean(0)


def by_hand_bulyan(u, share, f):
    left, chosen = list(range(len(u))), []
    while len(chosen) < len(u) - 2 * f:
        apart = {i: sorted(((u[i] - u[j]) ** 2).sum() for j in left if j != i) for i in left}
        scores = {i: sum(each[: max(len(left) - f - 2, 1)]) for i, each in apart.items()}
        chosen.append(min(scores, key=scores.get))
        left.remove(chosen[-1])
    u = u[chosen]
    nearest = np.argsort(abs(u - np.median(u, 0)), 0)[: len(u) - 2 * f]
    return np.take_along_axis(u, nearest, 0).mean(0)


def by_hand_geometric(u, share, iterations, nu):
    z = share @ u
    for _ in range(iterations):
        b = share / np.maximum(nu, np.linalg.norm(u - z, axis=1))
        z = b @ u / b.sum()
    return z


def by_hand_centered(u, share, radius, iterations):
    v = np.zeros(u.shape[1])
    for _ in range(iterations):
        distance = np.linalg.norm(u - v, axis=1, keepdims=True)
        v = v + ((u - v) * np.minimum(1, radius / distance)).mean(0)
    return v


trimmed, best = aggregators.trimmed, aggregators.mean_of_best
AVERAGED, CENTERED = {"iterations": 4, "nu": 1e-6}, {"radius": 2.0, "iterations": 3}
REDUCED = {  # our aggregator, and the same in NumPy on the arrived updates and their shares
    "median": (partial(trimmed, share=0.5), lambda u, p: np.median(u, 0)),
    "trimmed": (partial(trimmed, share=0.3), partial(by_hand_trimmed, beta=0.3)),
    "krum": (partial(best, attackers=0.3, chosen=1), partial(by_hand_krum, f=3, chosen=1)),
    "multi_krum": (partial(best, attackers=0.2, chosen=0), partial(by_hand_krum, f=2, chosen=0)),
    "bulyan": (
        partial(aggregators.mean_near_median, attackers=0.2),
        partial(by_hand_bulyan, f=2),
    ),
    "geometric": (
        partial(aggregators.weiszfeld, **AVERAGED),
        partial(by_hand_geometric, **AVERAGED),
    ),
    "centered": (partial(aggregators.centered, **CENTERED), partial(by_hand_centered, **CENTERED)),
}


@pytest.mark.parametrize("name", REDUCED)
def test_an_aggregator_matches_its_formula_over_the_arrived_uploads(name):
    ours, by_hand = REDUCED[name]
    u = updates_of(0)
    expected = by_hand(np.float64(u[ARRIVED]), SHARE[ARRIVED])
    np.testing.assert_allclose(aggregated(ours, u), expected, rtol=1e-4, atol=1e-5)
    if name == "bulyan":  # with fewer attackers more than one value of a coordinate is left
        fewer = partial(aggregators.mean_near_median, attackers=0.1)
        expected = by_hand_bulyan(np.float64(u[ARRIVED]), SHARE, 1)
        np.testing.assert_allclose(aggregated(fewer, u), expected, rtol=1e-4, atol=1e-5)
    if name == "median":  # of an even number: the mean of the two in the middle
        arrived = ARRIVED & (np.arange(M) > 0)
        expected = np.median(u[arrived], 0)
        np.testing.assert_allclose(aggregated(ours, u, arrived), expected, rtol=1e-5)


def bounded(updates, cohort):
    """The mean of updates of a bounded norm."""
    clipped = jax.vmap(partial(aggregators.clipped, 2.0))(updates)
    return aggregators.mean_of(clipped, cohort.arrived)


@pytest.mark.parametrize("name", [*REDUCED, "bounded"])
def test_nonfinite_numbers_of_a_few_clients_do_not_reach_the_server(name):
    """This includes numbers whose squares overflow. Honest updates bound the aggregate's norm."""
    aggregator, honest = {**REDUCED, "bounded": (bounded,)}[name][0], updates_of(2)
    longest = np.linalg.norm(honest[2:], axis=1).max()
    made = jax.jit(aggregator)
    for number in (np.inf, -np.inf, np.nan, 1e30):
        u = honest.copy()
        u[0], u[1, 3] = number, number
        received = made(leaves(u), cohort_of(ARRIVED, SHARE))
        assert np.linalg.norm(vector(received)) <= longest


def test_a_norm_bound_does_not_change_short_updates():
    u = updates_of(3)[:3]
    short = np.linalg.norm(u[2]) + 1
    made = [aggregators.clipped(short, leaves(u[i : i + 1])) for i in (2, 0)]
    toys.same(made[0], leaves(u[2:3]))
    expected = u[0] * short / np.linalg.norm(u[0])
    np.testing.assert_allclose(vector(made[1]), expected, rtol=1e-5)


def test_a_share_of_less_than_one_client_counts_as_one():
    u = updates_of(4)[:4]
    expected = np.sort(u, 0)[1:3].mean(0)
    arrived, share = np.ones(4, bool), np.full(4, 0.25, np.float32)
    trim = partial(aggregators.trimmed, share=0.2)
    np.testing.assert_allclose(aggregated(trim, u, arrived, share), expected, rtol=1e-5)
    assert aggregators.most_attackers(5, 0.1) == 1 and aggregators.most_attackers(4, 0.0) == 0
    assert "2f + 3 = 5 clients in a round for f=1" in complaint(aggregators.most_attackers, 4, 0.2)


def test_bad_settings_are_rejected():
    plain = toys.make("fedavg")
    of = aggregators
    for part, settings, words in (
        (of.trimmed_mean, {"trim": 0.5}, "below 0.5, got 0.5"),
        (of.norm_bound, {"bound": 0.0}, "must be above 0"),
        (of.krum, {"attackers": 0.6}, "below 0.5, got 0.6"),
    ):
        assert words in complaint(part, plain, toys.TASK, **settings)
    assert "2f + 3 = 7 clients in a round for f=2" in complaint(of.most_attackers, 6, 0.4, 0)
    assert "at most M - f - 2 = 3 for f=2" in complaint(of.most_attackers, 7, 0.3, 4)
    assert of.most_attackers(7, 0.3, 3) == 2
    too_few = complaint(of.most_attackers, 10, 0.2, name="Bulyan", factor=4)
    assert "Bulyan needs at least 4f + 3 = 11 clients in a round for f=2" in too_few
    one_by_one = complaint(of.norm_bound, toys.make("pfedhn"), toys.TASK)
    assert one_by_one == "its server never sees the updates of several clients at once"
    assert "models of their own" in complaint(of.median, toys.make("ifca"), toys.TASK)
    assert of.trimmed_mean(plain, toys.TASK, trim=0.0) is plain
