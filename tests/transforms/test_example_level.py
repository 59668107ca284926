"""DP-SGD in local training: a step against NumPy, batches, epsilon, and rejected methods."""

import sys
from functools import cache, partial

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import optional
import pytest
import toys
from inputs import complaint
from scipy import stats

from fedjax_lab import losses, sampling, streams, tree
from fedjax_lab.engine import parallel
from fedjax_lab.simulation.client_work import make_examples
from fedjax_lab.transforms import accounting_examples as accounting
from fedjax_lab.transforms import example_level as module
from fedjax_lab.transforms import libraries, privacy
from fedjax_lab.transforms.accounting_examples import Account, Training
from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Weights

optional.module("jax_privacy")

KEYS, TASK = naive.KEYS, toys.TASK
RISK = losses.risk(TASK)
SIZES = tuple(np.asarray(toys.FEDERATION.train.count).tolist())
SETUP = Setup(toys.C, 5, 6, SIZES, 8, 2)
FULL = SETUP._replace(cohort=3, batch_size=toys.N, epochs=naive.STEPS)


def make(name="fedavg", setup=SETUP, task=TASK, **settings):
    settings = {"clip": 0.5, "noise": 1.0, **settings}
    return module.example_level(toys.make(name, task), task, setup, **settings)


def by_hand(w, x, y, clip):
    """sum_j g_j min(1, S / ||g_j||), and which examples are clipped."""
    total, clipped = [np.zeros_like(a) for a in w], []
    for j in range(len(y)):
        g, longer = naive.clipped_gradient(w, x[j : j + 1], y[j : j + 1], clip)
        clipped.append(longer)
        total = naive.add(total, g)
    return total, clipped


@cache
def compiled(loss, clip, sigma, share):
    def objective(params, batch, key):
        return loss(Weights(params, {}), batch, key)

    return jax.jit(partial(module._gradient, clip, sigma, share, objective))


def step(batch, loss=RISK, clip=0.5, sigma=0.0, share=0.1):
    """(value, gradient) at the initial weights."""
    (value, _), g = compiled(loss, clip, sigma, share)(
        TASK.init(KEYS.init).params, batch, KEYS.local
    )
    return value, Weights(g, {})


def test_a_step_sums_the_clipped_gradients_of_its_examples():
    batch, w = toys.example(), naive.first_weights()
    x, y = np.asarray(batch.x)[:-2], np.asarray(batch.y)[:-2]  # the last two are padding
    value, g = step(batch, clip=2.0)
    expected, clipped = by_hand(w, x, y, 2.0)
    assert set(clipped) == {True, False}
    naive.close(g, [0.1 * a for a in expected])
    assert float(value) == pytest.approx(naive.gradient(w, x, y)[0], rel=1e-5)


@pytest.mark.slow
def test_noise_is_added_to_the_sum_and_regularization_terms_are_not_clipped():
    batch, w = toys.example(), TASK.init(KEYS.init).params

    def with_decay(w, batch, key):
        value, out = RISK(w, batch, key)
        return value + 50 * tree.sq_norm(w.params), out

    _, plain = step(batch)
    _, noisy = step(batch, sigma=2.0)
    zeros = jax.tree.leaves(tree.zeros(plain.params))
    noise = privacy.with_noise(zeros, streams.gradient(KEYS.local), 2.0 * 0.5)
    added = jax.tree.leaves(optax.tree.sub(noisy.params, plain.params))
    toys.close(added, optax.tree.scale(0.1, noise), rtol=1e-4, atol=1e-5)
    _, decayed = step(batch, with_decay)
    toys.close(
        optax.tree.sub(decayed.params, plain.params), optax.tree.scale(100, w), rtol=1e-3, atol=1e-3
    )


def test_one_example_changes_the_sum_by_at_most_the_clip():
    batch = toys.example()
    _, without = step(batch._replace(mask=batch.mask.at[2].set(0)), share=1.0)
    for bad in (np.nan, np.inf, 1e30, 1e4, 0.0):
        _, g = step(batch._replace(x=batch.x.at[2].set(bad)), share=1.0)
        assert float(tree.sq_norm(optax.tree.sub(g.params, without.params))) ** 0.5 <= 0.5 * (
            1 + 1e-4
        )


