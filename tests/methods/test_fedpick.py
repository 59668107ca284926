"""Tests FedPick: the mask and its gradient, the losses, the private layers, the ablations."""

import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from naive import KEYS
from rounds import loss_of
from scipy.special import log_softmax

from fedjax_lab import losses, tree
from fedjax_lab.commands import figures
from fedjax_lab.experiment import registry
from fedjax_lab.methods.fedper import head
from fedjax_lab.methods.fedpick import distance, negative_entropy
from fedjax_lab.models import layers, nets
from fedjax_lab.models.alexnet import alexnet_bn
from fedjax_lab.models.task import make_task
from fedjax_lab.papers.fedpick import feature_figures as drawing
from fedjax_lab.papers.fedpick import selection
from fedjax_lab.papers.fedpick.selection import first_weights
from fedjax_lab.running import runner
from fedjax_lab.simulation import simulate
from fedjax_lab.types import Weights

KEY = jax.random.key(4)


class Net(nn.Module):
    """A body and a head, each with BatchNorm."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        z = nn.relu(layers.BatchNorm()(layers.dense(x, 12), train, mask))
        z = nn.relu(layers.BatchNorm()(layers.dense(z, 8), train, mask))
        return layers.dense(z, toys.K, name="head"), z


TASK = make_task(Net(), (toys.D,), toys.K)
CUT = head(TASK, 2)
pick = jax.jit(selection.pick, static_argnums=(0, 1), static_argnames=("tau", "soft"))


def method(**hyper):
    return toys.make("fedpick", TASK, head_layers=2, **hyper)


@functools.cache
def player(**hyper):
    return toys.player(method(**hyper), plan=toys.PLAN._replace(cohort=toys.C))


@pytest.mark.slow
def test_the_net_has_the_common_first_weights_and_the_heads_differ():
    """V_1 is [d, d/2] and V_2 is [d/2, d]. About half of the features are selected at first."""
    w = first_weights(TASK, CUT, KEYS.init)
    toys.same(w.params["net"], TASK.init(KEYS.init).params)
    assert w.params["select"]["V_1"]["kernel"].shape == (12, 6)
    assert w.params["select"]["V_2"]["kernel"].shape == (6, 12)
    assert w.params["relevant"]["Dense_0"]["kernel"] is None
    heads = [w.params[part]["head"]["kernel"] for part in ("net", "relevant", "irrelevant")]
    assert len({float(h[0, 0]) for h in heads}) == 3
    out = pick(TASK, CUT, w, toys.FEDERATION.x, tau=10.0)
    assert CUT == ("Dense_1", "BatchNorm_1", "head")
    assert 0.2 < float(out.m.mean()) < 0.8


@pytest.mark.slow
def test_the_mask_is_hard_and_has_no_noise_in_evaluation():
    w, x = first_weights(TASK, CUT, KEYS.init), toys.FEDERATION.x[:50]
    out, other = (pick(TASK, CUT, w, x, KEY, tau=tau) for tau in (0.3, 10.0))
    assert set(np.unique(out.m)) == {0.0, 1.0}
    toys.same(out.m, other.m)  # the forward pass does not depend on tau
    assert float(out.z_g.min()) >= 0
    evaluated = pick(TASK, CUT, w, x, tau=10.0)
    np.testing.assert_array_equal(evaluated.m, evaluated.z_l >= 0)
    soft = pick(TASK, CUT, w, x, tau=2.0, soft=True)
    np.testing.assert_allclose(soft.m, 1 / (1 + np.exp(-soft.z_l / 2)), rtol=1e-5)


@pytest.mark.slow
def test_negative_entropy_against_numpy_and_at_extreme_logits():
    a = 3 * jax.random.normal(KEY, (50, 7))
    p = np.exp(a) / np.exp(a).sum(1, keepdims=True)
    np.testing.assert_allclose(negative_entropy(a), (p * np.log(p)).sum(1), rtol=1e-4)
    np.testing.assert_allclose(negative_entropy(jnp.ones((1, 7))), -np.log(7), rtol=1e-6)
    extreme = jnp.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]])
    assert np.isfinite(negative_entropy(extreme)).all()
    assert tree.finite(jax.grad(lambda a: negative_entropy(a).sum())(extreme))


def test_distance_is_the_sum_of_both_kl_divergences():
    """With detached targets its gradient is that of KL(sg b || a): softmax(a) - softmax(b)."""
    a, b = 3 * jax.random.normal(KEY, (2, 50, 7))
    p, q = (np.exp(v) / np.exp(v).sum(1, keepdims=True) for v in (a, b))
    expected = (p * np.log(p / q) + q * np.log(q / p)).sum(1)
    of_both = jax.jit(distance)
    one_sided = jax.jit(functools.partial(distance, detach_targets=True))
    for of_pair in (of_both, one_sided):
        np.testing.assert_allclose(of_pair(a, b), expected, rtol=1e-3)
    np.testing.assert_allclose(of_both(a, b), of_both(b, a), rtol=1e-5)
    np.testing.assert_allclose(of_both(a, a + 5), 0, atol=1e-5)
    extreme = jnp.full((50, 7), 1e4).at[:, 1].set(-1e4)
    assert np.isfinite(of_both(extreme, -extreme)).all()
    slope, full = (jax.grad(lambda a: of(a, b).sum())(a) for of in (one_sided, of_both))  # noqa: B023
    np.testing.assert_allclose(slope, p - q, rtol=1e-4, atol=1e-5)
    assert float(jnp.abs(full - slope).max()) > 0.1


@pytest.mark.exhaustive
def test_the_loss_of_soft_masks_has_noise_in_training():
    w, batch = first_weights(TASK, CUT, KEYS.init), toys.example(12)
    loss, _ = loss_of(method(mask="soft"))
    value, _ = jax.jit(loss)(w, batch, KEY)
    out = pick(TASK, CUT, w, batch.x, KEY, batch.mask, tau=1.0, soft=True)
    noise = jax.random.logistic(jax.random.fold_in(KEY, 2), (12, 12))
    np.testing.assert_allclose(out.m, jax.nn.sigmoid(out.z_l + noise), rtol=1e-4)
    expected = losses.cross_entropy(out.a_g, batch) + losses.cross_entropy(out.a_p, batch)
    mean = functools.partial(losses.masked_mean, mask=batch.mask)
    expected += 0.001 * mean(negative_entropy(out.a_u)) + mean(distance(out.a_p, out.a_g))
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


def test_each_head_has_the_running_statistics_of_its_features():
    """They are those of the real rows of z^p for h^p, and of z^u for h^u."""
    w, batch = first_weights(TASK, CUT, KEYS.init), toys.example(12)
    out = pick(TASK, CUT, w, batch.x, KEY, batch.mask, tau=1.0)
    for name, m in (("relevant", out.m), ("irrelevant", 1 - out.m)):
        layer = w.params[name]["Dense_1"]
        z = np.asarray((out.z_g * m) @ layer["kernel"] + layer["bias"])[:10]
        running = out.stats[name]["BatchNorm_1"]
        np.testing.assert_allclose(running["mean"], 0.1 * z.mean(0), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(running["var"], 0.9 + 0.1 * z.var(0, ddof=1), rtol=1e-3)


@pytest.mark.slow
def test_gradients_of_the_total_loss_against_numpy():
    """Backpropagates through two hidden units by hand, with fixed noise and two padded rows."""
    task = make_task(nets.mlp(toys.K, width=2), (toys.D,), toys.K)
    tau, lce, ent, dis = 2.0, 3.0, 0.5, 0.7
    hyper = {"tau": tau, "lam_lce": lce, "lam_ent": ent, "lam_dis": dis}
    loss, _ = loss_of(toys.make("fedpick", task, **hyper))
    w = first_weights(task, ("head",), jax.random.key(11))
    batch = toys.example(30)
    of_params = jax.value_and_grad(lambda p: loss(Weights(p, w.stats), batch, KEY), has_aux=True)
    (value, _), gradient = jax.jit(of_params)(w.params)
    real = 28
    x, y = np.asarray(batch.x, float)[:real], np.asarray(batch.y)[:real]
    noise = np.asarray(jax.random.logistic(jax.random.fold_in(KEY, 2), (30, 2)), float)[:real]

    p = jax.tree.map(lambda a: np.asarray(a, float), w.params)
    A, a = both(p["net"]["Dense_0"])
    (V_1, v_1), (V_2, v_2) = (both(p["select"][k]) for k in ("V_1", "V_2"))
    (G, g), (P, b), (U, u) = (both(p[k]["head"]) for k in ("net", "relevant", "irrelevant"))
    before = x @ A + a
    z_g = np.maximum(before, 0)
    r = np.maximum(z_g @ V_1 + v_1, 0)
    noisy = r @ V_2 + v_2 + noise
    m, m_s = (noisy >= 0).astype(float), 1 / (1 + np.exp(-noisy / tau))
    assert 0.1 < m.mean() < 0.9
    heads = (z_g, G, g), (z_g * m, P, b), (z_g * (1 - m), U, u)
    l_g, l_p, l_u = (log_softmax(z @ K + k, 1) for z, K, k in heads)
    p_g, p_p, p_u = np.exp(l_g), np.exp(l_p), np.exp(l_u)
    rows = np.arange(real)
    kl_pg, kl_gp = (p_p * (l_p - l_g)).sum(1), (p_g * (l_g - l_p)).sum(1)
    entropy = -(p_u * l_u).sum(1)
    total = -l_g[rows, y] - lce * l_p[rows, y] - ent * entropy + dis * (kl_pg + kl_gp)
    assert float(value) == pytest.approx(total.mean(), rel=1e-5)

    Y = np.eye(toys.K)[y]
    d_g = (p_g - Y + dis * (p_g - p_p + p_g * (l_g - l_p - kl_gp[:, None]))) / real
    d_p = (lce * (p_p - Y) + dis * (p_p - p_g + p_p * (l_p - l_g - kl_pg[:, None]))) / real
    d_u = ent * p_u * (l_u + entropy[:, None]) / real
    d_zp, d_zu = d_p @ P.T, d_u @ U.T
    d_zl = z_g * (d_zp - d_zu) * m_s * (1 - m_s) / tau
    d_r = (d_zl @ V_2.T) * (r > 0)
    d_zg = d_g @ G.T + d_zp * m + d_zu * (1 - m) + d_r @ V_1.T
    d_before = d_zg * (before > 0)
    no_layer = {"kernel": None, "bias": None}
    expected = {
        "net": {"Dense_0": pair(x, d_before), "head": pair(z_g, d_g)},
        "select": {"V_1": pair(z_g, d_r), "V_2": pair(r, d_zl)},
        "relevant": {"Dense_0": no_layer, "head": pair(z_g * m, d_p)},
        "irrelevant": {"Dense_0": no_layer, "head": pair(z_g * (1 - m), d_u)},
    }
    assert np.abs(d_zl).max() > 1e-4
    toys.close(dict(gradient), expected, rtol=1e-3, atol=1e-6)


def both(layer):
    return layer["kernel"], layer["bias"]


def pair(inputs, gradient):
    return {"kernel": inputs.T @ gradient, "bias": gradient.sum(0)}


@pytest.mark.exhaustive
def test_fedpick_without_selection_is_fedbn():
    fedbn = toys.player(toys.make("fedbn", TASK), plan=toys.PLAN._replace(cohort=toys.C))
    toys.same(player(mask="none")(KEYS, 0, 3)[0], fedbn(KEYS, 0, 3)[0])


@pytest.mark.parametrize(
    "settings, shared",
    [
        ({}, lambda part, layer: part == "net" and "BatchNorm" not in layer),
        ({"share_bn": True}, lambda part, layer: part == "net"),
        ({"share_selection": True}, lambda part, layer: "BatchNorm" not in layer),
    ],
    ids=lambda value: next(iter(value), "default") if isinstance(value, dict) else "",
)
def test_which_layers_are_shared_and_sent(settings, shared):
    """By default this is the net without its norm layers; those of h^p and h^u stay private."""
    made = method(**settings)
    state = jax.eval_shape(lambda: simulate.init(made, KEYS, toys.C))
    server = set(tree.names(state.server))
    every = server | set(tree.names(state.private))
    assert server == {name for name in every if shared(*name.split("/")[1:3])}
    assert toys.bytes_of(made) == (tree.num_bytes(state.server),) * 2


@pytest.mark.slow
def test_predictions_follow_the_ensemble_setting():
    w, x = first_weights(TASK, CUT, KEYS.init), toys.FEDERATION.x[:20]
    out, soft = (pick(TASK, CUT, w, x, tau=0.5, soft=soft) for soft in (False, True))
    of_both = jax.nn.softmax(out.a_g) + jax.nn.softmax(out.a_p)
    for settings, expected in (
        ({"ensemble": "logits"}, out.a_g + out.a_p),
        ({"ensemble": "probs"}, jnp.log(of_both / 2)),
        ({"ensemble": "none"}, out.a_g),
        ({"mask": "soft", "tau": 0.5}, soft.a_g + soft.a_p),
    ):
        made = method(**settings)
        state = made.init(KEYS.init, 1)
        client = tree.take(toys.POPULATION, 0)._replace(private=tree.take(state.private, 0))
        logits = jax.jit(made.predict)(state.server, client, x)
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(out.a_p - soft.a_p).max()) > 1e-3


@pytest.mark.parametrize(
    "net, shape, head_layers, count, d",
    [
        (nets.fedbn_cnn, (32, 32, 3), 3, 120_949_726, 8192),
        (alexnet_bn, (256, 256, 3), 1, 73_928_798, 4096),
    ],
)
def test_a_client_has_the_published_number_of_parameters(net, shape, head_layers, count, d):
    task = make_task(net(10), shape, 10)
    cut = head(task, head_layers)
    w = jax.eval_shape(lambda key: first_weights(task, cut, key), KEY)
    assert sum(a.size for a in jax.tree.leaves(w.params)) == count
    assert w.params["select"]["V_1"]["kernel"].shape == (d, d // 2)
    if net is nets.fedbn_cnn:  # its parameters without those of BatchNorm are sent
        made = registry.make_method("fedpick", task, head_layers=head_layers)
        server = jax.eval_shape(lambda key: made.init(key, 2), KEY).server
        assert sum(a.size for a in jax.tree.leaves(server)) == 18_145_738


@pytest.mark.exhaustive
def test_figures_and_numbers_of_finished_runs(tmp_path, capsys):
    out, domain = tmp_path / "out", np.array(["north", "south"])[np.arange(300) % 2]
    toys.write_examples(tmp_path / "data.npz", domain=domain)
    for name in ("fedavg", "fedpick"):
        sections = {"partition": {"name": "by_domain", "num_clients": 2}, "model": {"width": 10}}
        job = toys.build(tmp_path, [3], method={"name": name}, run={"rounds": 2}, **sections)
        runner.run(job, tmp_path / name, quiet=True)
    every = {"sparsity", "fisher_probe"}
    picked = {"selection", "selection_ratio", "fisher_split", "overlap", "tsne"}
    for name, expected in (("fedavg", every), ("fedpick", every | picked)):
        argv = ["fedpick", str(tmp_path / name), f"--out={out / name}", "--head_layers=1"]
        assert figures.main(argv) == 0
        assert {p.stem for p in (out / name).glob("*.png")} == expected
    numbers = json.loads((out / "fedpick/numbers.json").read_text())
    assert set(numbers["selection_ratio"]) == {"north", "south"}
    assert set(numbers["infinite_fisher_scores"]["south"]) == {"relevant", "irrelevant"}
    assert numbers["overlap"][0][0] == 1 and 0 < numbers["overlap"][0][1] <= 1
    clients = drawing.load(tmp_path / "fedpick", None, 1)
    assert [c.name for c in clients] == ["north", "south"]
    assert set(np.unique(clients[0].picked.m)) <= {0.0, 1.0}
    np.testing.assert_allclose(clients[1].picked.z_g, clients[1].z_test, rtol=1e-5)
    assert len(clients[0].train.y) + len(clients[0].test.y) == 150
    for argv, message in (
        ([str(tmp_path)], "holds no finished run"),
        ([str(tmp_path / "fedavg"), "--seed=4"], "has no seed 4"),
        ([str(tmp_path / "fedavg"), "--head_layers=1", "--domain=nort"], "did you mean 'north'"),
    ):
        assert figures.main(["fedpick", *argv, f"--out={out}"]) == 2
        assert message in capsys.readouterr().err
