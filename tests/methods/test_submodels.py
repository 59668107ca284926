"""Compares the methods whose clients train parts of a model with formulas in plain NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS, cohort, data_of, shares
from rounds import rounds

from fedjax_lab import sampling, tree
from fedjax_lab.engine import counts, parallel
from fedjax_lab.methods import _submodels, depthfl, federated_dropout, fedrolex, fjord, heterofl
from fedjax_lab.models import nets, parts, widths
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import evaluate
from fedjax_lab.types import Batch, Client, Work

KNOWN = widths.task_widths(toys.TASK)
DEEP = make_task(nets.mlp(toys.K, width=3, depth=2), (toys.D,), toys.K)


def stacked(seed):
    """The weights of three clients."""
    shapes = jax.eval_shape(toys.TASK.init, KEYS.init)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct((3, *a.shape), a.dtype), shapes)
    return toys.random_weights(like, seed)


@pytest.mark.slow
def test_each_entry_is_averaged_over_the_clients_that_have_it():
    """The kernels and biases of both layers; entries that nobody has keep their value."""
    old, sent = toys.random_weights(jax.eval_shape(toys.TASK.init, KEYS.init), 1), stacked(2)
    share, hidden = np.array([0.5, 0.0, 0.5], np.float32), np.zeros((3, 16))
    hidden[0, :8], hidden[1], hidden[2, :4] = 1, 1, 1  # the second one's upload is lost
    units = jnp.concatenate([hidden, np.ones((3, 1 + toys.K))], 1)
    sent = jax.vmap(parts.masked, (None, 0, 0))(KNOWN, units, sent)
    total = lambda share: parts.total(KNOWN, units, old, share)  # noqa: E731
    new = _submodels.mean_of_holders(total, share, sent, old)
    axes = {("Dense_0", "kernel"): 1, ("Dense_0", "bias"): 0, ("head", "kernel"): 0}
    for (layer, leaf), axis in axes.items():
        got, was = (np.moveaxis(w.params[layer][leaf], axis, 0) for w in (new, old))
        first, _, third = (np.moveaxis(a, axis, 0) for a in sent.params[layer][leaf])
        np.testing.assert_allclose(got[:4], (first[:4] + third[:4]) / 2, rtol=1e-6)
        np.testing.assert_allclose(got[4:8], first[4:8], rtol=1e-6)
        np.testing.assert_array_equal(got[8:], was[8:])


def test_parts_of_the_methods():
    """HeteroFL's first channels, FedRolex's window of the round, and random ones of a client."""
    first = heterofl.RULE.of_group(0.3, (), 0, 0, 10)
    np.testing.assert_array_equal(np.flatnonzero(first), [0, 1, 2])
    t = jnp.int32(0)
    for _ in range(9):
        t = fedrolex.RULE.after(t)
    moved = fedrolex.RULE.of_group(0.3, t, 0, 0, 10)
    np.testing.assert_array_equal(np.flatnonzero(moved), [0, 1, 9])
    drawn = [federated_dropout.RULE.of_group(0.3, jax.random.key(0), id, 0, 100) for id in (0, 1)]
    assert [int(a.sum()) for a in drawn] == [30, 30] and (drawn[0] != drawn[1]).any()


def test_scaler_and_masked_loss():
    """The scaler divides hidden outputs by rho; logits of absent classes are 0."""
    w, batch = toys.TASK.init(KEYS.init), toys.example()
    present = jnp.array([True, False, True, True])
    value, _ = _submodels.loss_of_part(toys.TASK, jnp.float32(0.5), True, present)(w, batch, None)
    p = jax.tree.map(np.asarray, w.params)
    z = np.maximum((batch.x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]) / 0.5, 0)
    logits = np.where(present, z @ p["head"]["kernel"] + p["head"]["bias"], 0)
    errors = np.log(np.exp(logits).sum(1)) - logits[np.arange(9), batch.y]
    np.testing.assert_allclose(value, (errors * batch.mask).sum() / 7, rtol=1e-5)


def test_bytes_are_those_of_the_narrower_model():
    """A client with half of the 16 channels, and the mean over the clients' capacities."""
    method = toys.make("heterofl", toys.TASK)
    of = {
        n: tree.num_bytes(make_task(nets.mlp(4, width=n), (6,), 4).init(KEYS.init)) for n in (16, 8)
    }
    capacity = np.resize(np.float32([0, 0.5]), toys.C)
    federation = toys.FEDERATION._replace(traits={"capacity": capacity})
    absent = np.resize([0, of[16] - of[8]], toys.C)
    np.testing.assert_array_equal(method.extra.absent(federation), absent)
    lacking = counts.absent_bytes(method, [federation])
    np.testing.assert_array_equal(lacking, [[(of[16] - of[8]) / 2] * 2])
    assert not counts.absent_bytes(method, [toys.FEDERATION]).any()