def test_examples_are_drawn_with_equal_probability_and_padding_never():
    rows, plan, count = toys.FEDERATION.train[2], toys.PLAN, 4000
    examples = make_examples(toys.FEDERATION, rows, plan)
    n, batches = int(examples.size), int(examples.batches)
    assert batches > 2 and n % plan.batch_size
    draw = module._stepping(SETUP, 0.5, 1.0, examples).draw
    drawn = np.asarray(jax.jit(lambda key: jax.vmap(draw(key))(jnp.arange(count)))(KEYS.local))
    places = accounting.places(SETUP)
    assert drawn.shape == (count, places) and drawn.max() == n - 1
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in drawn[:100])
    slots = np.random.default_rng(0).binomial(batches * plan.batch_size, 1 / batches, 400_000)
    q = np.minimum(slots, places).mean() / (batches * plan.batch_size)
    frequency = np.bincount(drawn[drawn >= 0], minlength=n) / count
    assert np.abs(frequency - q).max() < 5 * (q * (1 - q) / count) ** 0.5


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold"])
def test_full_batches_without_clipping_and_noise_equal_the_plain_method(name):
    made = make(name, FULL, clip=np.inf, noise=0.0, epsilon=np.inf)
    plain = toys.make(name, TASK)
    one, other = (toys.player(m, plan=naive.FULL)(KEYS, 0, 2) for m in (plain, made))
    toys.close(one[0], other[0], rtol=1e-4, atol=1e-5)
    toys.close(one[1].train_loss, other[1].train_loss)
    assert float(one[1].steps) == float(other[1].steps)


@pytest.mark.slow
def test_a_round_equals_local_dp_sgd_in_numpy():
    """With full batches, momentum, weight decay, and noise for each step and client."""
    plan, w, models = naive.FULL, naive.first_weights(), []
    state, _ = toys.player(make(setup=FULL, noise=0.5), plan=plan)(KEYS, 0, 1)
    ids = naive.cohort(toys.make("fedavg", TASK), 0)
    for i, key in zip(ids, streams.clients(KEYS.local, 0, jnp.array(ids)), strict=True):
        (x, y), number = naive.data_of(i), iter(range(naive.STEPS))

        def gradient_at(w, x=x, y=y, key=key, number=number):
            _, k_steps = streams.epoch(key, next(number))
            k_noise = streams.gradient(jax.random.fold_in(k_steps, 0))
            like = jax.tree.leaves(TASK.init(KEYS.init))
            noise = privacy.with_noise(tree.zeros(like), k_noise, 0.5 * 0.5)
            named = jax.tree.unflatten(jax.tree.structure(TASK.init(KEYS.init)), noise)
            total = naive.add(by_hand(w, x, y, 0.5)[0], naive.weights_of(named))
            return [a / len(y) for a in total]

        models.append(naive.descend(w, gradient_at))
    naive.close(state.server, naive.mean_by_size(ids, models))


@pytest.mark.exhaustive
def test_interrupted_and_sequential_runs_give_the_same_result():
    made = make("scaffold")
    play = toys.player(made)
    whole, half = play(KEYS, 0, 3), play(KEYS, 0, 1)
    toys.same(play(KEYS, 1, 2, half[0])[0], whole[0])
    one_by_one = toys.player(made, parallel.sequential())(KEYS, 0, 3)
    toys.close(one_by_one[0], whole[0], rtol=1e-4, atol=1e-5)


# Epsilon.


def gaussian_delta(epsilon, mu):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )


def test_epsilon_of_full_batches_is_that_of_a_gaussian():
    """Rounds without a client cost it no privacy."""
    account = Account(1, 8, 8, steps=2)
    epsilon = accounting.epsilon(account, 2.0, 3, 1e-3)
    assert gaussian_delta(epsilon, 6**0.5 / 2) == pytest.approx(1e-3, rel=0.02)
    account = account._replace(probability=0.3)
    epsilon = accounting.epsilon(account, 2.0, 4, 1e-3)
    binomial = stats.binom.pmf(range(1, 5), 4, 0.3)
    delta = sum(p * gaussian_delta(epsilon, (2 * k) ** 0.5 / 2) for k, p in enumerate(binomial, 1))
    assert delta == pytest.approx(1e-3, rel=0.02)
    assert accounting.epsilon(account, 2.0, 0, 1e-3) == 0
    assert accounting.epsilon(account, 0.0, 1, 1e-3) == np.inf


def test_epsilon_of_little_noise_and_of_small_batches():
    """Its privacy losses are large, and would take terabytes in a fine distribution."""
    account = Account(2, 16, 20, steps=2)
    assert accounting.epsilon(account, 1e-5, 1, 1e-4) == np.inf
    assert len(accounting._round(account, 0.05)._pmf_remove.to_dense_pmf()._probs) < 200_000
    # jax_privacy.experimental.accounting: 512 steps of noise 3, rate 0.1, 3.77 at delta 1e-6.
    account = Account(10, 100, 1000, steps=512)
    assert accounting.epsilon(account, 3.0, 1, 1e-6) == pytest.approx(3.77, abs=0.005)
    assert accounting.epsilon(account._replace(places=130), 3.0, 1, 1e-6) < 3.9


