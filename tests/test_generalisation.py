"""hFedF, pFedHN, FedSR and FedGMA; clients that take turns."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from inputs import complaint

from fedjax_lab import experiment, losses, optim, parallel, runner, simulate, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import embeddings
from fedjax_lab.methods.embeddings import fit
from fedjax_lab.methods.fedsr import divergence, length
from fedjax_lab.methods.hfedf import Trained, alignment
from fedjax_lab.models import nets
from fedjax_lab.models.autoencoder import Autoencoder
from fedjax_lab.models.hypernetwork import embedding_size, first_weights, generate, inner_products
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Batch, Exchange, State, Weights

KEY = jax.random.key(3)
PARAMS = toys.TASK.init(KEY).params
leaky = functools.partial(jax.nn.leaky_relu, negative_slope=0.01)
EVERYONE = naive.FULL._replace(cohort=toys.C)


def small(width=5, inputs=2):
    return first_weights(KEY, PARAMS, inputs, width)


def clients(M=4, inputs=2):
    """Embeddings and pseudo-gradients."""
    nu = jax.random.normal(jax.random.fold_in(KEY, 1), (M, inputs))
    leaves, shape = jax.tree.flatten(PARAMS)
    keys = jax.random.split(jax.random.fold_in(KEY, 2), len(leaves))
    delta = [jax.random.normal(k, (M, *a.shape)) for k, a in zip(keys, leaves, strict=True)]
    return nu, jax.tree.unflatten(shape, delta)


# The hypernetwork.


def test_a_hypernetwork_has_51_numbers_for_each_of_the_clients():
    theta = jax.eval_shape(lambda: first_weights(KEY, PARAMS, 1, 50))
    P = sum(a.size for a in jax.tree.leaves(PARAMS))
    assert sum(a.size for a in jax.tree.leaves(theta)) == 7_750 + 51 * P
    assert [embedding_size(n) for n in (3, 4, 7, 8, 20)] == [1, 2, 2, 3, 6]


def test_models_are_generated_as_in_numpy():
    theta, (nu, _) = small(), clients()
    phi = generate(theta, nu[1], leaky)
    f = np.asarray(nu[1])
    for k, (A, a) in enumerate(theta.layers):
        f = np.where(f > 0, f, 0.01 * f) if k else f
        f = f @ np.asarray(A) + np.asarray(a)
    W, b = theta.kernel["head"]["kernel"], theta.bias["head"]["kernel"]
    expected = np.einsum("w,wdc->dc", f, W) + b
    np.testing.assert_allclose(phi["head"]["kernel"], expected, rtol=1e-4, atol=1e-5)
    bound = 1 / np.sqrt(5)
    assert np.abs(W).max() <= bound and np.abs(W).max() > 0.9 * bound


def test_the_chain_rule_is_the_papers_block_form():
    """Section 5.2, step 5, in NumPy against automatic differentiation."""
    theta, (nu, delta) = small(), clients()
    d = jax.tree.map(lambda a: np.asarray(a[0], float), delta)
    _, pull = jax.vjp(lambda theta, nu: generate(theta, nu, leaky), theta, nu[0])
    found, by_nu = pull(tree.take(delta, 0))
    s, f = [], [np.asarray(nu[0], float)]
    for k, (A, a) in enumerate(theta.layers):
        s.append(f[-1] @ np.asarray(A, float) + np.asarray(a, float))
        f.append(np.where(s[-1] > 0, s[-1], 0.01 * s[-1]) if k < 3 else s[-1])
    heads = jax.tree.map(
        lambda W, d: np.tensordot(np.asarray(W, float), d, d.ndim), theta.kernel, d
    )
    r = sum(jax.tree.leaves(heads))
    jax.tree.map(
        lambda g, d: np.testing.assert_allclose(
            g, np.multiply.outer(f[-1], d), rtol=1e-3, atol=1e-4
        ),
        found.kernel,
        d,
    )
    toys.close(found.bias, d, rtol=1e-5)
    for k in (3, 2, 1, 0):
        np.testing.assert_allclose(found.layers[k][0], np.outer(f[k], r), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found.layers[k][1], r, rtol=1e-3, atol=1e-4)
        r = np.asarray(theta.layers[k][0], float) @ r
        r = r * np.where(s[k - 1] > 0, 1, 0.01) if k else r
    np.testing.assert_allclose(by_nu, r, rtol=1e-3, atol=1e-4)


def gradients(theta, nu, delta, with_nu=True):
    """The g_i, formed one by one and flattened: [M, all]."""
    rows = []
    for i in range(len(nu)):
        _, pull = jax.vjp(lambda t, n: generate(t, n[i], leaky), theta, nu)  # noqa: B023
        by_theta, by_nu = pull(tree.take(delta, i))
        parts = [by_theta, by_nu] if with_nu else [by_theta]
        rows.append(np.concatenate([np.ravel(a) for a in jax.tree.leaves(parts)]))
    return np.array(rows, float)


@pytest.mark.parametrize("with_nu", [True, False])
def test_inner_products_equal_those_of_the_gradients(with_nu):
    theta, (nu, delta) = small(), clients()
    g = gradients(theta, nu, delta, with_nu)
    found = np.asarray(inner_products(theta, nu, delta, leaky, with_nu))
    np.testing.assert_allclose(found, g @ g.T, rtol=1e-4, atol=1e-3)
    mean = g.mean(0)
    cosine = g @ mean / (np.linalg.norm(g, axis=1) * np.linalg.norm(mean))
    np.testing.assert_allclose(alignment(jnp.asarray(found)), cosine, atol=1e-5)


def test_the_closer_to_the_mean_the_larger_the_weight():
    def weights(g):
        return np.asarray(jax.nn.softmax(alignment(jnp.asarray(g @ g.T))))

    np.testing.assert_allclose(weights(np.ones((3, 4))), 1 / 3, rtol=1e-6)
    one = np.array([[1.0, 0.2], [1.0, 0.2], [-1.0, -0.2]])
    found = weights(one)
    assert found.argmin() == 2 and found.sum() == pytest.approx(1, rel=1e-6)
    low, high = np.exp(-1) / (2 * np.e + np.exp(-1)), np.e / (np.e + 2 * np.exp(-1))
    assert low - 1e-6 <= found.min() and found.max() <= high + 1e-6
    np.testing.assert_allclose(weights(np.zeros((3, 4))), 1 / 3)
    opposite = np.array([[1.0, 2.0], [-1.0, -2.0 + 1e-6]], np.float32)
    assert np.abs(alignment(jnp.asarray(opposite @ opposite.T))).max() <= 1
    assert weights(np.ones((1, 4))) == 1


# hFedF.


def hfedf(task=toys.TASK, **hyper):
    return toys.make("hfedf", task, **hyper)


def first(method):
    return simulate.init(method, naive.KEYS, toys.C)


def one_round(method, state, t=0, plan=naive.FULL):
    return toys.player(method, plan=plan)(naive.KEYS, t, 1, state)[0]


def pseudo_gradients(method, state, ids):
    """delta_i = phi_i - phi~_i of these clients, by NumPy, as trees [M, ...]."""
    out = []
    for i in ids:
        w = naive.weights_of(method.round[0].send(state.server, i))
        a, b, c, d = naive.sub(w, naive.sgd(w, *naive.data_of(i)))
        out.append({"Dense_0": {"kernel": a, "bias": b}, "head": {"kernel": c, "bias": d}})
    return jax.tree.map(lambda *a: np.stack(a), *out)


def adam_step(g, x, m, v, count, lr, decay):
    g = g + decay * x
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = lr * (m / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)
    return x - step, m, v


def flat(x):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(x)]).astype(float)


@pytest.mark.parametrize("grad_align", [True, False])
def test_two_rounds_against_numpy(grad_align):
    """Chain rule, GradAlign and Adam with its decay in the gradient; three of eight clients."""
    lr, decay = 0.01, 0.1
    method = hfedf(server_lr=lr, server_decay=decay, grad_align=grad_align, ema=1.0)
    state = first(method)
    m = v = 0.0
    for t in range(2):
        ids = naive.cohort(method, t)
        delta = pseudo_gradients(method, state, ids)
        rows, x = [], state.server.x
        for j, i in enumerate(ids):
            _, pull = jax.vjp(lambda x: generate(x.theta, x.nu[i], leaky), x)  # noqa: B023
            rows.append(flat(pull(tree.take(delta, j))[0]))
        g = np.array(rows)
        mean = g.mean(0)
        cosine = g @ mean / (np.linalg.norm(g, axis=1) * np.linalg.norm(mean))
        weight = np.exp(cosine) / np.exp(cosine).sum() if grad_align else np.full(3, 1 / 3)
        expected, m, v = adam_step(weight @ g, flat(x), m, v, t + 1, lr, decay)
        state = one_round(method, state, t)
        far = np.abs(flat(state.server.x) - expected)
        assert np.quantile(far, 0.999) < 2e-4 and far.max() < 2 * lr
        np.testing.assert_allclose(state.server.weight[jnp.array(ids)], weight, atol=1e-4)
        assert float(state.server.weight.sum()) == pytest.approx(1, rel=1e-5)


def test_the_server_steps_downhill():
    """delta = phi - phi~: the clients' losses fall; with the printed sign they would rise."""
    method = hfedf(server_lr=1e-4, server_decay=0.0)
    state = first(method)

    def loss(state):
        values = []
        for i in range(toys.C):
            x, y = naive.data_of(i)
            values.append(naive.gradient(naive.weights_of(method.scored(state.server, i)), x, y)[0])
        return np.array(values)

    after = one_round(method, state, plan=EVERYONE)
    assert (loss(after) < loss(state)).all()


