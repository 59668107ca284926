"""The index of clients: its losses, the training of its network, and its values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from indices import KEYS, POPULATION, RNG, C, E, K, T, stages
from slow_cases import exhaustive_but

from fedjax_lab.engine import parallel
from fedjax_lab.papers.client2vec import dsa_ign, network
from fedjax_lab.simulation import simulate
from fedjax_lab.types import Batch

pytestmark = pytest.mark.usefixtures("small_network")


def a_batch(B, pad=0, scale=1.0):
    rows = [scale * RNG.normal(size=(B + pad, E)).astype(np.float32) for _ in range(4)]
    y = np.zeros(B + pad, np.int32)
    mask = np.r_[np.ones(B), np.zeros(pad)].astype(np.float32)
    z, u, made, D = rows
    L = T[RNG.integers(0, K, B + pad)]
    return z, u, made, Batch(D, y, mask), L


@pytest.mark.parametrize(
    "reduction, normalize", [("mean", False), ("sum", True), ("batchmean", False)]
)
def test_index_losses_match_their_formulas(reduction, normalize):
    B = 6
    z, u, made, batch, L = a_batch(B, pad=3)
    reduce = dsa_ign.REDUCTIONS[reduction]
    actual = dsa_ign.index_losses(z, u, made, batch, L, reduce, normalize)

    def cos(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    div = np.mean(
        [np.log(sum(np.exp(cos(u[j], u[k])) for k in range(B) if k != j)) for j in range(B)]
    )
    product = cos if normalize else np.dot
    orth = sum(abs(product(z[j], u[k])) for j in range(B) for k in range(B))
    orth /= {"mean": B * B, "sum": 1, "batchmean": B}[reduction]
    expected = {
        "div": div,
        "sim": np.mean([1 - cos(z[j], L[j]) for j in range(B)]),
        "orth": orth,
        "recon": np.mean((made[:B] - batch.x[:B]) ** 2),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, err_msg=name)


def test_the_diversity_loss_of_one_example_is_0():
    @jax.jit
    def diversity(z, u, *others):
        return dsa_ign.index_losses(z, u, *others)["div"]

    z, u, *others = a_batch(1, pad=3)
    value, gradient = jax.value_and_grad(diversity, 1)(z, u, *others)
    assert value == 0 and np.isfinite(gradient).all()


EMBEDDED = toys.SKEWED._replace(
    x=jnp.asarray(RNG.normal(size=(600, E)), jnp.float32), test=None, global_test=None
)


@functools.cache
def server_of(**settings):
    """The server after all rounds of the stages before the training."""
    state = None
    for stage in stages(index_epochs=2, **settings)[:-1]:
        start = stage.start or (lambda key, C, last, facts, m=stage.method: m.init(key, C))
        state = start(KEYS.init, C, state, {})
        play = toys.player(stage.method, federation=EMBEDDED)
        state, _ = play(KEYS, 0, stage.rounds, state)
    return state.server


@pytest.mark.parametrize("index", exhaustive_but(["global"], ["global", "federated"]))
def test_the_index_of_a_client_matches_its_definition(index):
    """beta^l is the label histogram times T, beta^f the mean of u."""
    server = server_of(index=index)
    count = np.asarray(POPULATION.label_count)
    expected = count / count.sum(1, keepdims=True) @ T
    np.testing.assert_allclose(server.index.label, expected, rtol=1e-4, atol=1e-6)
    net = network.Network()
    for i in (0, 5):
        rows = np.asarray(toys.SKEWED.train[i])
        u = net.apply(server.psi, EMBEDDED.x[rows[rows >= 0]])[1]
        np.testing.assert_allclose(server.index.feature[i], u.mean(0), rtol=1e-3, atol=1e-4)


WEIGHTS = {"div": 0.5, "sim": 2.0, "orth": 0.3, "recon": 1.5}


ALONE = EMBEDDED._replace(train=toys.as_rows(np.asarray(EMBEDDED.train)[5:6]))  # one client


def adam_steps(psi, count):
    """DSA-IGN after `count` full-batch steps on the examples of one client, without dropout."""
    rows = ALONE.train[0][ALONE.train[0] >= 0]
    batch = Batch(ALONE.x[rows], ALONE.y[rows], jnp.ones(len(rows)))
    adam, net = optax.adam(1e-3), network.Network()

    def loss(psi):
        parts = dsa_ign.index_losses(*net.apply(psi, batch.x), batch, T[batch.y])
        return sum(WEIGHTS[name] * parts[name] for name in WEIGHTS)

    moments = adam.init(psi)
    for _ in range(count):
        updates, moments = adam.update(jax.jit(jax.grad(loss))(psi), moments, psi)
        psi = optax.apply_updates(psi, updates)
    return psi


def without_key_bias(psi):
    """Attention does not depend on this bias: its gradient, and so its step, is rounding error."""
    named = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(psi)]
    return {path: leaf for path, leaf in named if "['key']['bias']" not in path}


@pytest.mark.exhaustive
@pytest.mark.parametrize("index, steps", [("global", [2]), ("federated", [10, 10])])
def test_the_training_of_dsa_ign_matches_explicit_adam_steps(index, steps, monkeypatch):
    """Two epochs of the server, or two rounds of ten local epochs, as explicit steps."""
    monkeypatch.setattr(network, "DROPOUT", 0.0)
    weights = {f"weight_{name}": value for name, value in WEIGHTS.items()}
    *before, _ = stages(index=index, index_epochs=2, **weights)
    state = None
    for stage in before:
        start = stage.start or (lambda key, C, last, facts, m=stage.method: m.init(key, C))
        state = start(KEYS.init, 1, state, {})
        plan = stage.plan(toys.PLAN)
        play = toys.player(stage.method, plan=plan, federation=ALONE)
        if stage.name == "index":
            break
        state, _ = play(KEYS, 0, 1, state)
    trained, _ = play(KEYS, 0, 2, state)
    expected = state.server.psi
    for count in steps:  # Adam restarts in each round of a client, not of the server
        expected = adam_steps(expected, count)
    toys.close(*map(without_key_bias, (trained.server.psi, expected)), rtol=2e-3, atol=2e-5)


def index_epochs(devices, **settings):
    """The compiled rounds in which the server trains DSA-IGN, and their arguments."""
    collect, train, *_ = stages(**settings)
    state = collect.method.init(KEYS.init, C)
    state, _ = toys.player(collect.method, federation=EMBEDDED)(KEYS, 0, 1, state)
    strategy = toys.VECTORIZED
    if devices > 1:
        strategy = parallel.on_mesh(parallel.make_mesh(devices), strategy)
    args = (
        simulate.Lane(EMBEDDED, POPULATION, KEYS),
        state,
        simulate.no_progress(),
        jnp.int32(0),
        jnp.int32(2),
    )
    return jax.jit(
        functools.partial(simulate.play, simulate.Program(train.method, toys.PLAN, strategy))
    ), args


@pytest.mark.parametrize("devices, pooled", exhaustive_but([], [(2, False), (5, False), (8, True)]))
def test_training_on_several_devices_gives_the_numbers_of_one(devices, pooled):
    """Dropout is included, and the number of devices need not divide the 128 rows."""
    play, args = index_epochs(devices, index_pooled=pooled)
    alone, _ = index_epochs(1, index_pooled=pooled)
    trained, expected = (without_key_bias(run(*args)[0].server.psi) for run in (play, alone))
    toys.close(trained, expected, rtol=2e-3, atol=2e-5)


@pytest.mark.exhaustive
def test_the_servers_training_is_divided_among_the_devices(monkeypatch):
    monkeypatch.setattr(network, "HIDDEN", 256)
    flops = []
    for devices in (1, 8):
        play, args = index_epochs(devices)
        flops.append(play.lower(*args).compile().cost_analysis()["flops"])
    assert flops[1] < 0.2 * flops[0]


@pytest.mark.slow
def test_collected_batches_hold_the_examples_of_their_clients():
    server = server_of(index="global")
    for i, rows in enumerate(np.asarray(EMBEDDED.train)):
        rows = rows[rows >= 0]
        real = np.asarray(server.batches.mask[i]) == 1
        assert real.sum() == len(rows) and server.batches.y.shape == (C, 128)
        kept = np.asarray(server.batches.x[i])[real]
        expected = np.asarray(EMBEDDED.x)[rows]
        np.testing.assert_array_equal(np.sort(kept, 0), np.sort(expected, 0))


def test_a_tenth_of_the_clients_is_sampled():
    population = jax.tree.map(lambda a: jnp.tile(a, 4)[:30] if a.ndim == 1 else a, POPULATION)
    ids, shares = dsa_ign.tenth(KEYS.cohort, None, population, 99)
    assert len(set(ids.tolist())) == 3
    np.testing.assert_allclose(shares, population.n[ids] / population.n[ids].sum(), rtol=1e-6)


@pytest.mark.slow
def test_batches_or_pooled_examples_are_permuted():
    """Whole batches or single examples are permuted, and no example is lost."""
    x = jnp.arange(12.0).reshape(4, 3, 1)
    batches = Batch(x, jnp.arange(12).reshape(4, 3), jnp.ones((4, 3)))
    for pooled in (False, True):
        permuted = dsa_ign.reordered(jax.random.key(1), batches, pooled)
        np.testing.assert_array_equal(permuted.x[..., 0], permuted.y)
        assert sorted(permuted.y.ravel().tolist()) == list(range(12))
        whole = [sorted(row) in np.arange(12).reshape(4, 3).tolist() for row in permuted.y.tolist()]
        assert all(whole) is not pooled
    assert permuted.y.tolist() != batches.y.tolist()


def test_index_settings_reach_the_network_and_its_training(monkeypatch):
    seen = []
    monkeypatch.setattr(dsa_ign, "reordered", lambda k, b, pooled: seen.append(pooled) or b)
    settings = dict(index_pooled=True, index_positions=False, index_decoder="mlp")
    collect, train, *_ = stages(index="global", orth_normalize=True, **settings)
    state = jax.eval_shape(lambda: collect.method.init(KEYS.init, C))
    names = set(state.server.psi["params"])
    assert "hidden" in names and "positions" not in names
    jax.eval_shape(train.method.round[0].aggregate, state.server, (), None)
    assert seen == [True]


def test_naive_indices_are_means_of_the_embeddings():
    """Table 2: the mean of D, and the concatenated means of all classes, 0 for absent ones."""
    average = server_of(index="feature_average").index.feature
    prototypes = np.asarray(server_of(index="class_prototypes").index.feature).reshape(C, K, E)
    y, x = np.asarray(EMBEDDED.y), np.asarray(EMBEDDED.x)
    absent = 0
    for i, rows in enumerate(np.asarray(EMBEDDED.train)):
        rows = rows[rows >= 0]
        np.testing.assert_allclose(average[i], x[rows].mean(0), rtol=1e-4, atol=1e-5)
        for c in range(K):
            of_class = x[rows[y[rows] == c]]
            expected = of_class.mean(0) if len(of_class) else np.zeros(E)
            absent += not len(of_class)
            np.testing.assert_allclose(prototypes[i, c], expected, rtol=1e-4, atol=1e-5)
    assert absent
