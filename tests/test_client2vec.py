"""Client2Vec: the index of clients, and the three ways in which it improves a base method."""

import functools
import importlib
import json
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
import toys
from inputs import complaint

from fedjax_lab import experiment, methods, metrics, parallel, runner, simulate, tree
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import client_index
from fedjax_lab.methods.client_index import Index
from fedjax_lab.models import dsa_ign
from fedjax_lab.types import Batch, State

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
    monkeypatch.setattr(dsa_ign, "LAYERS", 1)
    monkeypatch.setattr(dsa_ign, "DROPOUT", dsa_ign.DROPOUT)


def stages(**settings):
    return methods.make("client2vec", TASK, **settings)(7)


def improved(found=INDEX, **settings):
    """The method of the training stage, and its first state with this index."""
    stage = stages(**settings)[-1]
    last = State(client_index.Server(KEYS.init, *(None,) * 4, found), ())
    facts = found._asdict()
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
    monkeypatch.setattr(dsa_ign, "LAYERS", 3)
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


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
def test_index_losses_are_the_formulas(reduction, normalize):
    B = 6
    z, u, made, batch, L = a_batch(B, pad=3)
    reduce = client_index.reduction(reduction)
    found = client_index.index_losses(z, u, made, batch, L, reduce, normalize)

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


def naive_S(i, chosen, index=INDEX):
    n = np.asarray(PEOPLE.n)

    def cos(a, b):
        a, b = (v.astype(np.float64) for v in (a, b))
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
    ids = np.asarray(draw(keys, with_age(state, [1, 1, 1, 2, 2, 2, 9, 9])))  # 8 / 6: one round
    assert np.bincount(ids.ravel(), minlength=C).astype(bool).tolist() == [False] * 3 + [True] * 5


def test_nobody_comes_again_within_the_window():
    """Two of 8 a round, eight rounds: three cohorts in a row have no one in common."""
    method, state, _ = improved(local_training=False, aggregation=False)
    server, cohorts = state.server, []
    sample = jax.jit(lambda key, server: method.sample(key, server, PEOPLE, 2)[0])
    uploads = tree.repeat(server.base, 2)
    for key in jax.random.split(jax.random.key(5), 8):
        ids = sample(key, server)
        server = method.round[0].aggregate(server, uploads, tree.take(PEOPLE, ids))
        cohorts.append(set(ids.tolist()))
    for three in zip(cohorts, cohorts[1:], cohorts[2:], strict=False):
        assert len(set.union(*three)) == 6


