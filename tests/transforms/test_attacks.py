"""Attacks: which clients attack, and what each attacker sends."""

from functools import partial

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import scipy.stats
import toys
from naive import KEYS

from fedjax_lab import tree
from fedjax_lab.simulation import failures
from fedjax_lab.transforms import aggregators, attacks, cohort
from fedjax_lab.types import Failures, Work

M, D = 9, 6
ARRIVED = np.array([1, 1, 0, 1, 1, 0, 1, 1, 1], bool)
ATTACKS = np.array([1, 0, 1, 1, 0, 0, 0, 1, 0], bool)
ATTACKERS = ATTACKS & ARRIVED
KNOWN = {"all": ARRIVED & ~ATTACKS, "own": ATTACKERS}


def updates_of(seed):
    return np.float32(np.random.default_rng(seed).normal(1, 2, (M, D)) * ARRIVED[:, None])


def received(attack, u):
    """What the server gets from updates [M, D] if attackers work together."""
    (exchange,) = attack(toys.bare(toys.make("fedavg")), toys.TASK).round
    clients = jax.tree.map(lambda a: a[jnp.zeros(M, int)], toys.POPULATION)
    clients = clients._replace(arrived=jnp.asarray(ARRIVED), attacks=jnp.asarray(ATTACKS))
    return np.asarray(jax.jit(exchange.aggregate)(jnp.zeros(D), jnp.asarray(u), clients))


def sent(attack, u, attacker, key=KEYS.init):
    """The upload of a client whose update is u [D]."""
    (exchange,) = attack(toys.bare(toys.make("fedavg")), toys.TASK).round
    client = jax.tree.map(lambda a: a[0], toys.POPULATION)._replace(attacks=jnp.bool_(attacker))
    work = Work(None, None, None, 1, None, upload_key=lambda: key)
    return np.asarray(exchange.local(jnp.asarray(u), client, work)[0])


def attackers(plan, key, ids, count, t=0):
    """Which of the clients `ids` attack in round t."""
    turn = toys.turn(ids, tree.take(toys.POPULATION, ids * 0)._replace(id=ids))
    return failures.attackers(plan, key, count, turn, t).clients.attacks


def test_a_share_of_the_clients_attacks_and_the_seed_determines_which():
    all_clients = jnp.arange(400)
    plan = toys.PLAN._replace(failures=Failures(attackers=0.2))

    def who(key, ids=all_clients):
        return np.asarray(attackers(plan, key, ids, 400))

    first, other = who(KEYS.cohort), who(jax.random.key(9))
    assert first.sum() == other.sum() == 80 and (first != other).any()
    assert who(KEYS.cohort, all_clients[5::7]).tolist() == first[5::7].tolist()
    assert attackers(toys.PLAN, KEYS.cohort, all_clients, 400) is None
    fewer = toys.PLAN._replace(failures=Failures(attackers=0.29))
    assert attackers(fewer, KEYS.cohort, jnp.arange(100), 100).sum() == 29
    assert attackers(fewer, KEYS.cohort, jnp.arange(3), 3).sum() == 1  # 0.87, rounded up


def test_attackers_are_chosen_by_id_or_by_round_within_a_window_of_rounds():
    ids = jnp.array([7, 3, 0, 5])

    def who(t, **settings):
        plan = toys.PLAN._replace(failures=Failures(attackers=failures.Attackers(**settings)))
        return np.asarray(attackers(plan, KEYS.cohort, ids, 9, t))

    assert who(0, clients=(5, 7, 8)).tolist() == [True, False, False, True]
    inside = [who(t, clients=(3,), first=3, last=4).any() for t in range(6)]
    assert inside == [False, False, True, True, False, False]
    drawn = np.array([who(t, per_round=2) for t in range(30)])
    assert (drawn.sum(1) == 2).all() and drawn.any(0).all()
    toys.same(who(4, share=0.3), np.asarray(attackers(share_of(0.3), KEYS.cohort, ids, 9)))


def share_of(share):
    return toys.PLAN._replace(failures=Failures(attackers=share))


def test_uploads_of_sign_flip_and_gaussian_attackers():
    u = updates_of(0)[0]
    np.testing.assert_allclose(
        sent(partial(attacks.sign_flip, factor=3.0), u, True), -3 * u, rtol=1e-6
    )
    noise = partial(attacks.gaussian, std=2.0)
    drawn = [sent(noise, np.zeros(20_000), True, jax.random.key(k)) for k in (0, 1)]
    assert abs(np.mean(drawn)) < 0.05 and abs(np.std(drawn) - 2) < 0.05
    assert abs(np.corrcoef(drawn)[0, 1]) < 0.05
    for attack in (attacks.sign_flip, noise):
        toys.same(sent(attack, u, False), u)


def test_inner_product_manipulation_sends_minus_the_honest_mean():
    u = updates_of(1)
    for knowledge, known in KNOWN.items():
        expected = np.where(ATTACKERS[:, None], -0.7 * u[known].mean(0), u)
        made = received(partial(attacks.inner_product, epsilon=0.7, knowledge=knowledge), u)
        np.testing.assert_allclose(made, expected, rtol=1e-5)


