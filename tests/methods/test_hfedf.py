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
    KEY,
    adam_step,
    clients,
    first,
    flat,
    gradients,
    leaky,
    memory_of_a_round,
    one_round,
    setting,
)
from slow_cases import exhaustive_but

from fedjax_lab import optim, tree
from fedjax_lab.analysis import finished
from fedjax_lab.commands import figures
from fedjax_lab.methods.hfedf import Trained, alignment
from fedjax_lab.models import nets
from fedjax_lab.models.hypernetwork import generate
from fedjax_lab.models.task import make_task
from fedjax_lab.papers.hfedf.spread_figures import calibration_error
from fedjax_lab.running import runner
from fedjax_lab.types import Weights


def test_gradients_closer_to_the_mean_get_larger_weights():
    def weights(g):
        return np.asarray(jax.jit(lambda G: jax.nn.softmax(alignment(G)))(g @ g.T))

    two_against_one = np.array([[1.0, 0.2], [1.0, 0.2], [-1.0, -0.2]])
    expected = np.exp([1, 1, -1]) / np.exp([1, 1, -1]).sum()
    np.testing.assert_allclose(weights(two_against_one), expected, rtol=1e-5)
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


@pytest.mark.parametrize("grad_align", exhaustive_but([True], [True, False]))
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("lazy", [False, True])
def test_embeddings_of_absent_clients_are_unchanged_with_nu_lazy(lazy):
    """Otherwise decay moves them: Adam's first step is lr toward the origin. So does momentum."""
    lr = 0.01
    method = hfedf(nu_lazy=lazy, server_lr=lr, server_decay=0.1)
    state = first(method)
    for t in range(2):
        present = naive.cohort(method, t)
        absent = [i for i in range(toys.C) if i not in present]
        old = np.asarray(state.server.x.nu)
        state = one_round(method, state, t)
        step = np.asarray(state.server.x.nu) - old
        assert (step[present] != 0).any(1).all()
        assert (step[absent] == 0).all() if lazy else (step[absent] != 0).all()
        if t == 0 and not lazy:
            expected = -lr * np.sign(old[absent])
            np.testing.assert_allclose(step[absent], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.exhaustive
def test_align_nu_includes_the_embeddings_in_the_cosines():
    """Weights are scaled up so that the gradients of nu are not small compared to the others."""
    server = first(hfedf()).server
    nu, delta = clients(toys.C, server.x.nu.shape[1])
    x = server.x._replace(theta=optax.tree.scale(3.0, server.x.theta), nu=nu)
    expected = []
    for align_nu in (True, False):
        g = gradients(x.theta, nu, delta, align_nu)
        mean = g.mean(0)
        cosine = g @ mean / (np.linalg.norm(g, axis=1) * np.linalg.norm(mean))
        expected.append(np.exp(cosine) / np.exp(cosine).sum())
        aggregate = jax.jit(hfedf(align_nu=align_nu).round[0].aggregate)
        after = aggregate(server._replace(x=x), Weights(delta, {}), toys.POPULATION)
        np.testing.assert_allclose(after.weight, expected[-1], rtol=1e-4)
    assert np.abs(expected[0] / expected[1] - 1).max() > 1e-3


@pytest.mark.exhaustive
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
        optax.tree.scale(0.1, first(plain).server.x.theta.kernel), server.x.theta.kernel, rtol=1e-6
    )
    phi = method.round[0].send(server, 0).params
    assert np.abs(flat(phi) - flat(w)).max() < 0.2


@pytest.mark.exhaustive
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
    assert float(tree.sq_norm(optax.tree.sub(state.server.stats, first(method).server.stats))) > 0
    message, _ = method.newcomer(state)
    x = state.server.x
    toys.close(message.params, generate(x.theta, x.nu.mean(0), leaky), rtol=1e-5)
    record = method.record(state)
    assert record["weight"].shape == (toys.C,) and record["embedding"].shape == (toys.C, 3)


@pytest.mark.exhaustive
def test_clip_bounds_the_norm_of_the_gradient():
    """The momentum after one round is a tenth of the gradient, so that its norm is 0.1 clip."""
    method = hfedf(clip=0.01, server_decay=0.0)
    state = one_round(method, first(method))
    (mu,) = [s.mu for s in state.server.moments if hasattr(s, "mu")]
    assert np.linalg.norm(flat(mu)) == pytest.approx(0.001, rel=1e-3)


@pytest.mark.exhaustive
def test_memory_grows_slowly_with_the_number_of_clients():
    """20 clients take less than 2.5 times the memory of 3: no client has a gradient of theta."""
    method = hfedf(make_task(nets.mlp(toys.K, width=512), (toys.D,), toys.K))

    def memory(count):
        sizes = memory_of_a_round(method, count)
        return sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes

    assert memory(20) < 2.5 * memory(3)


@pytest.mark.exhaustive
def test_figures_and_numbers_of_finished_runs(four_domains, tmp_path, capsys):
    for name in ("hfedf", "local", "fedavg", "ifca"):
        runner.run(setting(four_domains, name), tmp_path / name, quiet=True)
    folders = [str(tmp_path / name) for name in ("hfedf", "local", "fedavg")]
    assert figures.main(["hfedf", *folders, f"--out={tmp_path}/out"]) == 0
    names = {"weights", "embeddings", "spread", "confidence"}
    assert {p.stem for p in (tmp_path / "out").glob("*.png")} == names
    numbers = json.loads((tmp_path / "out/numbers.json").read_text())
    spread = {Path(name).name: layers for name, layers in numbers["spread"].items()}
    assert all(v > 1e-3 for v in spread["hfedf"].values())
    assert sum(spread["fedavg"].values()) < 1e-6
    models = finished.load(tmp_path / "local").state.private.params["head"]
    flat_models = np.concatenate([np.reshape(a, (3, -1)) for a in jax.tree.leaves(models)], 1)
    assert spread["local"]["head"] == pytest.approx(flat_models.std(0).mean(), rel=1e-4)
    assert all(set(v) == {"id", "ood"} for v in numbers["calibration_error"].values())
    for folder, message in ((tmp_path, "no finished run"), (tmp_path / "ifca", "one model each")):
        assert figures.main(["hfedf", str(folder), f"--out={tmp_path}/out"]) == 2
        assert message in capsys.readouterr().err


def test_calibration_error_against_a_computation_by_hand():
    largest = np.array([0.95, 0.97, 0.95, 0.5, 0.51])
    right = np.array([True, True, False, True, False])
    high, low = abs(2 / 3 - largest[:3].mean()), abs(1 / 2 - largest[3:].mean())
    assert calibration_error(largest, right) == pytest.approx(0.6 * high + 0.4 * low)
    assert calibration_error(np.ones(4), np.ones(4, bool)) == 0
