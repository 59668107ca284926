"""FedAvgM, FedOpt, SCAFFOLD, FedNova, FedDyn, MOON, FedLC, FedRS: identities, then naive NumPy."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, losses, optim, simulate, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.feddyn import Server
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task, with_projection
from fedjax_lab.types import Weights

KEYS = naive.KEYS
PLAIN = naive.FULL._replace(optimizer=optim.sgd(naive.LR, 0.0, naive.DECAY))


@functools.cache
def averaged(skewed=False):
    """FedAvg after three rounds."""
    federation = toys.SKEWED if skewed else toys.FEDERATION
    return toys.player(toys.make("fedavg"), federation=federation)(KEYS, 0, 3)


# Identities.


def test_moon_without_mu_is_fedavg():
    state, sums = toys.player(toys.make("moon", mu=0.0))(KEYS, 0, 3)
    toys.same((state.server, sums), (averaged()[0].server, averaged()[1]))


@pytest.mark.parametrize("name, hyper", [("fedlc", {"tau": 0.0}), ("fedrs", {"alpha": 1.0})])
def test_a_neutral_softmax_is_fedavg(name, hyper):
    method = toys.make(name, **hyper)
    toys.same(toys.player(method, federation=toys.SKEWED)(KEYS, 0, 3), averaged(True))


def test_fedavgm_without_momentum_is_fedavg():
    state, _ = toys.player(toys.make("fedavgm", beta=0.0))(KEYS, 0, 3)
    toys.close(state.server[0], averaged()[0].server, rtol=1e-5, atol=1e-6)


def test_scaffold_starts_as_fedavg():
    """All control variates are zero in the first round: bit for bit."""
    one, _ = toys.player(toys.make("scaffold"))(KEYS, 0, 1)
    other, _ = toys.player(toys.make("fedavg"))(KEYS, 0, 1)
    toys.same(one.server[0], other.server)


def test_a_client_of_scaffold_divides_by_its_own_steps():
    """Alone in the first round: what it trained to is the server's model."""
    plan = toys.PLAN._replace(cohort=1, optimizer=optim.sgd(0.05))
    method = toys.make("scaffold")
    state, _ = toys.player(method, plan=plan)(KEYS, 0, 1)
    w_0 = simulate.init(method, KEYS, toys.C).server[0]
    (i,) = np.flatnonzero(np.abs(state.private["head"]["kernel"]).sum((1, 2)))
    own, most = (plan.epochs * -(-int(n) // plan.batch_size) for n in (toys.PEOPLE.n[i], toys.N))
    assert own < most
    drift = tree.scale(1 / (own * 0.05), tree.sub(w_0.params, state.server[0].params))
    toys.close(tree.take(state.private, i), drift, rtol=1e-3)


def test_fednova_with_equal_steps_is_fedavg():
    one, _ = toys.player(toys.make("fednova"), plan=naive.FULL)(KEYS, 0, 3)
    other, _ = toys.player(toys.make("fedavg"), plan=naive.FULL)(KEYS, 0, 3)
    toys.close(one.server, other.server, rtol=1e-5, atol=1e-6)


def test_fednova_with_unequal_steps_is_not():
    play = toys.player(toys.make("fednova"))
    far = tree.sub(play(KEYS, 0, 3)[0].server.params, averaged()[0].server.params)
    assert float(tree.sq_norm(far)) > 1e-4
    first, _ = toys.player(toys.make("fedavg"))(KEYS, 0, 1)
    toys.close(play(KEYS, 0, 1)[0].server.stats, first.server.stats, rtol=1e-6)  # by size


def test_the_mean_of_scaffolds_control_variates_is_the_servers():
    """After every round, with five of eight clients a round."""
    play = toys.player(toys.make("scaffold"))
    state = None
    for t in range(5):
        state, _ = play(KEYS, t, 1, state)
        mean = jax.tree.map(lambda a: a.mean(0), state.private)
        toys.close(mean, state.server[1], rtol=1e-4, atol=1e-6)
    assert float(tree.sq_norm(mean)) > 1e-3


@pytest.mark.parametrize(
    "name, hyper", [("fedavgm", {}), ("fedopt", {}), ("scaffold", {"server_lr": 0.5})]
)
def test_running_statistics_take_the_plain_mean_by_size(name, hyper):
    """Also in a second round, where the server has momentum. Clients train there as FedAvg's do."""
    method = toys.make(name, **hyper)
    play = toys.player(method)
    state, _ = play(KEYS, 0, 1)
    if name == "scaffold":  # without control variates
        zero = jax.tree.map(jnp.zeros_like, (state.server[1], state.private))
        state = state._replace(server=(state.server[0], zero[0]), private=zero[1])
    plain = simulate.State(state.server[0], ())
    plain, _ = toys.player(toys.make("fedavg"))(KEYS, 1, 1, plain)
    state, _ = play(KEYS, 1, 1, state)
    toys.same(state.server[0].stats, plain.server.stats)
    far = tree.sub(state.server[0].params, plain.server.params)
    assert float(tree.sq_norm(far)) > 1e-3


# Naive NumPy, three of eight unequal clients a round.


@pytest.mark.parametrize(
    "momentum, steps, expected",
    [(0.0, 7, 7.0), (0.9, 1, 1.0), (0.9, 5, (5 - 0.9 * (1 - 0.9**5) / 0.1) / 0.1)],
)
def test_reach(momentum, steps, expected):
    """FedNova's a_i times the learning rate; weight decay has no part in it."""
    reach = jax.jit(lambda k: optim.reach(optim.sgd(0.3, momentum, 0.1), k))
    assert float(reach(steps)) == pytest.approx(0.3 * expected, rel=1e-5)
    adam = optim.reach(optim.adam(0.3, 0.1), steps)
    assert float(adam) == pytest.approx(0.3 * steps, rel=1e-5)


def rounds(method, count, plan=naive.FULL, federation=toys.FEDERATION):
    """The state after `count` rounds."""
    return toys.player(method, plan=plan, federation=federation)(KEYS, 0, count)[0]


def averaged_by_hand(method, t, w):
    """FedAvg's mean in round t for the sent weights w."""
    ids = naive.cohort(method, t)
    return naive.mean_by_size(ids, [naive.sgd(w, *naive.data_of(i)) for i in ids])


def test_fedavgm_against_numpy():
    method = toys.make("fedavgm", toys.TASK, beta=0.7)
    w, v = naive.first_weights(), [0.0] * 4
    for t in range(3):
        v = naive.add(naive.sub(w, averaged_by_hand(method, t, w)), v, 0.7)
        w = naive.sub(w, v)
    naive.close(rounds(method, 3).server[0], w)


@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
def test_fedopt_against_numpy(rule):
    lr, b1, b2, tau = 0.05, 0.8, 0.95, 0.01
    method = toys.make(
        "fedopt", toys.TASK, server_optimizer=rule, server_lr=lr, beta1=b1, beta2=b2, tau=tau
    )
    start = {"adam": 0.0, "yogi": 1e-6, "adagrad": tau**2}[rule]  # optax's for Yogi
    w = naive.first_weights()
    m = [np.full_like(a, -start) for a in w]  # optax's starts for the gradient, -step
    v = [np.full_like(a, start) for a in w]
    for t in range(3):
        step = naive.sub(averaged_by_hand(method, t, w), w)
        if rule == "adagrad":
            v = [a + d * d for a, d in zip(v, step, strict=True)]
            w = [a + lr * d / np.sqrt(s) for a, d, s in zip(w, step, v, strict=True)]
            continue
        if rule == "adam":
            v = [b2 * a + (1 - b2) * d * d for a, d in zip(v, step, strict=True)]
        else:
            v = [a - (1 - b2) * np.sign(a - d * d) * d * d for a, d in zip(v, step, strict=True)]
        m = [b1 * a + (1 - b1) * d for a, d in zip(m, step, strict=True)]
        k1, k2 = 1 - b1 ** (t + 1), 1 - b2 ** (t + 1)
        w = [a + lr * (c / k1) / (np.sqrt(s / k2) + tau) for a, c, s in zip(w, m, v, strict=True)]
    naive.close(rounds(method, 3).server[0], w, rtol=1e-3, atol=1e-4)


def test_fedopt_rejects_an_unknown_rule():
    with pytest.raises(BadInput, match="server_optimizer cannot be 'adan'; did you mean 'adam'"):
        toys.make("fedopt", server_optimizer="adan")


@pytest.mark.parametrize("momentum, server_lr", [(0.0, 1.0), (naive.MOMENTUM, 0.5)])
def test_scaffold_against_numpy(momentum, server_lr):
    method = toys.make("scaffold", toys.TASK, server_lr=server_lr)
    w = naive.first_weights()
    c = [np.zeros_like(a) for a in w]
    c_i = {i: c for i in range(toys.C)}
    for t in range(4):
        ids = naive.cohort(method, t)
        models, changes = [], []
        for i in ids:
            fix = naive.sub(c, c_i[i])
            y = naive.sgd(w, *naive.data_of(i), lambda v, fix=fix: fix, momentum=momentum)
            K = naive.STEPS
            far = (K - momentum * (1 - momentum**K) / (1 - momentum)) / (1 - momentum)
            new = naive.add(naive.sub(c_i[i], c), naive.sub(w, y), 1 / (naive.LR * far))
            changes.append(naive.sub(new, c_i[i]))
            c_i[i] = new
            models.append(y)
        w = naive.add(w, naive.sub(naive.mean_by_size(ids, models), w), server_lr)
        c = naive.add(c, naive.mean(np.full(len(ids), 1 / toys.C), changes))
    plan = PLAIN if momentum == 0 else naive.FULL
    state = rounds(method, 4, plan)
    naive.close(state.server[0], w, rtol=1e-3)
    naive.close(Weights(state.server[1], {}), c, rtol=1e-3, atol=1e-4)
    for i in range(toys.C):
        mine = tree.take(state.private, i)
        naive.close(Weights(mine, {}), c_i[i], rtol=1e-3, atol=1e-4)


def test_fednova_against_numpy():
    """Clients of unequally many batches; what each one trains to is taken from FedAvg."""
    plan = naive.FULL._replace(batch_size=10, epochs=2, optimizer=optim.sgd(0.1, 0.9))
    method, plain = toys.make("fednova", toys.TASK), toys.make("fedavg", toys.TASK)
    w = naive.first_weights()
    ids = naive.cohort(method, 0)
    n = np.array([len(naive.data_of(i)[1]) for i in ids])
    tau = 2 * -(-n // 10)
    assert len(set(tau)) > 1
    p, a = n / n.sum(), (tau - 0.9 * (1 - 0.9**tau) / 0.1) / 0.1
    # What FedAvg gives when the others hold nothing.
    models = []
    for i in ids:
        alone = np.asarray(toys.FEDERATION.train).copy()
        alone[[j for j in ids if j != i]] = -1
        federation = toys.FEDERATION._replace(train=jnp.asarray(alone))
        models.append(naive.weights_of(rounds(plain, 1, plan, federation).server))
    d = [[x / ai for x in naive.sub(w, m)] for m, ai in zip(models, a, strict=True)]
    expected = naive.add(w, naive.mean(p, d), -float(p @ a))
    naive.close(rounds(method, 1, plan).server, expected)


def feddyn_as_in_the_authors_code(method, count, alpha, clip, w):
    """g_i = -l_i / alpha and a mean over all g_i in place of h. -> cloud, participants' mean."""
    n = np.array([len(naive.data_of(i)[1]) for i in range(toys.C)])
    g = [[np.zeros_like(a) for a in w] for _ in n]
    cloud = w
    for t in range(count):
        ids = naive.cohort(method, t)
        models = []
        for i in ids:
            alpha_i = alpha * n.mean() / n[i]
            x = [a.copy() for a in cloud]
            for _ in range(naive.STEPS):
                _, grad = naive.gradient(x, *naive.data_of(i))
                grad = naive.add(grad, naive.sub(g[i], cloud), alpha_i)
                norm = np.sqrt(sum((a * a).sum() for a in grad))
                grad = [a * min(1, clip / norm) for a in grad]
                x = naive.add(x, naive.add(grad, x, alpha_i + naive.DECAY), -naive.LR)
            g[i] = naive.add(g[i], naive.sub(x, cloud))
            models.append(x)
        mean = naive.mean(np.full(len(ids), 1 / len(ids)), models)
        cloud = naive.add(mean, naive.mean(np.full(toys.C, 1 / toys.C), g))
    return cloud, mean


@pytest.mark.parametrize("clip", [10.0, 0.4])
def test_feddyn_against_the_authors_form(clip):
    """50 rounds, three of eight clients: the two forms have the same iterates."""
    method = toys.make("feddyn", toys.TASK, alpha=0.1, clip=clip)
    cloud, mean = feddyn_as_in_the_authors_code(method, 50, 0.1, clip, naive.first_weights())
    state = rounds(method, 50, PLAIN)
    naive.close(state.server.theta, cloud, rtol=1e-3, atol=1e-3)
    naive.close(state.server.mean, mean, rtol=1e-3, atol=1e-3)
    assert float(tree.sq_norm(state.server.h)) > 1e-6


def test_feddyn_is_scored_on_the_participants_mean():
    """Neither a client nor a newcomer is scored on the cloud model, which is what is sent."""
    method = toys.make("feddyn", toys.TASK)
    state = simulate.init(method, KEYS, toys.C)
    theta = toys.TASK.init(jax.random.key(9))
    state = state._replace(server=state.server._replace(theta=theta))
    score = functools.partial(evaluate.score, method, toys.PLAN, toys.VECTORISED)
    scores = jax.jit(score)(toys.FEDERATION, toys.PEOPLE, KEYS, state, 0)

    def right(w, rows):
        x, y = (np.asarray(a)[np.asarray(rows)] for a in toys.FEDERATION[:2])
        return int((naive.predict(naive.weights_of(w), x) == y).sum())

    mean, world = state.server.mean, toys.FEDERATION.world
    assert int(scores.world.right.sum()) == right(mean, world) != right(theta, world)
    assert int(scores.test.right[3, 0]) == right(mean, toys.FEDERATION.test[3])


def test_feddyn_averages_running_statistics_by_size():
    method = toys.make("feddyn")
    w = tree.repeat(toys.NORM.init(KEYS.init), 3)
    value = jnp.array([1.0, 2.0, 3.0])
    w = jax.tree.map(lambda a: a * 0 + value.reshape(-1, *[1] * (a.ndim - 1)), w)
    n = jnp.array([10.0, 20.0, 70.0])
    people = tree.take(toys.PEOPLE, jnp.arange(3))._replace(n=n, weight=jnp.full(3, 1 / 3))
    server = simulate.init(method, KEYS, toys.C).server
    new: Server = method.round[0].aggregate(server, w, people)
    np.testing.assert_allclose(new.mean.params["head"]["bias"], 2.0, rtol=1e-6)
    np.testing.assert_allclose(new.mean.stats["BatchNorm_0"]["var"], 2.6, rtol=1e-6)
    np.testing.assert_allclose(new.theta.stats["BatchNorm_0"]["var"], 2.6, rtol=1e-6)


def skewed_rounds(method, count, gradient_of):
    """Rounds of a FedAvg whose clients descend gradient_of(i, w, x, y), on skewed classes."""
    w = naive.first_weights()
    for t in range(count):
        ids = naive.cohort(method, t)
        data = [naive.data_of(i, toys.SKEWED) for i in ids]
        models = [
            naive.descend(w, lambda v, i=i, xy=xy: gradient_of(i, v, *xy)[1])
            for i, xy in zip(ids, data, strict=True)
        ]
        w = naive.mean_by_size(ids, models, toys.SKEWED)
    return w


def test_fedlc_against_numpy():
    def gradient_of(i, w, x, y):
        return naive.gradient(w, x, y, shift=0.6 * np.maximum(naive.counts(i), 1e-8) ** -0.25)

    method = toys.make("fedlc", toys.TASK, tau=0.6)
    expected = skewed_rounds(method, 2, gradient_of)
    assert min(naive.counts(i).min() for i in naive.cohort(method, 0)) == 0
    naive.close(rounds(method, 2, federation=toys.SKEWED).server, expected)


def test_fedlc_may_leave_the_true_class_out_of_its_denominator():
    """-o_y + log sum_{c != y} exp o_c of calibrated logits, whose gradient is by hand."""

    def gradient_of(i, w, x, y):
        A, a, B, b = w
        z = naive.features(w, x)
        o = z @ B + b - 0.6 * np.maximum(naive.counts(i), 1e-8) ** -0.25
        p = np.exp(o)
        p[np.arange(len(y)), y] = 0
        d = (p / p.sum(1, keepdims=True) - np.eye(toys.K)[y]) / len(y)
        dz = (d @ B.T) * (z > 0)
        return None, [x.T @ dz, dz.sum(0), z.T @ d, d.sum(0)]

    method = toys.make("fedlc", toys.TASK, tau=0.6, exclude_true=True)
    expected = skewed_rounds(method, 2, gradient_of)
    naive.close(rounds(method, 2, federation=toys.SKEWED).server, expected)


@pytest.mark.parametrize("continuous", [False, True])
def test_fedrs_against_numpy(continuous):
    def gradient_of(i, w, x, y):
        n = naive.counts(i)
        scale = 0.7 * n / n.max() + 0.3 if continuous else np.where(n > 0, 1.0, 0.3)
        return naive.gradient(w, x, y, scale=scale)

    method = toys.make("fedrs", toys.TASK, alpha=0.3, continuous=continuous)
    expected = skewed_rounds(method, 2, gradient_of)
    naive.close(rounds(method, 2, federation=toys.SKEWED).server, expected)


class NoBias(nn.Module):
    """A linear model whose head has no bias, as in FedRS's code."""

    @nn.compact
    def __call__(self, x, train=False, mask=None):
        return nn.Dense(toys.K, use_bias=False, name="head")(x), x


def test_fedrs_without_a_bias():
    task = make_task(NoBias(), (toys.D,), toys.K)
    method = toys.make("fedrs", task, alpha=0.3)
    w = np.asarray(simulate.init(method, KEYS, toys.C).server.params["head"]["kernel"])
    ids, models = naive.cohort(method, 0), []
    for i in ids:
        x, y = naive.data_of(i, toys.SKEWED)
        scale = np.where(naive.counts(i) > 0, 1.0, 0.3)
        p = np.exp(scale * (x @ w))
        p = p / p.sum(1, keepdims=True)
        models.append(w - 0.1 * x.T @ ((p - np.eye(toys.K)[y]) / len(y) * scale))
    plan = naive.FULL._replace(epochs=1, optimizer=optim.sgd(0.1))
    state = rounds(method, 1, plan, toys.SKEWED)
    expected = np.tensordot(naive.shares(ids, toys.SKEWED), np.stack(models), 1)
    np.testing.assert_allclose(
        state.server.params["head"]["kernel"], expected, rtol=1e-4, atol=1e-5
    )


def cosine_and_gradient(z, a):
    """Cosine of each row, and its gradient with respect to z."""
    nz, na = (np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-8) for v in (z, a))
    cos = (z * a).sum(1, keepdims=True) / (nz * na)
    return cos, a / (nz * na) - cos * z / nz**2


def test_moon_against_numpy():
    """Five rounds, so that clients come back: the term waits for a first local model."""
    mu, tau = 1.5, 0.5
    method = toys.make("moon", toys.TASK, mu=mu, tau=tau)
    w, last, again = naive.first_weights(), {}, 0
    for t in range(5):
        ids = naive.cohort(method, t)
        models = []
        for i in ids:
            x, y = naive.data_of(i)
            glob = naive.features(w, x)

            def pull(z, i=i, x=x, glob=glob):
                if i not in last:
                    return 0.0
                s_glob, d_glob = cosine_and_gradient(z, glob)
                s_prev, d_prev = cosine_and_gradient(z, naive.features(last[i], x))
                e_glob, e_prev = np.exp(s_glob / tau), np.exp(s_prev / tau)
                return mu * e_prev / (e_glob + e_prev) * (d_prev - d_glob) / tau / len(z)

            step = lambda v, x=x, y=y, pull=pull: naive.gradient(v, x, y, pull=pull)[1]  # noqa: E731
            models.append(naive.descend(w, step))
        again += sum(i in last for i in ids)
        last.update(zip(ids, models, strict=True))
        w = naive.mean_by_size(ids, models)
    assert again > 2
    state = rounds(method, 5)
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    previous, seen = state.private
    assert sorted(np.flatnonzero(seen)) == sorted(last)
    for i, expected in last.items():
        mine = tree.take(previous, i)
        naive.close(mine, expected, rtol=1e-3, atol=1e-4)


def test_moons_references_run_in_evaluation_mode():
    """Their running statistics matter; with those of the batch they would not."""
    method = toys.make("moon", mu=5.0)
    play = toys.player(method)
    state, _ = play(KEYS, 0, 3)

    def moved(w):
        return w._replace(stats=jax.tree.map(lambda a: a + 3.0, w.stats))

    previous, seen = state.private
    plain = play(KEYS, 3, 1, state)[0].server.params
    for other in (
        state._replace(server=moved(state.server)),
        state._replace(private=(moved(previous), seen)),
    ):
        far = tree.sub(play(KEYS, 3, 1, other)[0].server.params, plain)
        assert float(tree.sq_norm(far)) > 1e-8


def test_cosine_is_finite_at_zero():
    a, b = jnp.zeros((2, 3)), jnp.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(losses.cosine(b, 2 * b), [1.0, 0.0], rtol=1e-6)
    grads = jax.grad(lambda z: losses.cosine(z, b).sum())(a)
    assert np.isfinite(grads).all()


def test_moons_projection_is_part_of_the_model():
    task = make_task(nets.simple_cnn(10), (28, 28, 1), 10)
    shapes = jax.eval_shape(with_projection(task, 256).init, jax.random.key(0)).params
    sizes = {name: sum(a.size for a in jax.tree.leaves(p)) for name, p in shapes.items()}
    assert sizes["projection_0"] == 7_140 and sizes["projection_1"] == 21_760
    assert sizes["head"] == 2_570
    assert sum(sizes.values()) == 43_576 + 7_140 + 21_760 + 2_570
    projected = with_projection(task, 256)
    assert projected.dense == ("Dense_0", "Dense_1", "projection_0", "projection_1", "head")
    assert projected.layers == ("Conv_0", "Conv_1", *projected.dense)


def test_the_projection_against_numpy():
    task = with_projection(toys.TASK, 5)
    w = task.init(jax.random.key(1))
    x, _ = naive.data_of(0)
    p = jax.tree.map(np.asarray, w.params)
    h = np.maximum(x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"], 0)
    z = np.maximum(h @ p["projection_0"]["kernel"] + p["projection_0"]["bias"], 0)
    z = z @ p["projection_1"]["kernel"] + p["projection_1"]["bias"]
    out = task.apply(w, x, jax.random.key(2), np.ones(len(x)))
    np.testing.assert_allclose(out.features, z, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        out.logits, z @ p["head"]["kernel"] + p["head"]["bias"], rtol=1e-4, atol=1e-5
    )


def test_moon_with_a_projection_trains_it():
    method = toys.make("moon", projection="mlp256")
    state, _ = toys.player(method)(KEYS, 0, 2)
    first = simulate.init(method, KEYS, toys.C).server.params
    for name, leaves in tree.sub(state.server.params, first).items():
        assert float(tree.sq_norm(leaves)) > 0, name
    with pytest.raises(BadInput, match="projection cannot be 'mlp'; did you mean 'mlp256'"):
        toys.make("moon", projection="mlp")