def test_accuracy_by_capacity():
    accuracy = {"per_client": [80.0, 40.0, None, 60.0]}
    names = {1.0: "1", 0.5: "0.5", 0.25: "0.25"}
    levels = evaluate.by_group(accuracy, np.array([0.5, 1, 1, 0.5, 0.25], np.float32), names)
    assert levels == {"1": 40.0, "0.5": 70.0} and [*levels] == ["1", "0.5"]
    assert evaluate.by_group(accuracy, None, names) == {}


def test_fjord_has_the_largest_width_up_to_the_capacity():
    nested = fjord.Nested(KNOWN, lambda name: False, (0.2, 0.6, 1.0))
    assert [int(fjord.index(nested, jnp.float32(c))) for c in (0.1, 0.2, 0.6, 0.9, 1)] == [
        0,
        0,
        1,
        1,
        2,
    ]
    assert fjord.part(nested, 1)[:16].sum() == 10


def test_loss_of_fjord():
    """The cross-entropies of the wide model, and of the narrow one with the wide one's softmax."""
    logits = toys.normal(0, 2, 9, toys.K)  # of two widths
    batch = toys.example()

    def apply(w, q, x, key, mask):
        return toys.TASK.apply(w, x, key, mask)._replace(logits=logits[q])

    w, key = toys.TASK.init(KEYS.init), jax.random.key(0)
    q = int(jax.random.randint(jax.random.fold_in(key, 1), (), 0, 2))
    value, _ = fjord.loss_of_widths(toys.TASK, apply, 1, True, w, batch, key)
    log = np.asarray(jax.nn.log_softmax(logits))
    of_labels = -log[1][np.arange(9), batch.y]
    of_wide = -(np.exp(log[1]) * log[q]).sum(1)
    np.testing.assert_allclose(value, ((of_labels + of_wide) * batch.mask).sum() / 7, rtol=1e-5)


def test_loss_of_depthfl():
    """Cross-entropies of the first two of three classifiers, and their divergences."""
    z, batch = toys.normal(1, 3, 9, toys.K), toys.example()
    value, _ = depthfl.loss_of_classifiers(
        toys.TASK, lambda *_: (z, None), jnp.float32(2), 0.3, None, batch, None
    )
    log = np.asarray(jax.nn.log_softmax(z))
    expected = -sum(log[j][np.arange(9), batch.y] for j in (0, 1))
    for j, other in ((0, 1), (1, 0)):
        expected = expected + 0.3 * (np.exp(log[other]) * (log[other] - log[j])).sum(1)
    np.testing.assert_allclose(value, (expected * batch.mask).sum() / 7, rtol=1e-5)
    assert np.isclose(depthfl.ramp(0), np.exp(-5)) and depthfl.ramp(300) == depthfl.ramp(900) == 1


def test_blocks_and_classifiers_of_depthfl():
    exits = depthfl.exits_of(DEEP, ())
    assert exits == ("Dense_1",)
    w = depthfl.with_classifiers(DEEP, exits, KEYS.init)
    z, out = depthfl.outputs(DEEP, exits, w, toys.FEDERATION.x[:5])
    side = w.params[depthfl.SIDE]["0"]
    h = np.maximum(
        toys.FEDERATION.x[:5] @ w.params["Dense_0"]["kernel"] + w.params["Dense_0"]["bias"], 0
    )
    np.testing.assert_allclose(z[0], h @ side["kernel"] + side["bias"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(z[1], out.logits)
    has = tree.by_name(depthfl.has_leaf(DEEP, exits, 1, w))
    assert {name.split("/")[1] for name, kept in has.items() if kept} == {"Dense_0", depthfl.SIDE}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "federated_dropout", "depthfl"])
def test_with_all_capacities_1_they_are_fedavg_with_uniform_weights(name):
    """Bit for bit, with the scaler."""
    plain = toys.make("fedavg", toys.TASK)._replace(sample=sampling.equal)
    federation = toys.FEDERATION._replace(traits={"capacity": np.ones(toys.C, np.float32)})
    settings = {} if name == "depthfl" else {"scaler": True}
    after = rounds(toys.make(name, toys.TASK, **settings), 2, federation=federation).server
    toys.same(after[0], rounds(plain, 2, federation=federation).server)