def test_similarity_to_oneself_is_1_and_between_two_symmetric():
    method, state, _ = improved(history_gamma=0.0)

    def S(i):
        cohort = tree.take(PEOPLE, jnp.array([i]))
        uploads = tree.repeat(state.server.base, 1)
        return np.asarray(method.round[0].aggregate(state.server, uploads, cohort).history)

    table = np.stack([S(i) for i in range(3)])
    np.testing.assert_allclose(np.diag(table), 1, rtol=1e-5)
    np.testing.assert_allclose(table[:, :3], table[:, :3].T, rtol=1e-5)
    np.testing.assert_allclose(table[1], [naive_S(i, [1]) for i in range(C)], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("part", ["feature", "label"])
def test_similarity_of_one_part_only(part):
    method, state, _ = improved(index_part=part, local_training=False, history_gamma=0.0)
    cohort = tree.take(PEOPLE, jnp.array([2]))
    server = method.round[0].aggregate(state.server, tree.repeat(state.server.base, 1), cohort)
    b = getattr(INDEX, part)
    b = b / np.linalg.norm(b, axis=1, keepdims=True)
    np.testing.assert_allclose(server.history, b @ b[2], rtol=1e-4, atol=1e-6)


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
        toys.close(server.base, tree.mix(jnp.asarray(p), uploads))
    assert list(np.asarray(server.age)) == [1, 2, 1, 2, 2, 3, C + 1, 1]


def test_momentum_and_dynamic_regularisation_take_the_new_shares():
    """FedAvgM's step is beta v + sum p (w - w_i); FedDyn's mean is sum p w_i, its h as before."""
    ids, n = [4, 0, 6], np.asarray(PEOPLE.n)
    p = n[ids] * np.exp([naive_S(i, ids) for i in ids])
    p = jnp.asarray(p / p.sum())
    cohort = tree.take(PEOPLE, jnp.array(ids))
    cohort = cohort._replace(num_clients=jnp.full(3, float(C)))
    only = dict(sampling=False, local_training=False)
    method, state, _ = improved(base="fedavgm", **only)
    plain = toys.make("fedavgm", TASK)
    uploads = tree.repeat(TASK.init(jax.random.key(7)), 3)
    uploads = jax.tree.map(lambda a: a + RNG.normal(size=a.shape).astype(np.float32), uploads)
    found = method.round[0].aggregate(state.server, uploads, cohort).base
    toys.close(
        found, plain.round[0].aggregate(state.server.base, uploads, cohort._replace(weight=p))
    )
    method, state, _ = improved(base="feddyn", **only)
    found = method.round[0].aggregate(state.server, uploads, cohort).base
    toys.close(found.mean.params, tree.mix(p, uploads.params))
    before = state.server.base
    moved = jax.tree.map(lambda a, b: jnp.sum(a - b, 0), uploads.params, before.theta.params)
    toys.close(found.h, tree.scale(-0.1 / C, moved))


# Local training (spec 3.9).


def trained(settings):
    """One full-batch step of plain SGD by client 2: the state, its rows, the model after it."""
    method, state, stage = improved(aggregation=False, **settings)
    rows = toys.SKEWED.train[2]
    plan = toys.PLAN._replace(batch_size=64, epochs=1, optimizer=optax.sgd(0.1))
    client = tree.take(PEOPLE._replace(private=()), 2)

    @jax.jit
    def step(federation, w):
        work, _ = simulate.make_work(federation, rows, plan, KEYS.local)
        return method.round[0].local(w, client, work)[0]

    return state.server.base, rows[rows >= 0], step(federation(stage, state), state.server.base)


@pytest.mark.parametrize(
    "settings, orth",
    [
        ({}, lambda products: jnp.mean(products)),
        ({"orth_reduction": "sum"}, lambda products: jnp.sum(products)),
        ({"orth_reduction": "batchmean"}, lambda products: jnp.sum(products) / len(products)),
        ({"local_orth": False}, lambda products: 0.0),
        ({"detach_teacher": True}, lambda products: jnp.mean(products)),
    ],
)
def test_local_training_adds_eq_4(settings, orth):
    """Against the gradient of the naive loss."""
    w, rows, after = trained({"local_weight": 0.07, **settings})
    x, y = toys.SKEWED.x[rows], np.asarray(toys.SKEWED.y[rows])

    def naive(params):
        body = {k: v for k, v in params.items() if k != "side"}
        out = toys.NORM.apply(w._replace(params=body), x, jax.random.key(0))
        z_P = out.features @ params["side"]["P"]  # [B, E]
        o_P = z_P @ params["side"]["head"]["kernel"] + params["side"]["head"]["bias"]
        teacher = jax.lax.stop_gradient(out.logits) if "detach_teacher" in settings else out.logits
        p, q = (jax.nn.softmax(a) for a in (teacher, o_P))
        ce = -jnp.mean(jnp.log(jax.nn.softmax(out.logits)[np.arange(len(y)), y]))
        products = jnp.stack([jnp.abs(z_P @ b) for b in INDEX.feature], 1)
        return ce + 0.07 * (orth(products) + jnp.mean(jnp.sum(p * jnp.log(p / q), 1)))

    expected = jax.tree.map(lambda a, g: a - 0.1 * g, w.params, jax.grad(naive)(w.params))
    toys.close(after.params, expected, rtol=1e-3, atol=1e-5)
    assert np.abs(after.params["side"]["P"] - w.params["side"]["P"]).max() > 1e-5


@pytest.mark.parametrize("index, w", [("global", 5.0), ("federated", 1.0)])
def test_the_weight_is_the_papers_by_default(index, w):
    toys.close(trained({"index": index})[2], trained({"index": index, "local_weight": w})[2])


def test_with_a_weight_of_nothing_it_is_the_base_method():
    """Sampling and aggregation off and w = 1e-30: FedAvg, P and phi_P aside."""
    method, state, stage = improved(local_weight=1e-30, aggregation=False, sampling=False)
    found = played(3, method, state, stage).server.base
    plain = toys.player(toys.make("fedavg"), federation=toys.SKEWED)(KEYS, 0, 3)[0].server
    found.params.pop("side")
    toys.close(found, plain)


def test_without_any_of_the_three_it_is_the_base_method():
    off = dict(sampling=False, aggregation=False, local_training=False)
    method = methods.make("client2vec", toys.NORM, base="fedprox", mu=0.3, **off)
    plain = toys.make("fedprox", mu=0.3)
    toys.same(*(toys.player(m)(KEYS, 0, 2) for m in (method, plain)))


def test_two_exchanges_are_one_round():
    """FedIIR: H and the ages move on once; its own mean of gradients is as before."""
    method, state, stage = improved(base="fediir", local_training=False)
    server = played(1, method, state, stage).server
    ids = np.flatnonzero(np.asarray(server.age) == 1)
    assert len(ids) == toys.PLAN.cohort and set(np.asarray(server.age)) == {1, C + 1}
    np.testing.assert_allclose(server.history, [naive_S(i, ids) for i in range(C)], rtol=1e-4)
    assert float(jnp.abs(server.base.g["kernel"]).max()) > 0


def test_a_base_is_scored_as_it_says():
    """FedDyn by the participants' mean; a newcomer gets it, too."""
    method, state, stage = improved(base="feddyn", local_training=False)
    state = played(1, method, state, stage)
    toys.same(method.scored(state.server, 0), state.server.base.mean)
    toys.same(method.newcomer(state)[0], state.server.base.mean)
    assert tree.sq_norm(tree.sub(state.server.base.mean, state.server.base.theta)) > 0


def test_a_base_that_tunes_is_scored_after_it():
    """FineTune's last steps are taken with the altered loss, and P moves."""
    method, state, stage = improved(base="finetune")
    work, _ = simulate.make_work(
        federation(stage, state), toys.SKEWED.train[1], toys.PLAN, KEYS.score
    )
    w, _ = method.tune(method.scored(state.server, 1), tree.take(PEOPLE, 1), work)
    assert jax.tree.structure(w) == jax.tree.structure(state.server.base)
    assert (
        float(jnp.abs(w.params["side"]["P"] - state.server.base.params["side"]["P"]).max()) > 1e-5
    )


def test_heads_are_the_index_of_local_weights():
    """H is of the heads that have just arrived."""
    stage = stages(index="local_weights", history_gamma=0.0)[-1]
    state = stage.start(KEYS.init, C, None, {})
    ids = [3, 1]
    uploads = tree.repeat(state.server.base, 2)
    uploads = jax.tree.map(lambda a: a + RNG.normal(size=a.shape).astype(np.float32), uploads)
    cohort = tree.take(PEOPLE, jnp.array(ids))
    server = stage.method.round[0].aggregate(state.server, uploads, cohort)
    head = uploads.params["head"]
    heads = np.concatenate([head["kernel"].reshape(2, -1), head["bias"]], 1)
    np.testing.assert_array_equal(server.index.feature[jnp.array(ids)], heads)
    a, b = (v / np.linalg.norm(v) for v in heads)
    n = np.asarray(PEOPLE.n)[ids] / np.asarray(PEOPLE.n)[ids].sum()
    expected = np.zeros(C)
    expected[ids] = n[0] + n[1] * (a @ b), n[0] * (a @ b) + n[1]
    np.testing.assert_allclose(server.history, expected, rtol=1e-4)


BASES = {"moon": {"projection": "mlp256"}, "ifca": {}, "fedper": {}}


@pytest.mark.parametrize("base", BASES)
def test_other_bases_run_with_all_three(base):
    """Private state, clusters, parts of models: everything stays finite, P is trained."""
    method, state, stage = improved(base=base, **BASES[base])
    after = played(2, method, state, stage)
    assert tree.finite(after)
    ages = np.sort(np.asarray(after.server.age))
    assert ages[:5].tolist() == [1] * 5  # the last cohort
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), after, state)
    sides = [v for path, v in jax.tree_util.tree_leaves_with_path(moved) if "'P'" in str(path)]
    assert sides and max(sides) > 0