def test_the_average_shortens_the_step():
    """After the warm-up x_new - x_old is ema times Adam's step (section 5.6)."""
    whole, part = (hfedf(ema=ema, ema_warmup=1, server_lr=0.01) for ema in (1.0, 0.25))
    state = first(whole)
    for t in range(2):
        pair = (one_round(method, state, t).server.x for method in (whole, part))
        toys.close(*pair, rtol=1e-6, atol=1e-7)
        state = one_round(whole, state, t)
    old, long, short = (
        flat(s.server.x) for s in (state, one_round(whole, state, 2), one_round(part, state, 2))
    )
    np.testing.assert_allclose(short - old, 0.25 * (long - old), rtol=1e-3, atol=1e-6)
    assert np.abs(long - old).max() > 1e-3


def test_a_shadow_average_is_scored_and_leaves_training_alone():
    plain = hfedf(ema=1.0, server_lr=0.01)
    shadow = hfedf(ema=0.3, ema_warmup=0, ema_mode="shadow", server_lr=0.01)
    a, b = first(plain), first(shadow)
    average = flat(b.server.x)
    for t in range(3):
        a, b = one_round(plain, a, t), one_round(shadow, b, t)
        toys.close(a.server.x, b.server.x, rtol=1e-6, atol=1e-7)
        average = flat(b.server.x) if t == 0 else 0.3 * flat(b.server.x) + 0.7 * average
    np.testing.assert_allclose(flat(b.server.average), average, rtol=1e-4, atol=1e-6)
    x = b.server.average
    toys.same(shadow.scored(b.server, 2).params, generate(x.theta, x.nu[2], leaky))
    toys.same(plain.scored(a.server, 2).params, generate(a.server.x.theta, a.server.x.nu[2], leaky))


