"""DP-FTRL by banded matrix factorization: its noise, its cohorts and its epsilon."""

import sys

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optional
import pytest
import toys
from inputs import complaint
from naive import vector
from slow_cases import exhaustive_but
from stops import stopping_after

from fedjax_lab import optim, sampling, streams, tree
from fedjax_lab.engine import fsdp, parallel
from fedjax_lab.engine.engine import Engine
from fedjax_lab.running import runner
from fedjax_lab.transforms import accounting, correlated_noise, libraries, privacy
from fedjax_lab.transforms.accounting import Run
from fedjax_lab.transforms.guarantee import Setup

optional.module("jax_privacy")

KEYS, TASK = naive.KEYS, toys.TASK
SETUP = Setup(toys.C, 2, 12, (10,) * toys.C, 8, 2)
PLAN = toys.PLAN._replace(cohort=2, rounds=12)
SMALL = {"clip": 0.5, "noise": 0.3, "bands": 3}
BANDS = (2 / 3, 2 / 3, 1 / 3)
optimized = correlated_noise.strategy


@pytest.fixture(autouse=True)
def bands_without_a_search(monkeypatch):
    monkeypatch.setattr(correlated_noise, "strategy", lambda rounds, bands: BANDS)


def make(name="fedavg", setup=SETUP, **settings):
    return correlated_noise.banded(toys.make(name, TASK), TASK, setup, **{**SMALL, **settings})


def dense(bands, rounds):
    """The matrix C [rounds, rounds] of the bands."""
    return sum(c * np.eye(rounds, k=-j) for j, c in enumerate(bands))


def independent(like, t):
    """The noise z_t, with standard deviation 1."""
    key = jax.random.fold_in(streams.noise(KEYS.init), t)
    leaves = enumerate(jax.tree.leaves(like))
    return vector([jax.random.normal(streams.extra(key, j), a.shape) for j, a in leaves])


