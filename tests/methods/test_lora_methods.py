"""The methods for low-rank adapters: what their servers compute, against NumPy in float64, and the
identities between them, by the package's numbers of formulas."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optional
import pytest
import rounds
import toys
from inputs import complaint
from naive import KEYS
from slow_cases import exhaustive_but

import fedjax_lab
from fedjax_lab import losses, optim, sampling, tree
from fedjax_lab.engine import counts
from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment, registry, transforming
from fedjax_lab.experiment.config import resolve
from fedjax_lab.methods import _factors as factors
from fedjax_lab.methods._factors import Pair, Server
from fedjax_lab.methods.ffa_lora import orthogonal
from fedjax_lab.methods.flexlora import best, singular
from fedjax_lab.models import adapters
from fedjax_lab.models.decoder import decoder
from fedjax_lab.models.task import make_task
from fedjax_lab.running import client_models
from fedjax_lab.simulation import simulate
from fedjax_lab.tasks import Labels
from fedjax_lab.tasks.tokens import tokens
from fedjax_lab.testing.toy import RANK, SCALE, adapted, as_rows, needs_adapters
from fedjax_lab.types import Client, Stage, Weights

TASK = adapted(toys.NORM)
BASE = toys.NORM.init(jax.random.key(0)).params["Dense_0"]["kernel"]  # which is frozen
OURS = [name for name in registry.METHODS if needs_adapters(name)]
PATH, LAYERS, D, F, R, M = "layer/kernel", 2, 12, 9, 3, 4  # of a model with a loop over two layers
PLAN = toys.PLAN._replace(cohort=1)
METHOD = {name: toys.make(name) for name in OURS}


@pytest.fixture
def in_float64():
    with jax.enable_x64(True):
        yield np.random.default_rng(0)


def weights(a, b, head):
    return Weights({"head": head, "layer": {"kernel_lora_a": a, "kernel_lora_b": b}}, {})


def uploads_of(rng, r=R, ranks=None):
    """Factors of M clients, as arrays and as uploads; the p of the clients, and the cohort."""
    a, b = rng.normal(size=(M, LAYERS, D, r)), rng.normal(size=(M, LAYERS, r, F))
    if ranks is not None:
        inside = np.arange(r) < np.array(ranks)[:, None]
        a, b = a * inside[:, None, None], b * inside[:, None, :, None]
    p = rng.dirichlet(np.ones(M))
    cohort = Client(
        *(jnp.arange(M), p * 100, jnp.asarray(p), None, (), None, None),
        arrived=jnp.ones(M, bool),
        key=jnp.broadcast_to(jax.random.key(1), M),
    )
    return a, b, p, weights(jnp.asarray(a), jnp.asarray(b), jnp.asarray(a[..., 0])), cohort


def server_of(rng):
    delta = rng.normal(size=(LAYERS, D, F))
    w = weights(*(jnp.zeros((LAYERS, *shape)) for shape in ((D, R), (R, F), (D,))))
    return delta, Server(w, {PATH: jnp.asarray(delta)})


def mean_product(p, a, b):
    return np.einsum("m,mldr,mlrf->ldf", p, a, b)


def relative(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


def aggregate(name, server, uploads, cohort, **settings):
    method = toys.make(name, **settings) if settings else METHOD[name]
    return method.round[0].aggregate(server, uploads, cohort)


@pytest.mark.parametrize("name", ["fedit", "ffa_lora", "rolora", "flexlora", "hetlora"])
def test_the_model_of_a_client_is_the_one_that_predicts(name):
    """So that its adapters can be exported; hetlora's have the client's rank."""
    method = toys.make(name, **({"ranks": (1, 2)} if name == "hetlora" else {}))
    state = method.init(jax.random.key(2), 2)
    ones = jax.tree.map(lambda a: a + 1 if a.dtype == jnp.float32 else a, state.server)
    message, private = method.round[0].send(ones, jnp.int32(0)), tree.take(state.private, 0)
    client = Client(jnp.int32(0), *(None,) * 3, private, None, None)
    x = jnp.ones((2, *TASK.input_shape))
    model = client_models.model_of(name, method, TASK, message, client)
    expected = method.predict(message, client, x)
    np.testing.assert_array_equal(TASK.apply(model, x).logits, expected)
    assert set(tree.names(model)) == set(tree.names(TASK.init(jax.random.key(0))))


@pytest.mark.parametrize("name", ["flora", "fedex_lora"])
def test_a_changed_base_is_more_than_adapters(name):
    state = METHOD[name].init(jax.random.key(2), 2)
    said = complaint(
        client_models.model_of, name, METHOD[name], TASK, state.server, Client(*(None,) * 7)
    )
    assert "is more than its adapters" in said


# What the server computes (identity 3).


def test_the_product_of_mean_factors_is_not_the_mean_product(in_float64):
    a, b, p, uploads, cohort = uploads_of(in_float64)
    w = aggregate("fedit", None, uploads, cohort)
    (pair,) = factors.pairs(w).values()
    np.testing.assert_allclose(pair.A, np.einsum("m,mldr->ldr", p, a), rtol=1e-14)
    np.testing.assert_allclose(pair.B, np.einsum("m,mlrf->lrf", p, b), rtol=1e-14)
    assert relative(pair.A @ pair.B, mean_product(p, a, b)) > 0.1


@pytest.mark.parametrize("name", ["flora", "fedex_lora"])
def test_flora_and_fedex_lora_add_the_mean_update_exactly(in_float64, name):
    a, b, p, uploads, cohort = uploads_of(in_float64)
    delta, server = server_of(in_float64)
    after = aggregate(name, server, uploads, cohort)
    (pair,) = factors.pairs(after.w).values()
    effective = after.delta[PATH] + SCALE * pair.A @ pair.B
    expected = delta + SCALE * mean_product(p, a, b)
    np.testing.assert_allclose(effective, expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(after.w.params["head"], np.einsum("m,mld->ld", p, a[..., 0]))
    if name == "flora":
        assert not np.any(pair.B) and 0.9 < np.abs(pair.A).max() * D**0.5 <= 1
        assert after.w.params["layer"]["kernel_lora_a"].dtype == np.float64
    else:
        np.testing.assert_allclose(pair.A, np.einsum("m,mldr->ldr", p, a), rtol=1e-14)
        rank = np.linalg.matrix_rank(after.delta[PATH] - delta, tol=1e-9)
        assert (rank <= (M + 1) * R).all()


@pytest.mark.slow
def test_a_residual_of_fedex_lora_can_be_cut_to_a_rank(in_float64):
    """Against NumPy's SVD of the whole residual; a rank of (M + 1) r cuts nothing."""
    _, _, _, uploads, cohort = uploads_of(in_float64)
    delta, server = server_of(in_float64)
    whole = aggregate("fedex_lora", server, uploads, cohort).delta[PATH] - delta
    u, sigma, vt = np.linalg.svd(whole)
    for rank in (2, (M + 1) * R):
        after = aggregate("fedex_lora", server, uploads, cohort, residual_rank=rank)
        kept = sigma * (np.arange(F) < rank)
        expected = np.einsum("ldk,lk,lkf->ldf", u[:, :, :F], kept, vt)
        np.testing.assert_allclose(after.delta[PATH] - delta, expected, atol=1e-12)


