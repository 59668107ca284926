"""hFedF against naive NumPy, its averages, embeddings and settings."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from hypernetworks import (
    ALL_CLIENTS,
    KEY,
    adam_step,
    clients,
    first,
    flat,
    gradients,
    leaky,
    one_round,
    setting,
)

from fedjax_lab import figures, optim, simulate, tree
from fedjax_lab.analysis import finished
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.hfedf import Trained, alignment
from fedjax_lab.models import nets
from fedjax_lab.models.hypernetwork import generate
from fedjax_lab.models.task import make_task
from fedjax_lab.running import runner
from fedjax_lab.types import Weights


def test_the_closer_to_the_mean_the_larger_the_weight():
    def weights(g):
        return np.asarray(jax.nn.softmax(alignment(jnp.asarray(g @ g.T))))

    np.testing.assert_allclose(weights(np.ones((3, 4))), 1 / 3, rtol=1e-6)
    one = np.array([[1.0, 0.2], [1.0, 0.2], [-1.0, -0.2]])
    actual = weights(one)
    assert actual.argmin() == 2 and actual.sum() == pytest.approx(1, rel=1e-6)
    low, high = np.exp(-1) / (2 * np.e + np.exp(-1)), np.e / (np.e + 2 * np.exp(-1))
    assert low - 1e-6 <= actual.min() and actual.max() <= high + 1e-6
    np.testing.assert_allclose(weights(np.zeros((3, 4))), 1 / 3)
    opposite = np.array([[1.0, 2.0], [-1.0, -2.0 + 1e-6]], np.float32)
    assert np.abs(alignment(jnp.asarray(opposite @ opposite.T))).max() <= 1
    assert weights(np.ones((1, 4))) == 1


# hFedF.


def hfedf(task=toys.TASK, **hyper):
    return toys.make("hfedf", task, **hyper)


def pseudo_gradients(method, state, ids):
    """delta_i = phi_i - phi~_i of these clients, by NumPy, as trees [M, ...]."""
    out = []
    for i in ids:
        w = naive.weights_of(method.round[0].send(state.server, i))
        a, b, c, d = naive.sub(w, naive.sgd(w, *naive.data_of(i)))
        out.append({"Dense_0": {"kernel": a, "bias": b}, "head": {"kernel": c, "bias": d}})
    return jax.tree.map(lambda *a: np.stack(a), *out)


@pytest.mark.slow
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


@pytest.mark.slow
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

    after = one_round(method, state, plan=ALL_CLIENTS)
    assert (loss(after) < loss(state)).all()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
def test_embeddings_of_the_absent_rest_if_lazy(lazy):
    """Without a gradient dense Adam moves them by old momentum."""
    method = hfedf(nu_lazy=lazy, server_lr=0.01)
    state = one_round(method, first(method), 0, ALL_CLIENTS)  # moments build up
    after = one_round(method, state, 1)
    absent = [i for i in range(toys.C) if i not in naive.cohort(method, 1)]
    moved = np.abs(np.asarray(after.server.x.nu - state.server.x.nu))[absent].max()
    assert (moved == 0) == lazy
    here = np.abs(np.asarray(after.server.x.nu - state.server.x.nu))[naive.cohort(method, 1)]
    assert here.max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_decay_reaches_the_embeddings_of_the_absent_unless_lazy(decay, lazy):
    """Adam's first step on a gradient of decay times nu alone is lr toward the origin."""
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


@pytest.mark.slow
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

    gram_weight = jax.jit(method.round[0].aggregate)(
        server, Weights(delta, {}), toys.POPULATION
    ).weight
    np.testing.assert_allclose(gram_weight, weights(align_nu), rtol=1e-4)
    assert np.abs(weights(True) / weights(False) - 1).max() > 1e-3


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_running_statistics_travel_along():
    method = hfedf(toys.NORM)
    state = one_round(method, first(method), plan=toys.PLAN)
    assert tree.names(state.server.stats) == tree.names(toys.NORM.init(KEY).stats)
    assert float(tree.sq_norm(tree.sub(state.server.stats, first(method).server.stats))) > 0
    message, _ = method.newcomer(state)
    x = state.server.x
    toys.close(message.params, generate(x.theta, x.nu.mean(0), leaky), rtol=1e-5)


@pytest.mark.slow
def test_the_record_is_of_weights_and_embeddings():
    method = hfedf()
    state = one_round(method, first(method))
    shown = method.record(state)
    assert shown["weight"].shape == (toys.C,) and shown["embedding"].shape == (toys.C, 3)


@pytest.mark.slow
def test_a_gradient_may_be_clipped():
    """Momentum after one round is a tenth of the gradient: of norm at most 0.1 clip."""
    method = hfedf(clip=0.01, server_decay=0.0)
    state = one_round(method, first(method))
    (mu,) = [s.mu for s in state.server.moments if hasattr(s, "mu")]
    assert np.linalg.norm(flat(mu)) == pytest.approx(0.001, rel=1e-3)


@pytest.mark.slow
def test_memory_grows_slowly_with_the_clients():
    """N = 20 takes less than 2.5 times the memory of N = 3: no gradients of theta per client."""
    task = make_task(nets.mlp(toys.K, width=512), (toys.D,), toys.K)

    def memory(count):
        rows = toys.as_rows(np.tile(toys.FEDERATION.train, (3, 1))[:count])
        federation = toys.FEDERATION._replace(train=rows)
        population = simulate.population(federation, toys.K)
        method = hfedf(task)
        state = jax.eval_shape(lambda: simulate.init(method, naive.KEYS, count))
        plan = toys.PLAN._replace(cohort=count)

        program = simulate.Program(method, plan, toys.VECTORIZED)
        lane = simulate.Lane(federation, population, naive.KEYS)

        def play(state):
            return simulate.play_round(program, lane, state, 0)

        sizes = jax.jit(play).lower(state).compile().memory_analysis()
        return sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes

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


@pytest.mark.slow
def test_the_figures_of_finished_runs(four_domains, tmp_path, capsys):
    for name in ("hfedf", "local", "fedavg", "ifca"):
        runner.run(setting(four_domains, name), tmp_path / name, quiet=True)
    folders = [str(tmp_path / name) for name in ("hfedf", "local", "fedavg")]
    assert figures.main(["hfedf", *folders, f"--out={tmp_path}/out"]) == 0
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
        (tmp_path / "ifca", "the clients of ifca do not have exactly one model each"),
    ):
        assert figures.main(["hfedf", str(folder), f"--out={tmp_path}/out"]) == 2
        assert message in capsys.readouterr().err