@pytest.mark.parametrize("lazy", [False, True])
def test_embeddings_of_the_absent_rest_if_lazy(lazy):
    """Without a gradient dense Adam moves them by old momentum."""
    method = hfedf(nu_lazy=lazy, server_lr=0.01)
    state = one_round(method, first(method), 0, EVERYONE)  # moments build up
    after = one_round(method, state, 1)
    absent = [i for i in range(toys.C) if i not in naive.cohort(method, 1)]
    moved = np.abs(np.asarray(after.server.x.nu - state.server.x.nu))[absent].max()
    assert (moved == 0) == lazy
    here = np.abs(np.asarray(after.server.x.nu - state.server.x.nu))[naive.cohort(method, 1)]
    assert here.max() > 0


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_decay_reaches_the_embeddings_of_the_absent_unless_lazy(decay, lazy):
    """Adam's first step on a gradient of decay times nu alone is lr towards the origin."""
    lr = 0.01
    method = hfedf(nu_lazy=lazy, server_lr=lr, server_decay=decay)
    state = first(method)
    after = one_round(method, state)
    here = naive.cohort(method, 0)
    absent = [i for i in range(toys.C) if i not in here]
    old, new = (np.asarray(s.server.x.nu) for s in (state, after))
    if decay == 0 or lazy:
        np.testing.assert_array_equal(new[absent], old[absent])
    else:
        expected = old[absent] - lr * np.sign(old[absent])
        np.testing.assert_allclose(new[absent], expected, rtol=1e-4, atol=1e-5)
    assert (new[here] != old[here]).any(1).all()


@pytest.mark.parametrize("align_nu", [True, False])
def test_cosines_are_with_the_embeddings_or_without(align_nu):
    """Layers of larger weights, so that the gradients of nu are not small beside the others."""
    method = hfedf(align_nu=align_nu)
    server = first(method).server
    server = server._replace(x=server.x._replace(theta=tree.scale(3.0, server.x.theta)))
    nu, delta = clients(toys.C, server.x.nu.shape[1])
    server = server._replace(x=server.x._replace(nu=nu))

    def weights(with_nu):
        g = gradients(server.x.theta, nu, delta, with_nu)
        mean = g.mean(0)
        cosine = g @ mean / (np.linalg.norm(g, axis=1) * np.linalg.norm(mean))
        return np.exp(cosine) / np.exp(cosine).sum()

    found = jax.jit(method.round[0].aggregate)(server, Weights(delta, {}), toys.PEOPLE).weight
    np.testing.assert_allclose(found, weights(align_nu), rtol=1e-4)
    assert np.abs(weights(True) / weights(False) - 1).max() > 1e-3


def test_random_embeddings_are_drawn_anew_and_never_trained():
    method = hfedf(embedding="random", server_lr=0.01)
    state = first(method)
    seen = [state.server.x.nu]
    for t in range(3):
        state = one_round(method, state, t)
        seen.append(state.server.x.nu)
    stacked = np.array(seen)
    assert len(np.unique(stacked)) == stacked.size
    assert 0.4 < stacked.std() < 1.6
    for moments in jax.tree.leaves(state.server.moments):
        assert moments.shape != state.server.x.nu.shape or not np.any(moments)


def test_heads_may_begin_with_a_client_model():
    """A tenth of the hypernetwork's own start on top of PyTorch's for the client."""
    plain, method = hfedf(), hfedf(start="client")
    w = toys.TASK.init(naive.KEYS.init).params
    server = first(method).server
    toys.same(server.x.theta.bias, w)
    toys.close(
        tree.scale(0.1, first(plain).server.x.theta.kernel), server.x.theta.kernel, rtol=1e-6
    )
    phi = method.round[0].send(server, 0).params
    assert np.abs(flat(phi) - flat(w)).max() < 0.2


def test_without_a_trunk_and_with_a_plain_step_it_is_fedavg(monkeypatch):
    """phi_i = b for all; b - mean delta is the uniform mean of the clients' models."""
    monkeypatch.setattr(optim, "adam", lambda lr, decay: optax.sgd(1.0))
    method = hfedf(grad_align=False, ema=1.0, start="client")
    state = first(method)
    flat_theta = state.server.x.theta._replace(kernel=tree.zeros(state.server.x.theta.kernel))
    state = state._replace(server=state.server._replace(x=Trained(flat_theta, state.server.x.nu)))
    after = one_round(method, state)
    ids = naive.cohort(method, 0)
    w = naive.first_weights()
    expected = naive.mean(np.full(3, 1 / 3), [naive.sgd(w, *naive.data_of(i)) for i in ids])
    naive.close(Weights(after.server.x.theta.bias, {}), expected)


def test_running_statistics_travel_along():
    method = hfedf(toys.NORM)
    state = one_round(method, first(method), plan=toys.PLAN)
    assert tree.names(state.server.stats) == tree.names(toys.NORM.init(KEY).stats)
    assert float(tree.sq_norm(tree.sub(state.server.stats, first(method).server.stats))) > 0
    message, _ = method.newcomer(state)
    x = state.server.x
    toys.close(message.params, generate(x.theta, x.nu.mean(0), leaky), rtol=1e-5)


def test_the_record_is_of_weights_and_embeddings():
    method = hfedf()
    state = one_round(method, first(method))
    shown = method.record(state)
    assert shown["weight"].shape == (toys.C,) and shown["embedding"].shape == (toys.C, 3)


def test_a_gradient_may_be_clipped():
    """Momentum after one round is a tenth of the gradient: of norm at most 0.1 clip."""
    method = hfedf(clip=0.01, server_decay=0.0)
    state = one_round(method, first(method))
    (mu,) = [s.mu for s in state.server.moments if hasattr(s, "mu")]
    assert np.linalg.norm(flat(mu)) == pytest.approx(0.001, rel=1e-3)


def test_memory_grows_slowly_with_the_clients():
    """N = 20 takes less than 2.5 times the memory of N = 3: no gradients of theta per client."""
    task = make_task(nets.mlp(toys.K, width=512), (toys.D,), toys.K)

    def memory(count):
        rows = jnp.tile(toys.FEDERATION.train, (3, 1))[:count]
        federation = toys.FEDERATION._replace(train=rows)
        people = simulate.population(federation, toys.K)
        method = hfedf(task)
        state = jax.eval_shape(lambda: simulate.init(method, naive.KEYS, count))
        plan = toys.PLAN._replace(cohort=count)

        def play(state):
            return simulate.play_round(
                method, plan, toys.VECTORISED, federation, people, naive.KEYS, state, 0
            )

        found = jax.jit(play).lower(state).compile().memory_analysis()
        return found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes

    assert memory(20) < 2.5 * memory(3)