def one_round(base):
    method, state, stage = improved(base=base)
    args = toys.PLAN, toys.VECTORISED, federation(stage, state), PEOPLE, KEYS, state, 0
    return simulate.play_round(method, *args)[0]


def test_every_plain_method_can_be_wrapped_or_says_why_not():
    """Traced only. FedPick's and FedSR's losses call parts of the model on their own."""
    refused = set()
    for base in methods.METHODS:
        try:
            jax.eval_shape(functools.partial(one_round, base))
        except BadInput as error:
            assert "method.base" in str(error) or base in str(error)
            refused.add(base)
    in_stages, alone, own_passes = {"fedconcat", "fedconcat_id"}, {"central", "pfedhn"}, {"fedpick"}
    assert refused == in_stages | alone | own_passes | {"fedsr", "client2vec"}


def test_settings_of_the_method_and_of_any_base_never_share_a_name():
    own = set(methods.settings(methods.METHODS["client2vec"], {"base": "fedavg"}))
    for name, base in methods.METHODS.items():
        if name != "client2vec":
            assert not own & set(methods.settings(base)), name


# The stages before (spec 3.5, 3.6, 3.10).


EMBEDDED = toys.SKEWED._replace(
    x=jnp.asarray(RNG.normal(size=(600, E)), jnp.float32), test=None, world=None
)