def test_a_weight_on_both_stacked_factors_would_be_wrong(in_float64):
    a, b, p, uploads, _ = uploads_of(in_float64)
    (pair,) = factors.pairs(uploads).values()
    both = factors.stacked(jnp.asarray(p), Pair(p[:, None, None, None] * pair.A, pair.B))
    right = factors.stacked(jnp.asarray(p), pair)
    assert right.A.shape == (LAYERS, D, M * R) and right.B.shape == (LAYERS, M * R, F)
    np.testing.assert_allclose(factors.product(right), mean_product(p, a, b), rtol=1e-12)
    assert relative(factors.product(both), mean_product(p, a, b)) > 0.1


def test_with_a_common_a_the_mean_of_b_is_exact(in_float64):
    """FFA-LoRA, and RoLoRA, whose clients have the same A in an even round, and B in an odd one."""
    a, b, p, uploads, cohort = uploads_of(in_float64)
    a = np.broadcast_to(a[0], a.shape)
    _, rest = tree.split(factors.is_a, uploads)
    w, key = aggregate("ffa_lora", ((), KEYS.init), rest, cohort)
    assert key is KEYS.init and not any(map(factors.is_a, tree.names(w)))
    got = SCALE * a[0] @ w.params["layer"]["kernel_lora_b"]
    np.testing.assert_allclose(got, SCALE * mean_product(p, a, b), rtol=1e-13, atol=1e-13)
    first = tree.take(uploads, 0)
    for t, frozen in ((4, "A"), (5, "B")):
        after, later = aggregate("rolora", (first, jnp.int32(t)), uploads, cohort)
        (pair,), (before,) = factors.pairs(after).values(), factors.pairs(first).values()
        assert later == t + 1
        np.testing.assert_array_equal(getattr(pair, frozen), getattr(before, frozen))
        other = "AB".replace(frozen, "")
        mean = np.einsum("m,m...->...", p, np.asarray(uploads.params["layer"][KEY_OF[other]]))
        np.testing.assert_allclose(getattr(pair, other), mean, rtol=1e-13)