@pytest.mark.parametrize(
    "hyper, message",
    [
        ({"ema": 1.5}, "config.method.ema must be from 0 to 1"),
        ({"ema_mode": "feedbak"}, "did you mean 'feedback'"),
        ({"embedding": "randm"}, "did you mean 'random'"),
        ({"start": "torsh"}, "did you mean 'torch'"),
    ],
)
def test_bad_settings_are_named(hyper, message):
    with pytest.raises(BadInput, match=message):
        hfedf(**hyper)


# Clients that take turns, and pFedHN.


def test_the_server_listens_before_it_speaks_again():
    """Each client is sent how many came before; the order is that of the sample."""
    plain = toys.make("fedavg", toys.TASK)

    def local(heard, client, work):
        return (heard, client.id), ()

    def aggregate(server, uploads, cohort):
        heard, ids = uploads
        assert heard.shape == ids.shape == cohort.n.shape == (1,)
        count, order = server
        return count + 1, order.at[heard[0]].set(ids[0])

    exchange = Exchange(lambda server, id: server[0], local, aggregate, one_by_one=True)
    method = plain._replace(round=(exchange,))
    start = State((jnp.int32(0), jnp.full(6, -1)), ())
    state, _ = toys.player(method)(naive.KEYS, 0, 1, start)
    people = simulate.population(toys.FEDERATION, toys.K)
    ids, _ = method.sample(jax.random.fold_in(naive.KEYS.cohort, 0), None, people, 5)
    assert state.server[1].tolist() == [*ids.tolist(), -1]


def test_pfedhn_passes_against_numpy():
    """Client after client: each from the freshest theta, momentum and decay on everything."""
    lr, decay, momentum, clip = 0.02, 0.01, 0.9, 0.5
    method = toys.make(
        "pfedhn",
        toys.TASK,
        server_lr=lr,
        server_decay=decay,
        server_momentum=momentum,
        clip=clip,
    )
    state = first(method)
    x, _ = jax.flatten_util.ravel_pytree(state.server.x)
    unravel = jax.flatten_util.ravel_pytree(state.server.x)[1]
    x, m, cut = np.asarray(x, float), 0.0, False
    for t in range(2):
        for i in naive.cohort(method, t):
            now = unravel(jnp.asarray(x, jnp.float32))
            phi, pull = jax.vjp(lambda x: generate(x.theta, x.nu[i], jax.nn.relu), now)  # noqa: B023
            w = naive.weights_of(Weights(phi, {}))
            a, b, c, d = naive.sub(w, naive.sgd(w, *naive.data_of(i)))
            delta = {"Dense_0": {"bias": b, "kernel": a}, "head": {"bias": d, "kernel": c}}
            g = flat(pull(jax.tree.map(jnp.float32, delta))[0])
            cut |= np.linalg.norm(g) > clip
            g = g * min(1.0, clip / np.linalg.norm(g)) + decay * x
            m = momentum * m + g
            x = x - lr * m
        state = one_round(method, state, t)
    assert cut
    np.testing.assert_allclose(flat(state.server.x), x, rtol=1e-3, atol=1e-4)


def test_with_one_client_it_is_hfedf(monkeypatch):
    """Adam in the place of its SGD, nothing clipped; hFedF with ReLU and without EMA."""
    monkeypatch.setattr(optim, "sgd", lambda lr, momentum, decay: optim.adam(lr, decay))
    monkeypatch.setattr(jax.nn, "leaky_relu", lambda x, negative_slope: jax.nn.relu(x))
    alone = toys.FEDERATION._replace(train=toys.FEDERATION.train[:1])
    plan = toys.PLAN._replace(cohort=1)
    step = {"server_lr": 0.01, "server_decay": 1e-3}
    one = toys.make("pfedhn", clip=0.0, **step)
    start = simulate.init(one, naive.KEYS, 1)
    passed, sums = toys.player(one, plan=plan, federation=alone)(naive.KEYS, 0, 3, start)
    assert float(tree.sq_norm(tree.sub(passed.server.x, start.server.x))) > 1e-2
    for grad_align in (False, True):  # the weight of a single gradient is 1
        other = toys.make("hfedf", ema=1.0, grad_align=grad_align, **step)
        state = simulate.init(other, naive.KEYS, 1)
        state = state._replace(server=state.server._replace(x=start.server.x))
        found, others = toys.player(other, plan=plan, federation=alone)(naive.KEYS, 0, 3, state)
        toys.close(found.server.x, passed.server.x, rtol=1e-4, atol=1e-5)
        toys.close(found.server.stats, passed.server.stats, rtol=1e-4)
        toys.close(others, sums, rtol=1e-4)


def test_running_statistics_go_from_client_to_client():
    """Each halves what it is sent and adds its number; the server keeps those of the last."""
    method = toys.make("pfedhn")

    def local(phi, client, work):
        stats = jax.tree.map(lambda a: a / 2 + client.id, phi.stats)
        return Weights(tree.zeros(phi.params), stats), ()

    (exchange,) = method.round
    counting = method._replace(round=(exchange._replace(local=local),))
    state = first(method)
    expected = jax.tree.map(np.asarray, state.server.stats)
    for i in naive.cohort(method, 0):
        expected = jax.tree.map(lambda a: a / 2 + i, expected)  # noqa: B023
    after = one_round(counting, state)
    toys.close(after.server.stats, expected, rtol=1e-6)
    assert len(jax.tree.leaves(expected)) == 2


def test_the_order_of_a_pass_is_random():
    """The clients of a round are those that every other method has."""
    method = toys.make("pfedhn")
    for t in range(3):
        assert set(naive.cohort(method, t)) == set(naive.cohort(toys.make("fedavg"), t))
    orders = {tuple(naive.cohort(method, t, toys.C)) for t in range(4)}
    assert len(orders) == 4 and all(sorted(o) == list(range(toys.C)) for o in orders)


# FedGMA.


