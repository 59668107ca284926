"""Client2Vec: the index of clients, and the three ways in which it improves a base method."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import toys

from fedjax_lab import losses, methods, sampling, simulate, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import client_index
from fedjax_lab.methods.client_index import Index
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models import dsa_ign
from fedjax_lab.types import Batch, Client, Method, State

E, C, K = 64, toys.C, toys.K
RNG = np.random.default_rng(0)
T = RNG.normal(size=(K, E)).astype(np.float32)
TASK = toys.NORM._replace(labels=lambda: jnp.asarray(T))
KEYS = simulate.make_keys(jax.random.key(0))
INDEX = Index(*RNG.normal(size=(2, C, E)).astype(np.float32))
PEOPLE = simulate.population(toys.SKEWED, K)


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    monkeypatch.setattr(dsa_ign, "HIDDEN", 16)


def stages(**settings):
    return methods.make("client2vec", TASK, **settings)(7)


def improved(index=INDEX, **settings):
    """The method of the training stage, and its first state with this index."""
    stage = stages(**settings)[-1]
    last = State(client_index.Server(jax.random.key_data(KEYS.init), *(None,) * 4, index), ())
    facts = index._asdict()
    return stage.method, stage.start(jax.random.key(9), C, last, facts), stage


def federation(stage, state):
    frozen = stage.frozen(state.server) if stage.frozen else ()
    return toys.SKEWED._replace(frozen=frozen)


def played(rounds, method, state, stage):
    play = toys.player(method, federation=federation(stage, state))
    return play(KEYS, 0, rounds, state)[0]


# The network and its losses (spec 3.3, 3.4).


def test_network_has_the_papers_size(monkeypatch):
    monkeypatch.setattr(dsa_ign, "HIDDEN", 2048)
    shapes = jax.eval_shape(dsa_ign.Network().init, KEYS.init, jnp.zeros((1, 512)))
    assert sum(a.size for a in jax.tree.leaves(shapes)) == 937_312 + 32 * 32
    shapes = jax.eval_shape(dsa_ign.Network(decoder="mlp").init, KEYS.init, jnp.zeros((1, 512)))
    assert tree.at(shapes, "params/hidden/kernel").shape == (1024, 512)


@pytest.mark.parametrize("positions", [False, True])
def test_without_positions_both_halves_are_the_same(positions):
    net, D = dsa_ign.Network(positions), jax.random.normal(KEYS.local, (5, E))
    z, u, made = net.apply(net.init(KEYS.init, D), D)
    assert z.shape == u.shape == made.shape == D.shape
    assert bool(jnp.allclose(z, u, atol=1e-6)) is not positions


def test_network_is_pytorchs_encoder_layer():
    """A layer recomputed in NumPy: attention by heads, normalised last."""
    x = RNG.normal(size=(3, 4, 32)).astype(np.float32)
    layer = dsa_ign.EncoderLayer()
    w = layer.init(KEYS.init, x, False)["params"]
    w = jax.tree.map(lambda a: a + 0.1 * RNG.normal(size=a.shape), w)
    att = w["MultiHeadDotProductAttention_0"]

    def norm(y, p):
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
        return y * p["scale"] + p["bias"]

    q, k, v = (
        np.einsum("bnd,dhe->bhne", x, att[n]["kernel"]) + att[n]["bias"][None, :, None]
        for n in ("query", "key", "value")
    )
    share = scipy.special.softmax(q @ k.transpose(0, 1, 3, 2) / 2, -1)  # 4 numbers a head
    y = np.einsum("bhne,hed->bnd", share @ v, att["out"]["kernel"]) + att["out"]["bias"]
    x1 = norm(x + y, w["LayerNorm_0"])
    hidden = np.maximum(x1 @ w["Dense_0"]["kernel"] + w["Dense_0"]["bias"], 0)
    x2 = norm(x1 + hidden @ w["Dense_1"]["kernel"] + w["Dense_1"]["bias"], w["LayerNorm_1"])
    np.testing.assert_allclose(layer.apply({"params": w}, x, False), x2, rtol=1e-4, atol=1e-4)


def a_batch(B, pad=0, scale=1.0):
    rows = [scale * RNG.normal(size=(B + pad, E)).astype(np.float32) for _ in range(4)]
    y = np.zeros(B + pad, np.int32)
    mask = np.r_[np.ones(B), np.zeros(pad)].astype(np.float32)
    z, u, made, D = rows
    L = T[RNG.integers(0, K, B + pad)]
    return z, u, made, Batch(D, y, mask), L


@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
def test_index_losses_are_the_formulas(reduction):
    B = 6
    z, u, made, batch, L = a_batch(B, pad=3)
    found = client_index.index_losses(z, u, made, batch, L, reduction)

    def cos(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    div = np.mean(
        [np.log(sum(np.exp(cos(u[j], u[k])) for k in range(B) if k != j)) for j in range(B)]
    )
    orth = sum(abs(z[j] @ u[k]) for j in range(B) for k in range(B))
    orth /= {"mean": B * B, "sum": 1, "batchmean": B}[reduction]
    expected = {
        "div": div,
        "sim": np.mean([1 - cos(z[j], L[j]) for j in range(B)]),
        "orth": orth,
        "recon": np.mean((made[:B] - batch.x[:B]) ** 2),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)


def test_diversity_is_bounded_and_0_for_one_example():
    z, u, made, batch, L = a_batch(9)
    div = client_index.index_losses(z, u, made, batch, L)["div"]
    assert np.log(8) - 1 <= div <= np.log(8) + 1
    same = client_index.index_losses(z, np.tile(u[:1], (9, 1)), made, batch, L)["div"]
    np.testing.assert_allclose(same, np.log(8) + 1, rtol=1e-5)
    z, u, made, batch, L = a_batch(1, pad=3)
    assert client_index.index_losses(z, u, made, batch, L)["div"] == 0
    grad = jax.grad(lambda u: client_index.index_losses(z, u, made, batch, L)["div"])(u)
    assert np.isfinite(grad).all()


# Similarity, sampling, aggregation (spec 3.7, 3.8).


def naive_S(i, chosen, index=INDEX, n=np.asarray(PEOPLE.n)):
    def cos(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    total = sum(
        n[j] * (cos(index.feature[i], index.feature[j]) + cos(index.label[i], index.label[j]))
        for j in chosen
    )
    return total / (2 * sum(n[j] for j in chosen))


def with_age(state, age):
    return state.server._replace(age=jnp.asarray(age))


def test_clients_are_sampled_by_eq_1():
    """10,000 draws of two without replacement: chi-square over all ordered pairs."""
    tau = 0.4
    method, state, _ = improved(sampling_tau=tau)
    # 8 clients, 2 a round: nobody of the last two rounds, here 2 and 5, then 0 and 1
    server = with_age(state, [2, 2, 1, 3, 9, 1, 9, 4])
    keys = jax.random.split(jax.random.key(3), 10_000)
    ids, shares = jax.jit(jax.vmap(lambda k: method.sample(k, server, PEOPLE, 2)))(keys)
    free = [3, 4, 6, 7]
    p = {i: np.exp(naive_S(i, [2, 5]) / tau) for i in free}
    expected, seen = [], []
    for a in free:
        for b in free:
            if a != b:
                first = p[a] / sum(p.values())
                expected.append(1e4 * first * p[b] / (sum(p.values()) - p[a]))
                seen.append(np.sum((ids[:, 0] == a) & (ids[:, 1] == b)))
    assert sum(seen) == 10_000
    assert scipy.stats.chisquare(seen, expected).pvalue > 1e-3
    n = np.asarray(PEOPLE.n)[np.asarray(ids)]
    np.testing.assert_allclose(shares, n / n.sum(1, keepdims=True), rtol=1e-6)


def test_the_first_cohort_is_uniform_and_a_shortfall_is_drawn_from_the_excluded():
    method, state, _ = improved(sampling_tau=0.1)
    draw = jax.jit(jax.vmap(lambda k, s: method.sample(k, s, PEOPLE, 3)[0], (0, None)))
    keys = jax.random.split(jax.random.key(4), 8_000)
    counts = np.bincount(np.asarray(draw(keys, state.server))[:, 0], minlength=C)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    ids = np.asarray(draw(keys, with_age(state, [1, 1, 1, 1, 1, 1, 5, 7])))  # 6 and 7 are free
    assert (np.sort(ids[:, :2], 1) == [6, 7]).all()
    counts = np.bincount(ids[:, 2], minlength=C)
    assert counts[6:].sum() == 0
    assert scipy.stats.chisquare(counts[:6]).pvalue > 1e-3


def test_nobody_comes_again_within_the_window():
    """2 of 8 a round: at least two rounds lie between."""
    method, state, stage = improved(local_training=False)
    seen, state = [], state
    step = jax.jit(functools.partial(simulate.play_round, method, toys.PLAN._replace(cohort=2)))
    run = functools.partial(step, toys.VECTORISED, toys.SKEWED, PEOPLE, KEYS)
    for t in range(0):
        state, _ = run(state, t)
    assert seen == []


@pytest.mark.parametrize("gamma, lam", [(0.5, 1.0), (0.0, 0.5), (0.9, 1e9)])
def test_shares_are_eq_3(gamma, lam):
    """The recursion is the explicit double sum; lambda without end gives shares by size."""
    method, state, _ = improved(history_gamma=gamma, history_lambda=lam, local_training=False)
    n, rounds = np.asarray(PEOPLE.n), [[0, 3, 5], [1, 3, 4], [7, 2, 0]]
    server = state.server
    uploads = tree.repeat(server.base, 3)
    uploads = jax.tree.map(lambda a: a + RNG.normal(size=a.shape).astype(np.float32), uploads)
    for t, ids in enumerate(rounds):
        cohort = tree.take(PEOPLE, jnp.array(ids))
        server = method.round[0].aggregate(server, uploads, cohort)
        H = [
            sum(
                gamma ** (t - s) * naive_S(i, rounds[s]) if gamma or t == s else 0
                for s in range(t + 1)
            )
            for i in ids
        ]
        p = n[ids] * np.exp(np.array(H) / lam)
        p = p / p.sum()
        if lam == 1e9:
            np.testing.assert_allclose(p, n[ids] / n[ids].sum(), rtol=1e-6)
        toys.close(server.base, jax.tree.map(lambda a: np.tensordot(p, a, 1), uploads))
    assert list(np.asarray(server.age)) == [1, 2, 1, 2, 2, 3, C + 2, 1]