@functools.cache
def found_by(dropout=0.1, **settings):
    """The server after the stages before the training, each of its rounds played."""
    dsa_ign.DROPOUT, state = dropout, None  # small_network puts it back
    for stage in stages(index_epochs=2, **settings)[:-1]:
        start = stage.start or (lambda key, C, last, facts, m=stage.method: m.init(key, C))
        state = start(KEYS.init, C, state, {})
        play = toys.player(stage.method, federation=EMBEDDED)
        state, _ = play(KEYS, 0, stage.rounds, state)
    return state.server


@pytest.mark.parametrize("index", ["global", "federated"])
def test_index_is_found(index):
    """beta^l is the label histogram times T, beta^f the mean of u."""
    server = found_by(index=index)
    count = np.asarray(PEOPLE.label_count)
    expected = count / count.sum(1, keepdims=True) @ T
    np.testing.assert_allclose(server.index.label, expected, rtol=1e-4, atol=1e-6)
    net = dsa_ign.Network()
    for i in (0, 5):
        rows = np.asarray(toys.SKEWED.train[i])
        u = net.apply(server.psi, EMBEDDED.x[rows[rows >= 0]])[1]
        np.testing.assert_allclose(server.index.feature[i], u.mean(0), rtol=1e-3, atol=1e-4)


WEIGHTS = {"div": 0.5, "sim": 2.0, "orth": 0.3, "recon": 1.5}
ALONE = EMBEDDED._replace(train=EMBEDDED.train[5:6])  # one client


def adam_steps(psi, count):
    """DSA-IGN after so many full-batch steps on the one client's examples, without dropout."""
    rows = ALONE.train[0][ALONE.train[0] >= 0]
    batch = Batch(ALONE.x[rows], ALONE.y[rows], jnp.ones(len(rows)))
    adam, net = optax.adam(1e-3), dsa_ign.Network()

    def loss(psi):
        parts = client_index.index_losses(*net.apply(psi, batch.x), batch, T[batch.y])
        return sum(WEIGHTS[name] * parts[name] for name in WEIGHTS)

    moments = adam.init(psi)
    for _ in range(count):
        updates, moments = adam.update(jax.jit(jax.grad(loss))(psi), moments, psi)
        psi = optax.apply_updates(psi, updates)
    return psi


def without_key_bias(psi):
    """Attention does not depend on it: what Adam makes of its gradient is rounding alone."""
    named = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(psi)]
    return {path: leaf for path, leaf in named if "['key']['bias']" not in path}


@pytest.mark.parametrize("index, steps", [("global", [2]), ("federated", [10, 10])])
def test_dsa_ign_is_trained(index, steps, monkeypatch):
    """Two epochs of the server, or two rounds of ten local epochs, by hand."""
    monkeypatch.setattr(dsa_ign, "DROPOUT", 0.0)
    weights = {f"weight_{name}": value for name, value in WEIGHTS.items()}
    *before, _ = stages(index=index, index_epochs=2, **weights)
    state = None
    for stage in before:
        start = stage.start or (lambda key, C, last, facts, m=stage.method: m.init(key, C))
        state = start(KEYS.init, 1, state, {})
        plan = toys.PLAN._replace(batch_size=stage.batch_size)
        play = toys.player(stage.method, plan=plan, federation=ALONE)
        if stage.name == "index":
            break
        state, _ = play(KEYS, 0, 1, state)
    found, _ = play(KEYS, 0, 2, state)
    expected = state.server.psi
    for count in steps:  # Adam begins anew in each round of a client, not of the server
        expected = adam_steps(expected, count)
    toys.close(*map(without_key_bias, (found.server.psi, expected)), rtol=2e-3, atol=2e-5)