@pytest.mark.exhaustive
def test_models_are_sums_of_the_noise_if_clients_learn_nothing():
    rounds, std = 5, 0.3 * 0.5 / 2
    plan = PLAN._replace(optimizer=optim.sgd(0.0))
    method, first = make(), TASK.init(KEYS.init)
    play = toys.player(method, plan=plan)
    z = std * np.stack([independent(first, t) for t in range(rounds)])
    models = np.tri(rounds) @ np.linalg.inv(dense(BANDS, rounds)) @ z
    state = None
    for t in range(rounds):
        state, _ = play(KEYS, t, 1, state)
        model = vector(state.server.base.base) - vector(first)
        np.testing.assert_allclose(model, models[t], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_bands_have_norm_one_and_leave_less_noise_in_the_models():
    bands = optimized(SETUP.rounds, 3)
    assert np.linalg.norm(bands) == pytest.approx(1, abs=1e-12) and min(bands) > 0
    left = np.tri(12) @ np.linalg.inv(dense(bands, 12))
    assert (left**2).sum() < 0.75 * (np.tri(12) ** 2).sum()
    assert optimized(SETUP.rounds, 3) is bands  # cached, because a transform is called often


def test_a_client_takes_part_at_most_once_per_cycle_of_the_bands():
    C, m, bands, rounds = 20, 3, 3, 6000
    population = tree.take(toys.POPULATION, jnp.zeros(C, int))
    numbers = jnp.arange(rounds)

    def draw(key, t):
        return correlated_noise.in_turn(key, t, population, m, bands)

    keys = jax.vmap(lambda t: jax.random.fold_in(KEYS.cohort, t))(numbers)
    ids, shares = (np.asarray(a) for a in jax.jit(jax.vmap(draw))(keys, numbers))
    drawn = shares > 0
    assert ids.min() >= 0 and ids.max() < C
    assert (ids[drawn] % bands == np.repeat(np.arange(rounds), drawn.sum(1)) % bands).all()
    for row, mask in zip(ids[:100], drawn[:100], strict=True):
        assert len(set(row)) == len(row)
        assert len(set(row[mask])) == mask.sum()
    frequency = np.bincount(ids[drawn], minlength=C) / (rounds / bands)
    q = m / 7
    assert np.abs(frequency - q).max() < 5 * (q * (1 - q) / (rounds / bands)) ** 0.5
    np.testing.assert_allclose(shares.sum(1)[drawn.any(1)], 1, rtol=1e-6)
    one_group = correlated_noise.in_turn(keys[0], jnp.int32(5), toys.POPULATION, 3, 1)
    toys.same(one_group, sampling.poisson(keys[0], (), toys.POPULATION, 3))


@pytest.mark.slow
def test_one_band_equals_central_privacy():
    plain, one = toys.make("fedavg", TASK), make(bands=1)
    central = privacy.central(plain, TASK, SETUP, clip=0.5, noise=0.3)
    assert one.extra.guarantee.neighbors == central.extra.guarantee.neighbors
    (a, _), (b, _) = (toys.player(m, plan=PLAN)(KEYS, 0, 2) for m in (one, central))
    toys.same(a, b)


def test_epsilon_equals_the_jax_privacy_analysis_of_the_same_sampling():
    from jax_privacy import accounting as library
    from jax_privacy.accounting import accountants, analysis

    setup = Setup(4000, 100, 60, (10,) * 4000, 8, 1)
    made = correlated_noise._promise(setup, 4, 1.5, 0.0, 1e-5)
    capacity = sampling.room(100, 1000)
    shared = {"num_samples": 4000, "delta": 1e-5, "batch_size": 100, "cycle_length": 4}
    params = library.DpParams(noise_multipliers=1.5, truncated_batch_size=capacity, **shared)
    config = accountants.PldAccountantConfig(value_discretization_interval=1e-3)
    accountant = analysis.DpsgdTrainingAccountant(config)
    once, again, twice, last = made.epsilons([1, 4, 5, 60])
    assert once == again < twice
    for rounds, epsilon in ((5, twice), (60, last)):
        assert epsilon == pytest.approx(accountant.compute_epsilon(rounds, params), rel=5e-3)


@pytest.mark.slow
def test_the_noise_for_an_epsilon_is_that_of_the_rounds_of_one_group():
    made = make(noise=0.0, epsilon=8.0, delta=1e-3).extra.guarantee
    group = Run(3, 2, "poisson", sampling.room(2, 3))
    assert made.noise == accounting.noise_for(group, 8.0, 4, 1e-3)
    assert made.epsilons([SETUP.rounds])[0] <= 8 and made.unit == "client" and made.rounds == 12


@pytest.mark.parametrize("name", exhaustive_but([], ["scaffold", "fedopt"]))
def test_the_result_does_not_depend_on_the_execution_strategy(name):
    """Two devices train one client after the other."""
    made = make(name)
    alone, _ = toys.player(made, plan=PLAN)(KEYS, 0, 4)
    federation = toys.divided(2)
    mesh = parallel.on_mesh(parallel.make_mesh(2), parallel.chunked(1), by_client=True)
    divided, _ = toys.player(made, mesh, PLAN, federation)(KEYS, 0, 4)
    toys.close(alone.server, divided.server, rtol=1e-4, atol=1e-5)


def job(folder):
    """A run on groups of two devices, whose server keeps the noise of two rounds."""
    partition, run = {"name": "iid", "num_clients": 12}, {"rounds": 4, "cohort": 3}
    made = toys.build(folder, partition=partition, run=run, engine={"fsdp": 2})
    setup, task = Setup(12, 3, 4, (20,) * 12, 32, 1), made.task
    (stage,) = made.simulation.stages
    method = correlated_noise.banded(stage.method, task, setup, **SMALL)
    return toys.changed(made, stages=(stage._replace(method=method),))


@pytest.mark.exhaustive
def test_an_interrupted_run_on_groups_of_devices_resumes_identically(tmp_path, monkeypatch):
    """The noise is divided among the devices of a group as the model is."""
    monkeypatch.setattr(fsdp, "SMALLEST", 8)
    (first,) = Engine(job(tmp_path).simulation).states
    model = [a.sharding for a in jax.tree.leaves(first.server.base.base)]
    assert not all(one.is_fully_replicated for one in model)
    assert all([a.sharding for a in noise] == model for noise in first.server.base.extra.noises)
    whole = runner.run(job(tmp_path), quiet=True)
    (state,) = whole.states
    assert all(float(tree.sq_norm(noise)) > 0 for noise in state.server.base.extra.noises)
    with monkeypatch.context() as patch:
        stopping_after(2, patch)
        with pytest.raises(runner.Interrupted):
            runner.run(job(tmp_path), tmp_path / "cut", quiet=True)
    result = runner.run(job(tmp_path), tmp_path / "cut", resume=True, quiet=True)
    toys.same(result.states, whole.states)


def test_bad_settings_and_unsupported_methods_are_one_line_errors(monkeypatch):
    message = complaint(make, bands=5)
    assert message.startswith("config.privacy.bands must be from 1 to 4, got 5")
    assert "from 1 to 2" in complaint(make, setup=SETUP._replace(rounds=2))
    assert "must be finite" in complaint(make, clip=np.inf)
    assert "cannot both be given" in complaint(make, epsilon=1.0)
    assert "several exchanges" in complaint(make, "fediir")
    assert "models of their own" in complaint(make, "ifca")
    optimized.cache_clear()
    monkeypatch.setattr(correlated_noise, "strategy", optimized)
    libraries.import_library.cache_clear()
    monkeypatch.setitem(sys.modules, "jax_privacy.matrix_factorization.toeplitz", None)
    assert complaint(make).endswith("pip install 'fedjax_lab[privacy]'")