KEY_OF = {"A": "kernel_lora_a", "B": "kernel_lora_b"}


@pytest.mark.slow
@pytest.mark.parametrize("split", ["b", "root"])
@pytest.mark.parametrize("r, ranks", [(M * 2, (2,) * M), (M * 2, (1, 2, 3, 8)), (3, None)])
def test_flexlora_is_the_truncated_svd_of_the_mean_update(in_float64, split, r, ranks):
    """It equals the mean where the ranks are at least the sum of the clients'."""
    a, b, p, uploads, cohort = uploads_of(in_float64, r, ranks)
    w = aggregate("flexlora", None, uploads, cohort, split=split)
    (pair,) = factors.pairs(w).values()
    full = mean_product(p, a, b)
    u, sigma, vt = np.linalg.svd(full, full_matrices=False)
    for rank in range(1, r + 1):  # that of a client, which gets the first columns and rows
        best = (u[..., :rank] * sigma[:, None, :rank]) @ vt[:, :rank]
        got = pair.A[..., :rank] @ pair.B[:, :rank]
        np.testing.assert_allclose(got, best, rtol=1e-9, atol=1e-11)
    if ranks == (2,) * M:
        assert relative(pair.A @ pair.B, full) < 1e-13
    grams = np.swapaxes(pair.A, -1, -2) @ pair.A, pair.B @ np.swapaxes(pair.B, -1, -2)
    diagonal = sigma[:, :r, None] * np.eye(r)
    squares = ([np.eye(r)] * LAYERS, diagonal**2) if split == "b" else (diagonal, diagonal)
    for gram, square in zip(grams, squares, strict=True):
        np.testing.assert_allclose(gram, square, atol=1e-9)