def index_epochs(devices, **settings):
    """play(count) -> (state, sums) of the stage in which the server trains DSA-IGN."""
    collect, train, *_ = stages(**settings)
    state = collect.method.init(KEYS.init, C)
    state, _ = toys.player(collect.method, federation=EMBEDDED)(KEYS, 0, 1, state)
    strategy = toys.VECTORISED
    if devices > 1:
        strategy = parallel.on_mesh(parallel.make_mesh(devices), strategy)
    args = EMBEDDED, PEOPLE, KEYS, state, simulate.no_progress(), jnp.int32(0), jnp.int32(2)
    return jax.jit(functools.partial(simulate.play, train.method, toys.PLAN, strategy)), args


@pytest.mark.parametrize("devices, pooled", [(2, False), (5, False), (8, True)])
def test_devices_share_the_servers_training(devices, pooled):
    """The numbers are those of one device, dropout included, also where 128 rows do not divide."""
    play, args = index_epochs(devices, index_pooled=pooled)
    alone, _ = index_epochs(1, index_pooled=pooled)
    found, expected = (without_key_bias(run(*args)[0].server.psi) for run in (play, alone))
    toys.close(found, expected, rtol=2e-3, atol=2e-5)


def test_each_device_does_its_part_of_the_servers_training(monkeypatch):
    monkeypatch.setattr(dsa_ign, "HIDDEN", 256)
    flops = []
    for devices in (1, 8):
        play, args = index_epochs(devices)
        flops.append(play.lower(*args).compile().cost_analysis()["flops"])
    assert flops[1] < 0.2 * flops[0]


def test_dropout_is_on_while_dsa_ign_is_trained():
    found = [found_by(dropout, index="federated").psi for dropout in (0.1, 0.0)]
    assert tree.sq_norm(tree.sub(*found)) > 0


def test_batches_are_those_of_their_clients():
    server = found_by(index="global")
    for i, rows in enumerate(np.asarray(EMBEDDED.train)):
        rows = rows[rows >= 0]
        real = np.asarray(server.batches.mask[i]) == 1
        assert real.sum() == len(rows) and server.batches.y.shape == (C, 128)
        kept = np.asarray(server.batches.x[i])[real]
        expected = np.asarray(EMBEDDED.x)[rows]
        np.testing.assert_array_equal(np.sort(kept, 0), np.sort(expected, 0))


def test_a_tenth_of_the_clients_trains():
    people = jax.tree.map(lambda a: jnp.tile(a, 4)[:30] if a.ndim == 1 else a, PEOPLE)
    ids, shares = client_index.tenth(KEYS.cohort, None, people, 99)
    assert len(set(ids.tolist())) == 3
    np.testing.assert_allclose(shares, people.n[ids] / people.n[ids].sum(), rtol=1e-6)


def test_batches_are_reordered():
    """Whole batches, or example by example; nothing is lost."""
    x = jnp.arange(12.0).reshape(4, 3, 1)
    batches = Batch(x, jnp.arange(12).reshape(4, 3), jnp.ones((4, 3)))
    for pooled in (False, True):
        made = client_index.reordered(jax.random.key(1), batches, pooled)
        np.testing.assert_array_equal(made.x[..., 0], made.y)
        assert sorted(made.y.ravel().tolist()) == list(range(12))
        whole = [sorted(row) in np.arange(12).reshape(4, 3).tolist() for row in made.y.tolist()]
        assert all(whole) is not pooled
    assert made.y.tolist() != batches.y.tolist()


def test_settings_of_the_network_reach_it(monkeypatch):
    seen = []
    monkeypatch.setattr(client_index, "reordered", lambda k, b, pooled: seen.append(pooled) or b)
    settings = dict(index_pooled=True, index_positions=False, index_decoder="mlp")
    collect, train, *_ = stages(index="global", orth_normalize=True, **settings)
    state = jax.eval_shape(lambda: collect.method.init(KEYS.init, C))
    names = set(state.server.psi["params"])
    assert "hidden" in names and "positions" not in names
    jax.eval_shape(lambda server: train.method.round[0].alone(server, lambda a: a), state.server)
    assert seen == [True]