def test_levels_are_drawn_in_their_shares():
    """1/2 is drawn twice as often as 1."""

    def drawn(key):
        return _submodels.drawn((1.0, 0.5, 0.5), Work(*[None] * 5, upload_key=lambda: key))

    rho = jax.vmap(drawn)(jax.random.split(jax.random.key(0), 3000))
    assert abs(float(jnp.mean(rho == 0.5)) - 2 / 3) < 0.03 and {*rho.tolist()} == {0.5, 1.0}


NORMS = make_task(nets.mlp(toys.K, width=4, depth=2, norm=True), (toys.D,), toys.K)


def normalized(w, stats, x, k):
    """The statistics of x in a net of k channels, and the features.

    stats: those with which it normalizes, by layer; None: those of x.
    """
    p, of_x = jax.tree.map(np.asarray, w.params), {}
    for i in (0, 1):
        dense, norm, name = p[f"Dense_{i}"], p[f"BatchNorm_{i}"], f"BatchNorm_{i}"
        x = x @ dense["kernel"][: x.shape[1], :k] + dense["bias"][:k]
        of_x[name] = {"mean": x.mean(0), "var": x.var(0, ddof=1)}
        var = x.var(0) if stats is None else stats[name]["var"][:k]
        mean = (of_x if stats is None else stats)[name]["mean"][:k]
        x = np.maximum((x - mean) / np.sqrt(var + 1e-5) * norm["scale"][:k] + norm["bias"][:k], 0)
    return of_x, x


def averaged(w, weight, rows, k):
    """The mean over clients, with these weights, of the statistics of their rows [M][N, D]."""
    of_clients = [normalized(w, None, x, k)[0] for x in rows]
    return jax.tree.map(lambda *each: weight @ np.stack(each), *of_clients)


def test_static_norm_keeps_the_mean_of_the_statistics_of_clients_for_each_level():
    """Of parts of two and of four channels; a client is scored with those of its level."""
    method = heterofl.heterofl(NORMS._replace(levels=(0.5,)), static_norm=True)
    (_, exchange), w = method.round, toys.random_weights(jax.eval_shape(NORMS.init, KEYS.init))
    rows, n = np.asarray(toys.FEDERATION.x[:30]).reshape(3, 10, -1), np.float32([1, 3, 6])
    client = Client(0, n, None, None, (), None, None, traits={"capacity": jnp.float32(0.5)})

    @jax.jit
    def measured(x):
        batch = Batch(x, None, jnp.ones(len(x)))
        work = Work(None, lambda fn: fn(batch), None, 0, None, upload_key=lambda: KEYS.local)
        return exchange.local((w._replace(stats={}), ()), client, work)[0]

    before = w._replace(stats=tree.repeat(w.stats, 2)), ()
    uploads = jax.tree.map(lambda *each: np.stack(each), *map(measured, rows))
    server, predict = exchange.aggregate(before, uploads, client), jax.jit(method.predict)
    head = jax.tree.map(np.asarray, w.params["head"])
    for level, k in enumerate((2, 4)):
        stats = averaged(w, n / 10, rows, k)
        got = tree.by_name(tree.take(server[0].stats, level))
        for name, expected in tree.by_name(stats).items():
            np.testing.assert_allclose(got[name], np.pad(expected, (0, 4 - k)), atol=1e-4)
        logits = normalized(w, stats, rows[0], k)[1] @ head["kernel"][:k] + head["bias"]
        one = client._replace(traits={"capacity": jnp.float32(k / 4)})
        np.testing.assert_allclose(predict(server, one, rows[0]), logits, atol=1e-4)
    others = normalized(w, averaged(w, n / 10, rows, 4), rows[0], 2)[1]  # statistics of the whole
    assert np.abs(others - normalized(w, averaged(w, n / 10, rows, 2), rows[0], 2)[1]).max() > 0.1


def test_static_norm_needs_a_batch_norm():
    error = complaint(heterofl.heterofl, toys.TASK, static_norm=True)
    assert "static_norm=True: it needs a model with BatchNorm" in error


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_rounds_with_static_norm(name):
    """The statistics are those of the cohort's rows with the new weights, which do not use them."""
    federation = toys.FEDERATION._replace(traits={"capacity": np.ones(toys.C, np.float32)})
    method = toys.make(name, NORMS, static_norm=True)
    w, _ = rounds(method, 1, federation=federation).server
    ids = cohort(method, 0)
    toys.close(tree.take(w.stats, 0), averaged(w, shares(ids), [data_of(i)[0] for i in ids], 4))
    up, down = toys.bytes_of(method)
    shapes = jax.eval_shape(NORMS.init, KEYS.init)
    params, stats = tree.num_bytes(shapes.params), tree.num_bytes(shapes.stats)
    rolex = 4 * (name == "fedrolex")  # the number of the round
    assert (up, down) == (params + 4 + stats, 2 * (params + rolex))