def test_the_signs_of_singular_vectors_are_fixed(in_float64):
    _, _, p, uploads, _ = uploads_of(in_float64)
    (pair,) = factors.pairs(uploads).values()
    stack = factors.stacked(jnp.asarray(p), pair)
    u, sigma, vt = singular(stack)
    assert u.shape == (LAYERS, D, F) and vt.shape == (LAYERS, F, F)
    largest = np.take_along_axis(np.asarray(u), np.abs(u).argmax(-2)[:, None], -2)
    assert (largest > 0).all()
    turned = singular(Pair(-stack.A[..., ::-1], -stack.B[:, ::-1]))  # the same product
    for one, other in zip((u, sigma, vt), turned, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


@pytest.mark.slow
def test_flexlora_takes_a_rank_above_the_size_of_the_kernel():
    pair = best(Pair(jnp.ones((2, 5)), jnp.ones((5, 4))), "b", rank=5)
    assert pair.A.shape == (2, 5) and pair.B.shape == (5, 4)
    np.testing.assert_allclose(pair.A @ pair.B, 5 * np.ones((2, 4)), rtol=1e-5)


def test_hetlora_weighs_clients_by_the_norm_of_their_update(in_float64):
    a, b, p, uploads, cohort = uploads_of(in_float64, ranks=(3, 1, 2, 3))
    ranks = jnp.ones(M, jnp.int32)
    w = aggregate("hetlora", None, (uploads, ranks), cohort)
    norm = np.linalg.norm(a @ b, axis=(-2, -1))  # [M, layers]
    q = norm / norm.sum(0)
    (pair,) = factors.pairs(w).values()
    np.testing.assert_allclose(pair.A, np.einsum("ml,mldr->ldr", q, a), rtol=1e-12)
    np.testing.assert_allclose(pair.B, np.einsum("ml,mlrf->lrf", q, b), rtol=1e-12)
    np.testing.assert_allclose(w.params["head"], np.einsum("m,mld->ld", p, a[..., 0]))
    untrained = factors.each(lambda pair: Pair(pair.A, 0 * pair.B), uploads)
    w = aggregate("hetlora", None, (untrained, ranks), cohort)
    (pair,) = factors.pairs(w).values()
    np.testing.assert_allclose(pair.A, np.einsum("m,mldr->ldr", p, a), rtol=1e-12)


# Rounds on the toy federation.


def played(method, count, plan=PLAN, **options):
    return toys.player(method, plan=plan, **options)(KEYS, 0, count)[0]


def effective(server):
    w, delta = server if isinstance(server, Server) else (server, {"Dense_0/kernel": 0})
    (pair,) = factors.pairs(w).values()
    return delta["Dense_0/kernel"] + SCALE * pair.A @ pair.B


@pytest.mark.slow
def test_the_toy_computes_l1_and_its_first_gradient_of_a_is_0():
    """Identities 1 and 5."""
    w, batch = TASK.init(KEYS.init), toys.example()
    full = toys.NORM.init(KEYS.init)
    full.params["Dense_0"]["kernel"] = BASE
    same = toys.NORM.apply(full, batch.x).logits
    np.testing.assert_array_equal(TASK.apply(w, batch.x).logits, same)
    gradient = jax.grad(lambda w: losses.risk(TASK)(w, batch)[0])(w)
    (pair,) = factors.pairs(gradient).values()
    assert not np.any(pair.A) and np.any(pair.B)
    w = toys.random_weights(w)
    (pair,) = factors.pairs(w).values()
    bare = {**w.params, "Dense_0": {"bias": w.params["Dense_0"]["bias"]}}
    bare["Dense_0"]["kernel"] = BASE + SCALE * pair.A @ pair.B
    expected = toys.NORM.apply(w._replace(params=bare), batch.x).logits
    toys.close(TASK.apply(w, batch.x).logits, expected)
    changed = TASK.adapters.changed({"Dense_0/kernel": SCALE * pair.A @ pair.B})
    none = factors.each(lambda pair: Pair(pair.A, 0 * pair.B), w)
    toys.close(changed.apply(none, batch.x).logits, expected)


@pytest.mark.slow
def test_with_one_client_fedit_flora_and_fedex_lora_have_the_same_model():
    """Identity 4; the residual of FedEx-LoRA is then 0."""
    each = {name: played(METHOD[name], 1).server for name in ("fedit", "flora", "fedex_lora")}
    expected = effective(each["fedit"])
    assert np.abs(expected).max() > 1e-3
    for name in ("flora", "fedex_lora"):
        np.testing.assert_allclose(effective(each[name]), expected, rtol=1e-4, atol=1e-6)
        toys.close(each[name].w.params["head"], each["fedit"].params["head"])
    assert np.abs(each["fedex_lora"].delta["Dense_0/kernel"]).max() < 1e-6
    assert np.abs(each["flora"].delta["Dense_0/kernel"]).max() > 1e-3


@pytest.mark.slow
def test_rounds_of_rolora_take_turns():
    play = toys.player(METHOD["rolora"])
    states = [METHOD["rolora"].init(KEYS.init, toys.C)]
    for t in range(3):
        states.append(play(KEYS, t, 1, states[-1])[0])
    pairs = [factors.pairs(state.server[0])["Dense_0/kernel"] for state in states]
    for t, (before, after) in enumerate(zip(pairs[:-1], pairs[1:], strict=True)):
        same = [np.array_equal(x, y) for x, y in zip(before, after, strict=True)]
        assert same == ([True, False] if t % 2 == 0 else [False, True])
        heads = (states[i].server[0].params["head"]["kernel"] for i in (t, t + 1))
        assert not np.array_equal(*heads)


def test_the_clients_of_ffa_lora_draw_a_and_train_b():
    method = METHOD["ffa_lora"]
    server = method.init(KEYS.init, toys.C).server
    upload, _ = rounds.one_client(method.round[0].local, server, 0)
    assert tree.names(upload) == tree.names(server[0])
    assert np.any(upload.params["Dense_0"]["kernel_lora_b"])
    message = toys.random_weights(server[0]), server[1]
    others = method, toys.make("ffa_lora", a_init="orthogonal")
    logits = [each.predict(message, None, toys.example().x) for each in others]
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
    q = orthogonal(Pair(toys.normal(0, LAYERS, D, R), None)).A
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, [np.eye(R)] * LAYERS, atol=1e-6)