def test_naive_indices():
    """Table 2: the mean of D, and the means of each class side by side, 0 of absent ones."""
    average = found_by(index="feature_average").index.feature
    prototypes = np.asarray(found_by(index="class_prototypes").index.feature).reshape(C, K, E)
    y, x = np.asarray(EMBEDDED.y), np.asarray(EMBEDDED.x)
    absent = 0
    for i, rows in enumerate(np.asarray(EMBEDDED.train)):
        rows = rows[rows >= 0]
        np.testing.assert_allclose(average[i], x[rows].mean(0), rtol=1e-4, atol=1e-5)
        for c in range(K):
            mine = x[rows[y[rows] == c]]
            expected = mine.mean(0) if len(mine) else np.zeros(E)
            absent += not len(mine)
            np.testing.assert_allclose(prototypes[i, c], expected, rtol=1e-4, atol=1e-5)
    assert absent


# Whole runs.


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """300 examples of three classes, and embeddings of them of 32 numbers."""
    rng = np.random.default_rng(1)
    folder = tmp_path_factory.mktemp("data")
    toys.write_examples(folder / "data.npz")
    np.savez(folder / "embedded.npz", examples=rng.normal(size=(300, 32)), labels=np.eye(3, 32))
    return folder


def run_of(data, seeds=(0,), workdir=None, resume=False, **method):
    return runner.run(experiment_of(data, seeds, **method), workdir, resume, quiet=True)


def experiment_of(data, seeds=(0,), **method):
    config = {
        "data": {"name": "arrays", "path": str(data / "data.npz")},
        "partition": {"num_clients": 6},
        "model": {"name": "mlp", "width": 8},
        "embedding": {"name": "precomputed", "file": str(data / "embedded.npz")},
        "method": {"name": "client2vec", "index_epochs": 2, **method},
        "run": {"rounds": 3, "eval_every": 2, "cohort": 2},
    }
    return experiment.build(experiment.resolve(config), list(seeds))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dsa_ign, "HIDDEN", 16)
        patch.setattr(dsa_ign, "LAYERS", 1)
        workdir = tmp_path_factory.mktemp("run") / "workdir"
        return run_of(data, (0, 1), workdir)


def test_a_run_has_the_stages_of_its_index(whole, data):
    """Scored in training alone; the first weights are those of the base method."""
    rows = [row for row in whole.metrics if row["seed"] == 0]
    names = ["collect", "index", "index", "describe", "train", "train"]
    assert [row["stage"] for row in rows] == names
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 6, 7]
    assert ["global" in row for row in rows] == [False] * 4 + [True] * 2
    assert whole.summary["max_over_rounds"]["mean"]["global"] > 0
    e = experiment_of(data)
    count = np.asarray(simulate.population(e.simulation.federations[0], 3).label_count)
    label = whole.states[0].server.index.label
    np.testing.assert_allclose(
        label, count / count.sum(1, keepdims=True) @ np.eye(3, 32), atol=1e-6
    )
    first = e.simulation.stages[-1].start(
        jax.random.key(7),
        6,
        State(client_index.Server(KEYS.init, *(None,) * 4, ()), ()),
        {"feature": jnp.zeros((6, 32)), "label": jnp.zeros((6, 32))},
    )
    params = dict(first.server.base.params)
    params.pop("side")
    toys.same(params, e.task.init(KEYS.init).params)


def test_bytes_of_a_run(whole):
    """All clients send 128 pairs and get DSA-IGN; B^f goes to everybody once."""
    rows = [row for row in whole.metrics if row["seed"] == 0]
    psi = 4 * dsa_size(32, 16)
    pairs = 6 * 4 * (128 * 32 + 2 * 128)  # D, y and the mask
    assert (rows[0]["bytes_up"], rows[0]["bytes_down"]) == (pairs, 0)
    assert (rows[2]["bytes_up"], rows[2]["bytes_down"]) == (pairs, 0)
    index = 6 * 4 * 64
    assert (rows[3]["bytes_up"], rows[3]["bytes_down"]) == (pairs + index, 6 * psi)
    model = 4 * (5 * 8 + 8 + 8 * 3 + 3 + 8 * 32 + 32 * 3 + 3)
    assert rows[4]["bytes_up"] == pairs + index + 2 * 2 * model
    assert rows[4]["bytes_down"] == 6 * psi + 6 * (6 * 4 * 32) + 2 * 2 * model


def dsa_size(E, hidden):
    layer = 4 * (32 * 32 + 32) + 2 * 32 * hidden + hidden + 32 + 4 * 32
    return 2 * E + layer + 2 * E * E + E