def test_little_is_enough_hides_attackers_among_the_honest_updates():
    u, (n, m) = updates_of(2), (ARRIVED.sum(), ATTACKERS.sum())
    supporters = np.floor(n / 2 + 1) - m
    z = scipy.stats.norm.ppf((n - m - supporters) / (n - m))
    for given, multiple, knowledge, up in (
        (0.0, z, "own", False),
        (1.5, 1.5, "own", False),
        (0.0, -z, "all", True),
    ):
        known = u[KNOWN[knowledge]]
        expected = np.where(ATTACKERS[:, None], known.mean(0) - multiple * known.std(0), u)
        settings = {"z": given, "knowledge": knowledge, "up": up}
        made = received(partial(attacks.little_is_enough, **settings), u)
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


DIRECTIONS = {
    "std": lambda u: -u.std(0),
    "unit": lambda u: -u.mean(0) / np.linalg.norm(u.mean(0)),
    "sign": lambda u: -np.sign(u.mean(0)),
}


def is_hidden(name, u, sent):
    """Whether an update is within the bound of the attack among updates u."""
    apart = ((u[:, None] - u) ** 2).sum(-1)
    beyond = ((u - sent) ** 2).sum(-1)
    if name == "min_max":
        return beyond.max() <= apart.max()
    return beyond.sum() <= apart.sum(1).max()


@pytest.mark.parametrize("name", ["min_max", "min_sum"])
@pytest.mark.parametrize(
    ("direction", "knowledge"), [("std", "all"), ("unit", "own"), ("sign", "all")]
)
def test_the_largest_shift_within_the_distances_of_the_known_updates(name, direction, knowledge):
    """gamma against a search by halving, as the authors search for it."""
    u = updates_of(6)
    known = np.float64(u[KNOWN[knowledge]])
    mu, p = known.mean(0), DIRECTIONS[direction](known)
    gamma, step = 0.0, 1000.0
    while step > 1e-6:
        gamma += step * is_hidden(name, known, mu + (gamma + step) * p)
        step /= 2
    made = received(partial(getattr(attacks, name), direction=direction, knowledge=knowledge), u)
    expected = np.where(ATTACKERS[:, None], mu + gamma * p, u)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["little_is_enough", "min_max", "min_sum"])
def test_attackers_whose_known_updates_are_equal_change_nothing(name):
    """Also a single attacker that only knows its own update."""
    u = np.where(ARRIVED[:, None], np.float32([1, 2, 3, 4, 5, 6]), 0)
    attack = partial(getattr(attacks, name), knowledge="own")
    np.testing.assert_allclose(received(attack, u), u, rtol=1e-6)


def test_an_aggregator_gets_the_uploads_of_attackers():
    """The last transform that wraps a method is the closest to the server."""

    def attacked(method, task):
        method = attacks.by_all(method, lambda updates, _: [u[0] * 0 + 7 for u in updates])
        return cohort.replaced(method, lambda u, c: aggregators.mean_of(u, c.arrived & c.attacks))

    assert received(attacked, updates_of(3))[ARRIVED] == pytest.approx(7)


def test_attackers_use_changed_examples_in_all_operations_on_data():
    """Training, references of the examples, means, drawn batches and outputs."""
    batch, seen = toys.example(), []

    def train(weights, loss, *, references, epochs):
        return loss(weights, batch, None), references(batch), epochs

    work = Work(train, lambda fn, when=True: (fn(batch), when), lambda size: batch, 1, None)
    work = work._replace(outputs=lambda fn, rows: (fn(batch), rows))
    changed = attacks.with_examples(work, lambda b: b._replace(y=3 - b.y))
    seen += changed.train((), lambda w, b, key: b.y, references=lambda b: b.y, epochs=7)
    seen += [*changed.mean(lambda b: b.y, when=False), changed.draw(9).y]
    assert (seen.pop(2), seen.pop(3)) == (7, False)
    y, rows = changed.outputs(lambda b: b.y, rows="validation")
    assert rows == "validation"
    toys.same([*seen, y], [3 - batch.y] * 5)


@pytest.mark.slow
def test_attackers_train_on_flipped_labels():
    """One round of FedAvg by hand; only the labels of the attackers differ."""
    plan = naive.FULL._replace(failures=Failures(attackers=0.5), cohort=5)
    method = attacks.label_flip(toys.make("fedavg", toys.TASK), toys.TASK)
    ids = naive.cohort(method, 0, 5)
    flips = np.asarray(attackers(plan, KEYS.cohort, jnp.asarray(ids), toys.C))
    assert 0 < flips.sum() < 5
    models = []
    for i, flip in zip(ids, flips, strict=True):
        x, y = naive.data_of(i)
        models.append(naive.sgd(naive.first_weights(), x, toys.K - 1 - y if flip else y))
    state, _ = toys.player(method, plan=plan)(KEYS, 0, 1)
    naive.close(state.server, naive.mean_by_size(ids, models))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["fediir", "fedsoft", "ifca", "fedc2i", "fedlc", "fedproto"])
def test_label_flipping_by_all_clients_equals_flipped_labels_in_the_data(name):
    """The expected state is that of a run on a federation whose labels are flipped."""
    plain, task = toys.make(name), toys.NORM
    flipped = toys.FEDERATION._replace(y=toys.K - 1 - toys.FEDERATION.y)
    plan = toys.PLAN._replace(failures=Failures(attackers=1.0))
    made = toys.player(attacks.label_flip(plain, task), plan=plan)(KEYS, 0, 2)[0]
    expected = toys.player(plain, federation=flipped)(KEYS, 0, 2)[0]
    toys.same(made, expected)