@pytest.mark.slow
def test_fedsa_lora_with_one_client_is_local_training():
    """Identity 7. B is never in a message."""
    federation = toys.FEDERATION
    one = {name: as_rows(np.asarray(getattr(federation, name))[:1]) for name in ("train", "test")}
    federation = federation._replace(**one)
    ours, local = METHOD["fedsa_lora"], registry.make_method("local", TASK)
    states = [
        toys.player(method, plan=PLAN, federation=federation)(
            KEYS, 0, 2, simulate.init(method, KEYS, 1)
        )[0]
        for method in (ours, local)
    ]
    whole = tree.join(states[0].server, tree.take(states[0].private, 0))
    toys.close(whole, tree.take(states[1].private, 0))
    assert tree.names(states[0].server) == ["params/Dense_0/kernel_lora_a"]
    assert toys.bytes_of(ours) == (4 * toys.D * RANK,) * 2


ADAM = toys.PLAN._replace(optimizer=optim.adamw(0.02, weight_decay=0.1), epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hetlora", "flora", "flexlora"])
def test_entries_beyond_the_rank_of_a_client_stay_0(name):
    """Identity 6, with AdamW and decay; the other entries are trained."""
    method = toys.make(name, ranks=(2, 1))
    state = method.init(KEYS.init, toys.C)
    w = toys.random_weights(TASK.init(KEYS.init))
    server = state.server._replace(w=w) if name == "flora" else w
    local = method.round[0].local
    for id, rank in ((4, 2), (5, 1)):
        private = state.private[id] if name == "hetlora" else ()
        message = method.round[0].send(server, id)
        upload, _ = rounds.one_client(local, message, id, private, plan=ADAM)
        w = upload[0] if name == "hetlora" else upload
        (pair,) = factors.pairs(w).values()
        assert not np.any(pair.A[:, rank:]) and not np.any(pair.B[rank:])
        assert np.all(pair.A[:, :rank]) and np.all(pair.B[:rank])
        read = message.w if name == "flora" else message
        sent = factors.pairs(factors.truncated(read, rank))["Dense_0/kernel"]
        assert np.all(sent.A[:, :rank] != pair.A[:, :rank])
        exchange = method.round[0]
        if exchange.updates is not None:
            of = exchange.updates(message, id, upload)
            of = of[0] if name == "hetlora" else of
            (reference,) = factors.pairs(of).values()
            toys.same(reference, sent)


@pytest.mark.slow
def test_hetlora_with_equal_ranks_and_weights_by_size_is_fedit():
    plan = toys.PLAN
    ours = played(toys.make("hetlora", weights="size"), 2, plan).server
    toys.close(ours, played(METHOD["fedit"], 2, plan).server)


@pytest.mark.slow
def test_hetlora_prunes_the_ranks_of_clients_whose_tail_has_shrunk():
    message = toys.random_weights(TASK.init(KEYS.init))
    ranks = {}
    for lam in (0.0, 3.0):
        method = toys.make("hetlora", lam=lam, gamma=0.6)
        local = method.round[0].local
        kept = [rounds.one_client(local, message, 0, jnp.int32(r))[1] for r in (3, 2, 1)]
        ranks[lam] = [int(r) for r in kept]
    assert ranks == {0.0: [3, 2, 1], 3.0: [1, 1, 1]}
    first = toys.make("hetlora", ranks=(3, 1)).init(KEYS.init, 5).private
    assert first.tolist() == [3, 1, 3, 1, 3] and first.dtype == jnp.int32


@pytest.mark.parametrize("name", ["hetlora", "flora", "flexlora"])
def test_bytes_are_those_of_the_ranks_of_clients(name):
    """Of 8 clients with ranks 2, 1, 3, 2, ... in turn."""
    d, f = BASE.shape
    method = toys.make(name, ranks=(2, 1, 3))
    lacking = np.array([1, 2, 0, 1, 2, 0, 1, 2])
    expected = 4 * (d + f) * lacking.mean()
    np.testing.assert_array_equal(
        counts.absent_bytes(method, [toys.FEDERATION]), [[expected, expected]]
    )
    assert not counts.absent_bytes(toys.make(name), [toys.FEDERATION]).any()
    up, _ = toys.bytes_of(method)  # of rank 3
    others = tree.num_bytes(TASK.init(KEYS.init)) - 4 * RANK * (d + f)
    assert up == 4 * RANK * (d + f) + others + 4 * (name == "hetlora")


NAMES = {"compression": "qsgd", "downlink": "qsgd", "attack": "sign_flip"}


def test_codes_are_counted_whole(tmp_path):
    """Those of a compressed update do not depend on the part that a client trains."""
    stage = Stage("train", toys.make("flexlora", ranks=(2, 1)), 1)
    for section in ("compression", "downlink", "attack"):
        given = resolve(toys.config(tmp_path, **{section: {"name": NAMES[section]}}))
        method = transforming.as_configured(stage, TASK, given, None).method
        assert (method.extra.absent is None) == (section != "attack")


def test_fedex_lora_averages_uniformly_if_asked():
    uniform, by_size = (toys.make("fedex_lora", uniform=u).sample for u in (True, False))
    assert uniform is sampling.equal and by_size is sampling.by_size


# Bad input, and models with adapters by qwix.


@pytest.mark.parametrize("name", OURS)
def test_a_model_without_adapters_is_refused_in_one_line(name):
    error = complaint(registry.make_method, name, toys.NORM)
    assert "--config.adapter.name=lora" in error and "\n" not in error


@pytest.mark.parametrize(
    "name, settings, words",
    [
        ("flora", {"ranks": (4, 1)}, "from 1 to config.adapter.rank=3, got (4, 1)"),
        ("flexlora", {"ranks": (2, 0)}, "config.method.ranks must be whole numbers"),
        ("hetlora", {"ranks": (1.5,)}, "config.method.ranks must be whole numbers"),
        ("hetlora", {"weights": "nrom"}, "did you mean 'norm'"),
        ("hetlora", {"gamma": 1.0}, "config.method.gamma must be at least 0 and below 1"),
        ("flexlora", {"split": "a"}, "config.method.split cannot be 'a'"),
        ("ffa_lora", {"a_init": "orthogonl"}, "did you mean 'orthogonal'"),
    ],
)
def test_bad_settings_are_refused(name, settings, words):
    assert words in complaint(toys.make, name, **settings)


def config(name, bits=32, **settings):
    return {
        "data": {"name": "synthetic", "num_users": 7, "seed": 1},
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"name": "mlp"},
        "adapter": {"name": "lora", "targets": "Dense_0", "rank": 3, "bits": bits},
        "method": {"name": name, **settings},
        "local": {"lr": 0.02, "batch_size": 16},
        "run": {"rounds": 2, "eval_every": 2, "cohort": 5},
    }