def test_a_run_takes_the_index_of_another(whole, data):
    """Nothing but the training is run; the index is that of the same clients."""
    found = run_of(data, (1,), index_of=str(whole.workdir))
    assert {row["stage"] for row in found.metrics} == {"train"}
    toys.same(found.states[0].server.index, whole.states[1].server.index)
    text = complaint(run_of, data, (2,), index_of=str(whole.workdir))
    assert "holds an index of other clients" in text
    text = complaint(run_of, data, (1,), index_of=str(data))
    assert "holds no index; name a client2vec run" in text


def test_damaged_indices_are_told(tmp_path, data):
    (tmp_path / "stages").mkdir()
    file = tmp_path / "stages" / "train-0.npz"
    file.write_bytes(b"no zip")
    assert "cannot be read" in complaint(experiment_of, data, index_of=str(tmp_path))
    np.savez(file, member=np.eye(2))
    assert "holds no index" in complaint(experiment_of, data, index_of=str(tmp_path))


def test_an_index_taken_over_needs_no_embeddings(whole, data):
    """Its own size counts."""
    e = experiment_of(data, (1,), index_of=str(whole.workdir))
    task = e.task._replace(labels=lambda: pytest.fail("asked for"))
    stage = methods.make("client2vec", task, index_of=str(whole.workdir))(3)[-1]
    facts = stage.prepare(None, simulate.population(e.simulation.federations[0], 3), None)
    state = stage.start(KEYS.init, 6, None, facts)
    assert state.server.base.params["side"]["P"].shape == (8, 32)


@pytest.mark.parametrize("shots", [0, 3])
def test_rows_of_an_unseen_domain_are_embedded_where_clients_hold_some(shots):
    """Otherwise the source does not see them."""
    config = experiment.resolve(
        {
            "data": {"name": "digit_domains", "unseen": "street", "shots": shots},
            "embedding": {"size": 32},
        }
    )
    rng = np.random.default_rng(0)
    test = np.arange(40) % 4 == 0
    domains = ("handwritten", "street")
    x, domain = rng.integers(0, 256, (40, 8, 8, 3)).astype(np.uint8), np.arange(40) % 2
    known = Dataset(x, np.arange(40) % 10, domain, test, tuple("0123456789"), domains)
    made = experiment.load_embeddings(config, known).examples
    expected = ~test & (domain == 0) | (domain == 1) & (shots > 0)
    np.testing.assert_array_equal((made != 0).any(1), expected)


def test_a_finished_run_is_read_again(whole, data):
    again = run_of(data, (0, 1), whole.workdir, resume=True)
    toys.same(again.states[1].server.index, whole.states[1].server.index)
    assert again.summary == whole.summary


def test_local_weights_are_an_index_that_changes(data):
    """Heads of those who took part; B^f goes down with every model; no stage comes before."""
    run = run_of(data, index="local_weights")
    assert {row["stage"] for row in run.metrics} == {"train"}
    server = run.states[0].server
    assert server.index.feature.shape == (6, 8 * 3 + 3)
    seen = np.asarray(server.age) <= 3
    assert (np.abs(server.index.feature).sum(1) > 0).tolist() == seen.tolist()
    last = run.metrics[-1]
    assert last["bytes_down"] - last["bytes_up"] == 3 * 2 * 6 * 27 * 4


@pytest.mark.parametrize(
    "method, words",
    [
        ({"base": "fedavgg"}, "did you mean 'fedavg'"),
        ({"base": "fedconcat"}, "has stages of its own"),
        ({"base": "central"}, "has no rounds of several clients"),
        ({"base": "client2vec"}, "config.method.base cannot be 'client2vec'"),
        ({"base": "moon", "beta": 0.5}, "no setting 'beta'"),
        ({"base": "moon", "mu": "big"}, "config.method.mu must be of type float"),
        ({"index": "globall"}, "did you mean 'global'"),
        ({"index_part": "label"}, "needs local_training=False"),
        ({"index_epochs": 0}, "config.method.index_epochs must be above 0"),
        ({"history_gamma": 1.5}, "config.method.history_gamma must be from 0 to 1"),
        ({"index_decoder": "mpl"}, "did you mean 'mlp'"),
        ({"index": "local_weights", "base": "ifca"}, "index=local_weights does not go with ifca"),
        ({"index": "local_weights", "base": "fesem"}, "needs a base with one model for all"),
        ({"index": "local_weights", "base": "fedc2i"}, "needs a base with one model for all"),
        ({"index": "local_weights", "index_of": "runs/x"}, "does not go with runs/x"),
        ({"index_of": "runs/nothing"}, "index_of=runs/nothing holds no index"),
        ({"sampling_tau": 0.0}, "config.method.sampling_tau must be above 0"),
        ({"orth_reduction": "max"}, "config.method.orth_reduction cannot be 'max'"),
    ],
)
def test_bad_settings(data, method, words):
    assert words in complaint(experiment_of, data, **method)