def gma_inputs():
    """Steps of four clients, with ties and zeros."""
    step = np.array([[1.0, 1, 1, 0, 2], [1, 1, -1, 0, -2], [1, -1, -1, 1, 0], [1, -1, 1, 1, 0]])
    n = np.array([10.0, 20, 30, 50])  # by size no vote is a tie, which rounding would decide
    return step, n


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("tau", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("mode", ["masked_average", "average_plus_masked_step"])
def test_fedgma_against_numpy(weights, tau, mode):
    step, n = gma_inputs()
    method = toys.make("fedgma", tau=tau, server_lr=0.7, mode=mode, weights=weights)
    w_t = np.arange(5.0)
    p = np.full(4, 1 / 4) if weights == "uniform" else n / n.sum()
    votes = p @ np.sign(step)
    A, agree = np.abs(votes), np.abs(votes) >= tau - 1e-6
    if mode == "masked_average":
        expected = w_t + 0.7 * np.where(agree, 1, A) * (n / n.sum() @ step)
    else:
        kept = np.where(agree & (np.sign(step) == np.sign(votes)), step, 0)
        expected = p @ (w_t + step) + 0.7 * p @ kept
    cohort = tree.take(toys.PEOPLE, jnp.arange(4))._replace(n=jnp.asarray(n))
    uploads = Weights({"w": jnp.asarray(w_t + step)}, {})
    found = method.round[0].aggregate(Weights({"w": jnp.asarray(w_t)}, {}), uploads, cohort)
    np.testing.assert_allclose(found.params["w"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("mode", ["masked_average", "average_plus_masked_step"])
def test_fedgma_averages_running_statistics_by_size(weights, mode):
    """Nothing is masked in them, and the server's step is no part of it."""
    step, n = gma_inputs()
    method = toys.make("fedgma", tau=1.0, server_lr=0.3, mode=mode, weights=weights)
    uploads = Weights({"w": jnp.asarray(step)}, {"mean": jnp.asarray(step)})
    sent = Weights({"w": jnp.full(5, -9.0)}, {"mean": jnp.full(5, 9.0)})
    cohort = tree.take(toys.PEOPLE, jnp.arange(4))._replace(n=jnp.asarray(n))
    found = method.round[0].aggregate(sent, uploads, cohort)
    np.testing.assert_allclose(found.stats["mean"], n / n.sum() @ step, rtol=1e-5, atol=1e-6)
    assert np.abs(found.params["w"] - found.stats["mean"]).max() > 0.1


def test_with_three_clients_half_and_seven_tenths_are_one_threshold():
    """And three tenths masks nothing: A is 1/3 or 1."""
    step = jax.random.normal(KEY, (3, 50))
    cohort = tree.take(toys.PEOPLE, jnp.arange(3))
    w_t = Weights({"w": jnp.zeros(50)}, {})

    def after(**hyper):
        aggregate = toys.make("fedgma", **hyper).round[0].aggregate
        return aggregate(w_t, Weights({"w": step}, {}), cohort).params["w"]

    toys.same(after(tau=0.5), after(tau=0.7))
    toys.same(after(tau=0.3), after(tau=0.0))
    assert float(jnp.abs(after(tau=0.3) - after(tau=0.5)).max()) > 0.01


def test_fedgma_that_masks_nothing_is_fedavg():
    one, _ = toys.player(toys.make("fedgma", tau=0.0))(naive.KEYS, 0, 3)
    other, _ = toys.player(toys.make("fedavg"))(naive.KEYS, 0, 3)
    toys.close(one, other, rtol=1e-5, atol=1e-6)


# FedSR.


def test_divergence_is_that_of_two_gaussians():
    """Against the mean log-ratio of densities over 200,000 draws."""
    rng = np.random.default_rng(0)
    mu, sigma = rng.normal(size=(1, 3)), rng.uniform(0.5, 1.5, (1, 3))
    prior = {"mu": rng.normal(size=(4, 3)), "sigma": rng.normal(size=(4, 3)), "log_c": np.log(0.8)}
    found = divergence(
        *map(jnp.asarray, (mu, sigma)), jax.tree.map(jnp.asarray, prior), jnp.array([2])
    )
    m, s = 0.8 * mu, 0.8 * sigma
    r_m, r_s = prior["mu"][2], np.log1p(np.exp(prior["sigma"][2]))
    z = m + s * rng.normal(size=(200_000, 3))
    log_ratio = np.log(r_s / s) - ((z - m) / s) ** 2 / 2 + ((z - r_m) / r_s) ** 2 / 2
    assert float(found[0]) == pytest.approx(log_ratio.sum(1).mean(), rel=0.02)


def test_lengths_have_a_gradient_at_the_origin():
    np.testing.assert_allclose(length(jnp.array([[3.0, 4.0], [0.0, 0.0]])), [5, 0], atol=1e-6)
    assert tree.finite(jax.grad(lambda z: length(z).sum())(jnp.zeros((2, 3))))


@pytest.mark.parametrize("power", [1, 2])
def test_fedsr_loss_against_numpy(power):
    """CE of a sample, its length, and the divergence from the class's prior; two rows padded."""
    from test_fedpick import example

    hyper = {"l2r": 0.3, "cmi": 0.2, "l2r_power": power}
    loss, state = sr_loss(**hyper)
    w = tree.join(state.server, tree.take(state.private, 0))
    prior = w.params["prior"]
    prior = {**prior, "mu": prior["mu"] + 0.3, "sigma": prior["sigma"] - 0.5, "log_c": jnp.log(1.2)}
    w = w._replace(params={**w.params, "prior": prior})
    batch = example(12)
    value, _ = loss(w, batch, KEY)
    x, y = np.asarray(batch.x, float)[:10], np.asarray(batch.y)[:10]
    net = naive.weights_of(Weights(w.params["net"], {}))
    mu = naive.features(net, x)
    s = x @ np.asarray(w.params["spread"]["kernel"]) + np.asarray(w.params["spread"]["bias"])
    sigma = np.log1p(np.exp(s))
    xi = np.asarray(jax.random.normal(jax.random.fold_in(KEY, 1), (12, 16)))[:10]
    z = mu + sigma * xi
    logits = z @ net[2] + net[3]
    ce = (np.log(np.exp(logits).sum(1)) - logits[np.arange(10), y]).mean()
    R_2 = (np.linalg.norm(z, axis=1) ** power).mean()
    R_c = float(jnp.mean(divergence(jnp.asarray(mu), jnp.asarray(sigma), prior, jnp.asarray(y))))
    assert float(value) == pytest.approx(ce + 0.3 * R_2 + 0.2 * R_c, rel=1e-4)


def sr_loss(**hyper):
    caught = []

    class Work:
        def train(self, w, loss):
            caught.append(loss)
            return w

    method = toys.make("fedsr", toys.TASK, **hyper)
    state = first(method)
    client = tree.take(toys.PEOPLE, 0)._replace(private=tree.take(state.private, 0))
    method.round[0].local(state.server, client, Work())
    return caught[0], state


def test_priors_stay_with_the_clients():
    method = toys.make("fedsr")
    state, _ = toys.player(method)(naive.KEYS, 0, 2)
    names = {name.split("/")[1] for name in tree.names(state.private)}
    assert names == {"prior"} and state.private.params["prior"]["mu"].shape == (toys.C, toys.K, 16)
    assert {name.split("/")[1] for name in tree.names(state.server) if "params" in name} == {
        "net",
        "spread",
    }


def test_predictions_are_means_over_samples():
    method = toys.make("fedsr", toys.TASK)
    state = first(method)
    client = tree.take(toys.PEOPLE, 0)._replace(private=tree.take(state.private, 0))
    x = toys.FEDERATION.x[:6]
    p = np.exp(method.predict(state.server, client, x))
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
    message, private = method.newcomer(state)
    again = method.predict(message, client._replace(private=private), x)
    np.testing.assert_allclose(np.exp(again), p, rtol=1e-5)
    w = state.server.params
    net = naive.weights_of(Weights(w["net"], {}))
    sigma = np.log1p(np.exp(np.asarray(x) @ w["spread"]["kernel"] + w["spread"]["bias"]))
    xi = np.asarray(jax.random.normal(jax.random.key(0), (20, 16)))
    logits = (naive.features(net, np.asarray(x)) + sigma * xi[:, None]) @ net[2] + net[3]
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(p, softmax.mean(0), rtol=1e-4, atol=1e-5)


def test_without_a_layer_before_the_head_the_spread_is_one_on_the_features():
    task = make_task(nets.mlp(toys.K, depth=0), (toys.D,), toys.K)
    state, sums = toys.player(toys.make("fedsr", task))(naive.KEYS, 0, 2)
    assert state.server.params["spread"]["kernel"].shape == (toys.D, toys.D)
    assert int(sums.diverged) == -1


def test_the_power_of_the_length_is_one_or_two():
    with pytest.raises(BadInput, match="config.method.l2r_power cannot be '3'"):
        toys.make("fedsr", l2r_power=3)


# The protocol: few shots, embeddings of an autoencoder, figures.


@pytest.fixture(scope="module")
def four_domains(tmp_path_factory):
    """400 images 8x8 of four classes in four domains."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 400)
    x = rng.integers(0, 60, (400, 8, 8, 1), dtype=np.uint8)
    for k in range(4):
        x[y == k, 2 * k : 2 * k + 2] += 150
    domain = np.array(list("abcd"))[np.arange(400) % 4]
    path = tmp_path_factory.mktemp("data") / "data.npz"
    split = np.where(np.arange(400) < 40, "test", "train")
    np.savez(path, x=x, y=y, domain=domain, split=split)
    return path


def setting(path, method, seeds=(0,), rounds=3, **data):
    config = {
        "data": {"name": "arrays", "path": str(path), "unseen": "b", **data},
        "partition": {"name": "domains_per_client", "num_clients": 3, "validation": 0.1},
        "model": {"name": "mlp", "width": 8},
        "method": method if isinstance(method, dict) else {"name": method},
        "local": {"optimizer": "adam", "lr": 1e-2},
        "run": {"rounds": rounds, "eval_every": 1},
    }
    return experiment.build(experiment.resolve(config), list(seeds))


def test_few_shots_are_balanced_disjoint_and_no_longer_unseen(four_domains):
    plain, few = (setting(four_domains, "fedavg", (0, 1), shots=k) for k in (0, 6))
    domain, y = few.dataset.domain, few.dataset.y
    for a, b in zip(plain.simulation.federations, few.simulation.federations, strict=True):
        given = []
        for before, after in zip(np.asarray(a.train), np.asarray(b.train), strict=True):
            new = set(after[after >= 0]) - set(before[before >= 0])
            assert len(new) == 6 and set(before[before >= 0]) < set(after)
            counts = np.bincount(y[list(new)], minlength=4)
            assert counts.max() - counts.min() <= 1
            given += new
        assert len(set(given)) == 18 and {int(domain[i]) for i in given} == {1}
        assert not set(given) & set(np.asarray(b.unseen))
        assert len(b.unseen) == len(a.unseen) - 18
        np.testing.assert_array_equal(a.validation, b.validation)
    a, b = (np.sort(np.asarray(f.unseen)) for f in few.simulation.federations)
    np.testing.assert_array_equal(a, b)
    with pytest.raises(BadInput, match="config.data.shots=40 for 3 clients is more than the 100"):
        setting(four_domains, "fedavg", shots=40)
    with pytest.raises(BadInput, match="than the 0 unseen examples"):
        setting(four_domains, "fedavg", shots=1, unseen="")


def unequal_classes(path, counts):
    """So many of each class in the domain b; a has 30 of each."""
    y = np.concatenate([np.tile([0, 1, 2], 30), np.repeat([0, 1, 2], counts)])
    domain = np.array(["a"] * 90 + ["b"] * sum(counts))
    split = np.where(np.arange(len(y)) < 10, "test", "train")
    x = np.random.default_rng(0).integers(0, 255, (len(y), 4, 4, 1), dtype=np.uint8)
    np.savez(path / "data.npz", x=x, y=y, domain=domain, split=split)
    return path / "data.npz"


def test_few_shots_of_unequal_classes_are_as_even_as_can_be(tmp_path):
    """Two, six and 92 of a class; six for each of three clients: 2, 6 and 10 in all."""
    e = setting(unequal_classes(tmp_path, [2, 6, 92]), "fedavg", shots=6)
    y = e.dataset.y
    rows = [r[r >= 90] for r in np.asarray(e.simulation.federations[0].train)]
    counts = np.array([np.bincount(y[r], minlength=3) for r in rows])
    assert counts.sum(0).tolist() == [2, 6, 10] and counts.sum(1).tolist() == [6, 6, 6]
    assert (counts.max(0) - counts.min(0) <= 1).all()


def test_few_shots_of_each_class(four_domains):
    """Two of each of four classes for each of three clients, disjoint, no longer unseen."""
    plain, few = (
        setting(four_domains, "fedavg", shots=k, shots_per="class").simulation.federations[0]
        for k in (0, 2)
    )
    y, given = np.asarray(plain.y), []
    for before, after in zip(np.asarray(plain.train), np.asarray(few.train), strict=True):
        new = sorted(set(after[after >= 0]) - set(before[before >= 0]))
        assert np.bincount(y[new], minlength=4).tolist() == [2, 2, 2, 2]
        given += new
    assert len(set(given)) == 24
    assert set(given) | set(np.asarray(few.unseen)) == set(np.asarray(plain.unseen))
    assert len(few.unseen) == len(plain.unseen) - 24


@pytest.mark.parametrize(
    "counts, shots, message",
    [
        (
            [6, 5, 9],
            2,
            "config.data.shots=2 of each class for 3 clients is more than the 5 unseen examples of"
            " class '1'; take fewer, or config.data.shots_per=client",
        ),
        ([6, 9, 0], 1, "is more than the 0 unseen examples of class '2'"),
        ([6, 6, 6], 2, "config.data.shots=2 for 3 clients is more than the 18 unseen examples"),
    ],
)
def test_classes_with_too_few_shots_are_named(counts, shots, message, tmp_path):
    path = unequal_classes(tmp_path, counts)
    with pytest.raises(BadInput, match=message):
        setting(path, "fedavg", shots=shots, shots_per="class")
    with pytest.raises(BadInput, match="config.data.shots_per cannot be 'clas'; did you mean 'cla"):
        setting(path, "fedavg", shots=shots, shots_per="clas")


def test_the_last_shot_of_a_class_may_be_given(tmp_path):
    e = setting(unequal_classes(tmp_path, [6, 6, 7]), "fedavg", shots=2, shots_per="class")
    assert np.asarray(e.dataset.y)[np.asarray(e.simulation.federations[0].unseen)].tolist() == [2]


def test_embeddings_of_an_autoencoder_are_found_once(four_domains):
    """By client, and not trained afterwards."""
    hyper = {"name": "hfedf", "embedding": "autoencoder", "embedding_dim": 2}
    e = setting(four_domains, hyper)
    assert [(s.name, s.rounds) for s in e.simulation.stages] == [("embed", 1), ("train", 3)]
    result = runner.run(e, quiet=True)
    seen = [row["recorded"]["embedding"] for row in result.metrics if row["stage"] == "train"]
    assert np.shape(seen) == (3, 3, 2)
    np.testing.assert_array_equal(seen[0], seen[2])
    assert np.abs(np.array(seen[0])).max() > 0 and len(np.unique(seen[0])) == 6
    for kind in ("autoencoder", "autoencoder_learned"):
        with pytest.raises(BadInput, match=f"{kind} needs config.method.embedding_dim"):
            setting(four_domains, {"name": "hfedf", "embedding": kind})
    with pytest.raises(BadInput, match="needs images, sides multiples of 4"):
        toys.make("hfedf", embedding="autoencoder", embedding_dim=2)(3)


IMAGE_TASK = make_task(nets.mlp(toys.K, width=4), (8, 8, 1), toys.K)


def image_federation():
    """The toy federation's clients with images in the place of its examples."""
    x = (
        np.random.default_rng(5).uniform(0, 1, (600, 8, 8, 1))
        * np.linspace(0.2, 1, 600)[:, None, None, None]
    )
    return toys.FEDERATION._replace(x=jnp.asarray(x, jnp.float32))


def test_each_client_gets_the_embedding_of_its_own_images(monkeypatch):
    """Three steps of Adam on all of its images, from one start; the mean latent of them."""
    monkeypatch.setattr(embeddings, "EPOCHS", 3)
    monkeypatch.setattr(embeddings, "BATCH", 40)  # more than a client has: order does not matter
    federation, lr = image_federation(), embeddings.LR
    embed, _ = toys.make("hfedf", IMAGE_TASK, embedding="autoencoder", embedding_dim=2)(5)
    start, _ = simulate.init(embed.method, naive.KEYS, toys.C).server
    reordered = parallel.chunked(3)  # the client with most work comes first
    state, _ = toys.player(embed.method, reordered, federation=federation)(naive.KEYS, 0, 1)
    net = Autoencoder(2)

    @jax.jit
    def gradient(params, x, mask):
        def error(params):
            each = jnp.mean((net.apply(params, x)[0] - x) ** 2, (1, 2, 3))
            return jnp.sum(mask * each) / jnp.sum(mask)

        return jax.grad(error)(params), net.apply(params, x)[1]

    expected = []
    for i in range(toys.C):
        x, _ = naive.data_of(i, federation)
        mask = np.arange(40) < len(x)
        x = np.pad(x, ((0, 40 - len(x)), (0, 0), (0, 0), (0, 0)))
        w, unravel = jax.flatten_util.ravel_pytree(start)
        w, m, v = np.asarray(w, float), 0.0, 0.0
        for count in range(1, 4):
            g, _ = gradient(unravel(jnp.asarray(w, jnp.float32)), x, mask)
            g = np.asarray(jax.flatten_util.ravel_pytree(g)[0], float)
            w, m, v = adam_step(g, w, m, v, count, lr, 0.0)
        _, latent = gradient(unravel(jnp.asarray(w, jnp.float32)), x, mask)
        expected.append(np.asarray(latent)[mask].mean(0))
    np.testing.assert_allclose(state.server[1], expected, rtol=1e-3, atol=1e-4)
    assert np.std(expected, 0).min() > 1e-3


@pytest.mark.parametrize("mode", ["feedback", "shadow"])
@pytest.mark.parametrize("kind", ["autoencoder", "autoencoder_learned"])
def test_found_embeddings_are_where_training_starts(kind, mode):
    """And move, with their moments, only if learned."""
    how = {"embedding": kind, "embedding_dim": 2, "ema_mode": mode, "server_lr": 0.01}
    _, stage = toys.make("hfedf", IMAGE_TASK, **how)(5)
    nu = jax.random.normal(KEY, (toys.C, 2))
    state = stage.start(naive.KEYS.init, toys.C, State(((), nu), ()), {})
    toys.same(state.server.x.nu, nu)
    assert mode == "feedback" or np.array_equal(state.server.average.nu, nu)
    delta = jax.tree.map(lambda a: jnp.ones((toys.C, *a.shape)), IMAGE_TASK.init(KEY))
    after = jax.jit(stage.method.round[0].aggregate)(state.server, delta, toys.PEOPLE)
    (moments,) = [s for s in after.moments if hasattr(s, "mu")]
    moved = np.asarray(after.x.nu != nu)
    assert moved.all() if kind == "autoencoder_learned" else not moved.any()
    assert np.any(moments.mu.nu) == (kind == "autoencoder_learned")
    assert float(tree.sq_norm(tree.sub(after.x.theta, state.server.x.theta))) > 0


@pytest.mark.parametrize("normalize, span", [("half", "-1 to 1"), ("imagenet", "-2.12 to 2.64")])
def test_the_autoencoder_refuses_what_its_sigmoid_cannot_make(normalize, span, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (80, 8, 8, 3), dtype=np.uint8)
    domain = np.array(list("abcd"))[np.arange(80) % 4]
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(80) // 4 % 2, domain=domain)
    how = {"name": "hfedf", "embedding": "autoencoder", "embedding_dim": 2}
    message = complaint(setting, tmp_path / "data.npz", how, normalize=normalize)
    assert message == (
        f"config.method.embedding: an autoencoder needs inputs from 0 to 1, not {span};"
        " 8-bit images are with config.data.normalize=unit"
    )
    assert len(setting(tmp_path / "data.npz", how, normalize="unit").stages) == 2


def test_the_autoencoder_learns_its_images():
    """Parameters of Table 9's; of two kinds of images a tenth of the first error is left."""
    net = Autoencoder(2)
    params = jax.eval_shape(net.init, KEY, jnp.zeros((1, 32, 32, 3)))
    assert sum(a.size for a in jax.tree.leaves(params)) == 9_395 + 4_097 * 2
    params = jax.jit(net.init)(KEY, jnp.zeros((1, 8, 8, 1)))
    x = jnp.concatenate([jnp.zeros((50, 8, 8, 1)).at[:, :4].set(1.0), jnp.full((50, 8, 8, 1), 0.5)])

    def error(params, x, mask):
        return losses.masked_mean(jnp.mean((net.apply(params, x)[0] - x) ** 2, (1, 2, 3)), mask)

    batch = Batch(x, jnp.zeros(100, int), jnp.ones(100))
    after = jax.jit(functools.partial(fit, error))(params, batch)
    measured = jax.jit(error)
    assert float(measured(after, x, batch.mask)) < 0.1 * float(measured(params, x, batch.mask))


def test_the_figures_of_finished_runs(four_domains, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "launch"))
    import finished
    import hfedf_figures

    for name in ("hfedf", "local", "fedavg", "ifca"):
        runner.run(setting(four_domains, name), tmp_path / name, quiet=True)
    argv = ["x", str(tmp_path / "hfedf"), f"--out={tmp_path}/out"]
    others = [str(tmp_path / name) for name in ("local", "fedavg")]
    monkeypatch.setattr("sys.argv", [*argv, "--compare", *others])
    hfedf_figures.main()
    names = {"weights", "embeddings", "spread", "confidence"}
    assert {p.stem for p in (tmp_path / "out").glob("*.png")} == names
    numbers = json.loads((tmp_path / "out/numbers.json").read_text())
    spread = {Path(name).name: layers for name, layers in numbers["spread"].items()}
    assert list(spread["local"]) == ["Dense_0", "head"]
    assert all(v > 1e-3 for v in spread["hfedf"].values())
    assert sum(spread["fedavg"].values()) < 1e-6
    models = finished.load(tmp_path / "local").state.private.params["head"]
    flat_models = np.concatenate([np.reshape(a, (3, -1)) for a in jax.tree.leaves(models)], 1)
    assert spread["local"]["head"] == pytest.approx(flat_models.std(0).mean(), rel=1e-4)
    assert all(set(v) == {"id", "ood"} for v in numbers["calibration_error"].values())
    assert set(numbers["rounds"]) == {"1", "2", "3"}
    for folder, message in (
        (tmp_path, "holds no finished run"),
        (tmp_path / "ifca", "of ifca has"),
    ):
        monkeypatch.setattr("sys.argv", ["x", str(folder), f"--out={tmp_path}/out"])
        with pytest.raises(SystemExit):
            hfedf_figures.main()
        assert message in capsys.readouterr().err


def test_calibration_error_against_hand(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "launch"))
    from hfedf_figures import calibration_error

    largest = np.array([0.95, 0.97, 0.95, 0.5, 0.51])
    right = np.array([True, True, False, True, False])
    high, low = abs(2 / 3 - largest[:3].mean()), abs(1 / 2 - largest[3:].mean())
    assert calibration_error(largest, right) == pytest.approx(0.6 * high + 0.4 * low)
    assert calibration_error(np.ones(4), np.ones(4, bool)) == 0