def test_an_account_counts_the_steps_of_all_trainings_of_a_round():
    def noted(name, **settings):
        method = toys.make(name, TASK, **settings)
        return module.trainings_of_a_round(method, TASK, SETUP)

    assert noted("fedavg") == noted("scaffold") == [Training(2, None)]
    trainings = [*noted("fedrep"), Training(3, 2)]
    assert trainings[:2] == [Training(1, None)] * 2
    each = accounting.accounts(SETUP, trainings, 0.5)
    places = sampling.room(8, 40)
    assert each == tuple(Account(b, 8, places, 2 * b + 6, 0.5) for b in (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("n", "size", "noise", "steps", "delta"),
    [
        (600, 32, 1.0, 60, 1e-3),
        (64, 32, 1.5, 200, 1e-2),
        (100, 10, 0.8, 100, 1e-3),
        (320, 8, 1.0, 1000, 1e-4),
        pytest.param(6400, 64, 0.7, 300, 1e-5, marks=pytest.mark.slow),
        pytest.param(60_000, 100, 0.6, 3000, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_the_places_of_a_batch_hardly_cost_epsilon(n, size, noise, steps, delta):
    setup = Setup(1, 1, 1, (n,), size, 1)
    (account,) = accounting.accounts(setup, [Training(1, steps)])
    account = account._replace(steps=steps)
    unbounded = account._replace(places=account.batches * size)
    bounded, without = (accounting.epsilon(a, noise, 1, delta) for a in (account, unbounded))
    assert account.places < unbounded.places and bounded < 1.01 * without


@pytest.mark.exhaustive
def test_the_worst_client_has_the_fewest_batches_only_over_many_rounds():
    def accounts(steps, probability):
        return [Account(b, 16, 28, steps * b, probability) for b in (1, 2, 5, 30)]

    many, one = accounts(5, 0.1), accounts(1, 1)
    epsilons = [accounting.epsilon(account, 1.0, 20, 1e-5) for account in many]
    assert epsilons == sorted(epsilons, reverse=True)
    assert accounting.worst(many[::-1], 1.0, 20, 1e-5) == many[0]
    epsilons = [accounting.epsilon(account, 0.6, 1, 1e-5) for account in one]
    assert accounting.worst(one, 0.6, 1, 1e-5) == one[np.argmax(epsilons)] != one[0]
    noise = accounting.noise_for(tuple(one), 8.0, 1, 1e-5)
    assert max(accounting.epsilon(account, noise, 1, 1e-5) for account in one) <= 8


@pytest.mark.exhaustive
def test_the_noise_for_an_epsilon_is_minimal():
    made = make(noise=0.0, epsilon=4.0, delta=1e-3).extra.guarantee
    each = accounting.accounts(SETUP, [Training(2, None)], 5 / 8)
    (epsilon,) = made.epsilons([SETUP.rounds])
    assert epsilon <= 4 < accounting.epsilon(each[0], made.noise - 3e-3, SETUP.rounds, 1e-3)
    assert made.unit == "example" and made.rounds == SETUP.rounds
    everybody = toys.make("fedavg", TASK)._replace(sample=sampling.all_clients)
    more = module.example_level(everybody, TASK, SETUP, noise=made.noise, delta=1e-3)
    assert more.extra.guarantee.epsilons([SETUP.rounds])[0] > epsilon


def with_statistics(w, batch, key):
    return tree.sq_norm(w.params), Weights(w.params, {"mean": jnp.zeros(3)})


def test_unsupported_methods_and_settings_are_one_line_errors(monkeypatch):
    assert "running statistics" in complaint(step, toys.example(), with_statistics)
    assert "BatchNorm" in complaint(make, task=toys.NORM)
    assert "use their examples outside of training" in complaint(make, "ifca")
    assert "numbers of examples of each class" in complaint(make, "fedlc")
    refused = complaint(module.example_level, clip=0.0)
    assert refused == "config.privacy.clip must be above 0, got 0.0"
    assert "must be finite" in complaint(make, clip=np.inf)
    assert "cannot both be given" in complaint(make, epsilon=1.0)
    made = make(setup=SETUP._replace(batch_size=4))
    message = complaint(toys.player(made), KEYS, 0, 1)
    assert "batches of 8, but the privacy accounting assumes batches of 4" in message
    libraries.import_library.cache_clear()
    monkeypatch.setitem(sys.modules, "jax_privacy", None)
    message = complaint(toys.player(make()), KEYS, 0, 1)
    assert message == "it needs the package jax-privacy: pip install 'fedjax_lab[privacy]'"