def test_the_quickstart_finds_a_small_index():
    """So that the file keeps its promise of a minute; other methods and files keep the defaults."""
    quick = str(Path(__file__).parents[1] / "configs/quickstart.py")
    config = experiment.resolve(experiment.load_config(f"{quick}:client2vec"))
    assert config.method.index_epochs * config.embedding.size <= 20 * 64
    named = [("method.name", "client2vec")]
    assert experiment.resolve({}, named).method.index_epochs == 500
    plain = experiment.resolve(experiment.load_config(quick))
    assert plain.embedding.size == 512 and set(plain.method) == {"name"}


def test_settings_of_the_base_follow_its_name():
    """A change of base on the command line drops what only the old one knows."""
    config = {"method": {"name": "client2vec", "base": "moon", "mu": 0.1, "index_epochs": 3}}
    assert experiment.resolve(config).method.mu == 0.1
    changed = experiment.resolve(config, [("method.base", "fedavgm"), ("method.beta", "0.5")])
    assert changed.method.beta == 0.5 and changed.method.index_epochs == 3
    assert "mu" not in changed.method
    assert "beta" in complaint(experiment.resolve, config, [("method.beta", "0.5")])
    changed = experiment.resolve({}, [("method.name", "client2vec"), ("method.base", "fedprox")])
    assert changed.method.mu == 0.01


# The scripts.


def launch(monkeypatch, name, *arguments):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "launch"))
    monkeypatch.setattr("sys.argv", [f"{name}.py", *map(str, arguments)])
    return importlib.import_module(name)


def test_figures_and_times(whole, data, tmp_path, monkeypatch, capsys):
    """The run's index as a picture; clients alike by their main class; seconds by stage."""
    script = launch(monkeypatch, "client2vec_figures", "--out", tmp_path, whole.workdir)
    script.main()
    assert (tmp_path / "workdir-clients.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "workdir: cosine of client index, same main class" in printed
    rows = script.rows_of(whole.workdir)
    before = [row["seconds"] for row in rows if row["stage"] == "describe"][0]
    found = script.seconds(rows, metrics.headline(rows[-2]))
    np.testing.assert_allclose(found, (before, rows[-2]["seconds"] - before))


def test_likeness_of_groups(monkeypatch):
    script = launch(monkeypatch, "client2vec_figures")
    table = np.array([[1, 0.5, 0.1], [0.5, 1, 0.3], [0.1, 0.3, 1]])
    np.testing.assert_allclose(script.alike(table, np.array([0, 0, 1])), (0.5, 0.2))
    b = np.array([[3.0, 4.0], [0.0, 0.0], [4.0, -3.0]])
    np.testing.assert_allclose(script.cosines(b), [[1, 0, 0], [0, 0, 0], [0, 0, 1]], atol=1e-12)


def test_table_of_runs(tmp_path, monkeypatch, capsys):
    """Which runs a table is made of: the indices once, then each base with and without them."""
    arguments = "--config=C.py", f"--out={tmp_path}", "--bases=fedavg,moon"
    script = launch(monkeypatch, "client2vec_table", *arguments)
    calls = []

    def run(command, stdout):
        calls.append(command[3:])
        folder = next(Path(a.split("=")[1]) for a in command if a.startswith("--workdir"))
        folder.mkdir()
        seeds = {"0": {"accuracy": {"mean": 10.0 * len(calls)}}}
        (folder / "summary.json").write_text(json.dumps({"max_over_rounds": {"per_seed": seeds}}))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    script.main()
    assert len(calls) == 2 + 2 * 7
    assert [c[0] for c in calls[:3]] == ["--config=C.py:client2vec"] * 2 + ["--config=C.py:fedavg"]
    assert "--config.method.index_epochs=500" in calls[0]
    assert {"--config.method.aggregation=False", "--config.method.local_training=False"} < set(
        calls[3]
    )
    assert not any("=False" in argument for argument in calls[5])
    assert "--config.method.projection=mlp256" in calls[9]
    row = capsys.readouterr().out.splitlines()[-2]
    assert row == "| `fedavg` | 30.0 | 40.0 | 50.0 | 60.0 | 70.0 | 80.0 | **90.0** |"
