"""Tests hFedF: rounds against NumPy, its averages, embeddings and settings."""

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


def test_gradients_closer_to_the_mean_get_larger_weights():
    def weights(g):
        return np.asarray(jax.nn.softmax(alignment(jnp.asarray(g @ g.T))))

    np.testing.assert_allclose(weights(np.ones((3, 4))), 1 / 3, rtol=1e-6)
    two_against_one = np.array([[1.0, 0.2], [1.0, 0.2], [-1.0, -0.2]])
    actual = weights(two_against_one)
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
    """Returns delta_i = phi_i - phi~_i of these clients, by NumPy, as a tree of [M, ...]."""
    out = []
    for i in ids:
        w = naive.weights_of(method.round[0].send(state.server, i))
        a, b, c, d = naive.sub(w, naive.sgd(w, *naive.data_of(i)))
        out.append({"Dense_0": {"kernel": a, "bias": b}, "head": {"kernel": c, "bias": d}})
    return jax.tree.map(lambda *a: np.stack(a), *out)


@pytest.mark.slow
@pytest.mark.parametrize("grad_align", [True, False])
def test_hfedf_against_numpy(grad_align):
    """Applies the chain rule, GradAlign and Adam, whose weight decay is in the gradient."""
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
        error = np.abs(flat(state.server.x) - expected)
        assert np.quantile(error, 0.999) < 2e-4 and error.max() < 2 * lr
        np.testing.assert_allclose(state.server.weight[jnp.array(ids)], weight, atol=1e-4)
        assert float(state.server.weight.sum()) == pytest.approx(1, rel=1e-5)


@pytest.mark.slow
def test_a_server_step_lowers_the_loss_of_every_client():
    """delta is phi - phi~. With the sign in the paper, the losses would rise."""
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
def test_the_moving_average_scales_the_server_step_by_ema():
    """After the warm-up, x_new - x_old is ema times Adam's step (section 5.6)."""
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
def test_a_shadow_average_is_scored_and_does_not_change_training():
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
def test_embeddings_of_absent_clients_are_unchanged_with_nu_lazy(lazy):
    """Without nu_lazy, Adam moves them by their momentum although they have no gradient."""
    method = hfedf(nu_lazy=lazy, server_lr=0.01)
    state = one_round(method, first(method), 0, ALL_CLIENTS)  # so that the moments are not zero
    after = one_round(method, state, 1)
    absent = [i for i in range(toys.C) if i not in naive.cohort(method, 1)]
    moved = np.abs(np.asarray(after.server.x.nu - state.server.x.nu))[absent].max()
    assert (moved == 0) == lazy
    present = np.abs(np.asarray(after.server.x.nu - state.server.x.nu))[naive.cohort(method, 1)]
    assert present.max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_decay_changes_embeddings_of_absent_clients_unless_nu_lazy(decay, lazy):
    """If the gradient is only decay times nu, Adam's first step is lr toward the origin."""
    lr = 0.01
    method = hfedf(nu_lazy=lazy, server_lr=lr, server_decay=decay)
    state = first(method)
    after = one_round(method, state)
    present = naive.cohort(method, 0)
    absent = [i for i in range(toys.C) if i not in present]
    old, new = (np.asarray(s.server.x.nu) for s in (state, after))
    if decay == 0 or lazy:
        np.testing.assert_array_equal(new[absent], old[absent])
    else:
        expected = old[absent] - lr * np.sign(old[absent])
        np.testing.assert_allclose(new[absent], expected, rtol=1e-4, atol=1e-5)
    assert (new[present] != old[present]).any(1).all()


@pytest.mark.slow
@pytest.mark.parametrize("align_nu", [True, False])
def test_align_nu_includes_the_embeddings_in_the_cosines(align_nu):
    """Weights are scaled up so that the gradients of nu are not small compared to the others."""
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
def test_random_embeddings_are_drawn_every_round_and_never_trained():
    method = hfedf(embedding="random", server_lr=0.01)
    state = first(method)
    drawn = [state.server.x.nu]
    for t in range(3):
        state = one_round(method, state, t)
        drawn.append(state.server.x.nu)
    stacked = np.array(drawn)
    assert len(np.unique(stacked)) == stacked.size
    assert 0.4 < stacked.std() < 1.6
    for moments in jax.tree.leaves(state.server.moments):
        assert moments.shape != state.server.x.nu.shape or not np.any(moments)


def test_start_client_begins_near_the_first_client_model():
    """The bias is the client's first model, and the kernel a tenth of its default start."""
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
def test_hfedf_without_a_trunk_and_with_plain_sgd_is_fedavg(monkeypatch):
    """All phi_i are b, and b - mean delta is the uniform mean of the clients' models."""
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
def test_statistics_are_trained_and_new_clients_get_the_mean_embedding():
    method = hfedf(toys.NORM)
    state = one_round(method, first(method), plan=toys.PLAN)
    assert tree.names(state.server.stats) == tree.names(toys.NORM.init(KEY).stats)
    assert float(tree.sq_norm(tree.sub(state.server.stats, first(method).server.stats))) > 0
    message, _ = method.newcomer(state)
    x = state.server.x
    toys.close(message.params, generate(x.theta, x.nu.mean(0), leaky), rtol=1e-5)


@pytest.mark.slow
def test_the_record_contains_weights_and_embeddings():
    method = hfedf()
    state = one_round(method, first(method))
    record = method.record(state)
    assert record["weight"].shape == (toys.C,) and record["embedding"].shape == (toys.C, 3)


@pytest.mark.slow
def test_clip_bounds_the_norm_of_the_gradient():
    """The momentum after one round is a tenth of the gradient, so that its norm is 0.1 clip."""
    method = hfedf(clip=0.01, server_decay=0.0)
    state = one_round(method, first(method))
    (mu,) = [s.mu for s in state.server.moments if hasattr(s, "mu")]
    assert np.linalg.norm(flat(mu)) == pytest.approx(0.001, rel=1e-3)


@pytest.mark.slow
def test_memory_grows_slowly_with_the_number_of_clients():
    """20 clients take less than 2.5 times the memory of 3: no client has a gradient of theta."""
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
def test_bad_settings_are_rejected(hyper, message):
    with pytest.raises(BadInput, match=message):
        hfedf(**hyper)


@pytest.mark.slow
def test_figures_and_numbers_of_finished_runs(four_domains, tmp_path, capsys):
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