@pytest.mark.slow
def test_clients_choose_their_model_one_by_one_and_the_whole_together():
    rates, levels = jnp.array([0.25, 0.5, 1.0, 0.3]), (0.25, 0.5)
    of = functools.partial(_submodels.place, levels=levels)
    np.testing.assert_array_equal(jax.lax.map(of, rates), [1, 2, 0, 0])
    np.testing.assert_array_equal(jax.vmap(of)(rates), [0, 0, 0, 0])
    assert _submodels.place(rates[0], ()) == 0


@pytest.mark.slow
def test_drawn_levels_replace_the_capacities():
    federation = toys.FEDERATION._replace(traits={"capacity": np.full(toys.C, 0.25, np.float32)})
    task = toys.TASK._replace(levels=(0.5,))
    method = toys.make("heterofl", task, dynamic=True)
    first = task.init(KEYS.init).params["Dense_0"]["kernel"]
    w, _ = rounds(method, 2, federation=federation).server
    changed = (w.params["Dense_0"]["kernel"] != first).all(0)
    np.testing.assert_array_equal(changed, np.arange(16) < 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heterofl", "federated_dropout"])
def test_narrower_programs_train_what_masked_weights_train(name):
    """A client after another; two of four levels have programs of their own."""
    levels = np.array([1, 0.5, 0.25, 0.3, 0.5, 0.25, 1, 0.5], np.float32)
    federation = toys.FEDERATION._replace(traits={"capacity": levels})

    def after(task):
        player = toys.player(
            toys.make(name, task, masked_loss=True), parallel.sequential(), federation=federation
        )
        return player(KEYS, 0, 2)[0].server[0]

    task = toys.TASK._replace(levels=(0.25, 0.5, 1.0))
    assert parts.levels(task) == (0.25, 0.5)
    toys.close(after(task), after(toys.TASK))


@pytest.mark.slow
def test_fjord_with_one_width_is_fedavg():
    after = rounds(toys.make("fjord", toys.TASK, widths=(1.0,)), 2).server
    toys.close(after, rounds(toys.make("fedavg", toys.TASK), 2).server)


@pytest.mark.slow
def test_channels_that_nobody_trains_do_not_change():
    federation = toys.FEDERATION._replace(traits={"capacity": np.full(toys.C, 0.25, np.float32)})
    first = toys.TASK.init(KEYS.init).params["Dense_0"]["kernel"]
    w, _ = rounds(toys.make("heterofl", toys.TASK), 2, federation=federation).server
    np.testing.assert_array_equal(w.params["Dense_0"]["kernel"][:, 4:], first[:, 4:])
    assert (w.params["Dense_0"]["kernel"][:, :4] != first[:, :4]).all()


def test_transforms_that_replace_all_updates_by_one_are_refused(tmp_path):
    """They would add updates of numbers that a client does not have."""
    sections = {"method": {"name": "heterofl"}, "aggregator": {"name": "median"}}
    error = complaint(toys.build, tmp_path, partition={"capacity": (1.0, 0.5)}, **sections)
    assert "its clients update models of their own" in error


@pytest.mark.parametrize(
    "capacity, words",
    [((2.0,), "above 0 and at most 1, got 2.0"), ((0.5,) * 7, "has 7 numbers, but there are 6")],
)
def test_wrong_capacities_are_refused(tmp_path, capacity, words):
    assert words in complaint(toys.build, tmp_path, partition={"capacity": capacity})


def test_capacities_are_dealt_by_seed(tmp_path):
    """In the clients' order if there is one for each, and else at random."""
    levels = (1.0, 0.5, 0.25, 0.25, 0.5, 1.0)
    (listed,) = toys.build(tmp_path, partition={"capacity": levels}).simulation.seeds
    np.testing.assert_array_equal(listed.federation.traits["capacity"], np.float32(levels))
    dealt = toys.build(tmp_path, (0, 1), partition={"capacity": (1.0, 0.5)}).simulation.seeds
    first, second = (seed.federation.traits["capacity"] for seed in dealt)
    assert [sorted(first), sorted(second)] == [[0.5] * 3 + [1.0] * 3] * 2
    assert (first != second).any()