QWIX = [
    ("fedit", {}), ("ffa_lora", {}), ("fedsa_lora", {}), ("rolora", {}), ("fedex_lora", {}),
    ("flora", {"ranks": (3, 1)}), ("flexlora", {"ranks": (3, 1)}), ("hetlora", {"ranks": (3, 1)}),
]  # fmt: skip


@pytest.mark.parametrize("name, settings", exhaustive_but(["flora", "ffa_lora"], QWIX))
def test_a_run_with_adapters_by_qwix(name, settings):
    optional.module("qwix")
    result = fedjax_lab.run(config(name, **settings), quiet=True)
    losses_of = [row["loss"]["mean"] for row in result.rows if "loss" in row]
    assert np.isfinite(losses_of).all()
    a, b, head = 4 * 60 * 3, 4 * 3 * 64, 4 * (64 * 10 + 10)
    up = {"ffa_lora": b + head, "fedsa_lora": a, "hetlora": a + b + head + 4}
    absent = 3 / 7 * 2 / 3 * (a + b) if settings else 0  # 3 of the 7 clients have rank 1
    assert result.rows[-1]["bytes_up"] == int(2 * 5 * (up.get(name, a + b + head) - absent))


@pytest.mark.slow
def test_flora_adds_the_updates_of_a_loop_over_layers_to_the_base():
    """A decoder with the factors of one client, and with their product added to its base."""
    optional.module("qwix")
    objective = tokens(Labels(np.arange(14, dtype=np.int32).reshape(2, 7) % 5, tuple("abcde")))

    def make(net, pretrained):
        return make_task(net, (7,), objective, pretrained_file=pretrained)

    net = decoder(5, width=16, heads=2)
    model = adapters.apply(adapters.lora(objective, rank=4), net, "", make)
    task, x = model.bind(model.load()), jnp.ones((2, 7))
    method = registry.make_method("flora", task)
    server = method.init(KEYS.init, 1).server
    shapes = {path: delta.shape for path, delta in server.delta.items()}
    assert shapes == {"blocks/q/kernel": (2, 16, 16), "blocks/v/kernel": (2, 16, 16)}
    w = toys.random_weights(server.w)
    cohort = tree.take(toys.POPULATION, jnp.array([0]))._replace(weight=jnp.ones(1))
    cohort = cohort._replace(key=jax.random.split(KEYS.init, 1))
    uploads = jax.tree.map(lambda a: a[None], w)
    after = method.round[0].aggregate(server, uploads, cohort)
    got = method.predict(after, None, x)
    toys.close(got, task.apply(w, x).logits, rtol=1e-4, atol=1e-5)
    assert np.abs(got - task.apply(server.w, x).logits).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flora", "fedex_lora"])
def test_the_changed_base_has_no_axis_of_clients(name):
    optional.module("qwix")
    job = experiment.build(resolve(config(name)))
    (programs,) = Engine(job.simulation).lower().values()
    text = programs.play.as_text()
    assert "tensor<60x64xf32>" in text
    assert not re.search("tensor<(5|3)x60x64xf32>", text)  # all clients, or those of a device
    error = complaint(lambda: experiment.build(resolve(config(name, bits=8))))
    assert "config.adapter.bits=8" in error and "quantized" in error and "\n" not in error
