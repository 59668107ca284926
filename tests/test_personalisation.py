"""FedPer, FedRep, LG-FedAvg, FedBN, FedRoD, FedProto, fine-tuning: identities, then naive NumPy."""

import functools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, experiment, simulate, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.local import make_work
from fedjax_lab.models import cct, nets
from fedjax_lab.models.task import make_task

KEYS = naive.KEYS


@functools.cache
def averaged():
    """FedAvg after three rounds."""
    return toys.player(toys.make("fedavg"))(KEYS, 0, 3)


def moved(a, b):
    return float(tree.sq_norm(tree.sub(a, b))) > 1e-8


# Identities.


def test_lg_fedavg_that_only_pretrains_is_fedavg():
    stages = experiment.lay_out(toys.make("lg_fedavg", pretrain_rounds=3), 3)
    assert [stage.rounds for stage in stages] == [3]
    toys.same(toys.player(stages[0].method)(KEYS, 0, 3), averaged())


def test_fedrod_with_equal_counts_trains_the_generic_model_as_fedavg():
    """log n_i is then a constant: the generic loss is the cross-entropy."""
    rng = np.random.default_rng(0)
    y = np.asarray(toys.FEDERATION.y[:400])
    rows = [rng.choice(np.flatnonzero(y == k), (toys.C, 5)) for k in range(toys.K)]
    federation = toys.FEDERATION._replace(train=jnp.asarray(np.concatenate(rows, 1)))
    one, _ = toys.player(toys.make("fedrod"), federation=federation)(KEYS, 0, 3)
    other, _ = toys.player(toys.make("fedavg"), federation=federation)(KEYS, 0, 3)
    toys.close(one.server, other.server)


def test_fedproto_without_its_term_is_local_training():
    everyone = toys.PLAN._replace(cohort=toys.C)
    one, _ = toys.player(toys.make("fedproto", lam=0.0), plan=everyone)(KEYS, 0, 3)
    other, _ = toys.player(toys.make("local"))(KEYS, 0, 3)
    toys.close(one.private, other.private, rtol=1e-5, atol=1e-6)


def test_fedbn_averages_what_is_not_batch_norm_as_fedavg_does():
    """From a common start the first round is FedAvg's, bit for bit."""
    one, _ = toys.player(toys.make("fedbn"))(KEYS, 0, 1)
    other, _ = toys.player(toys.make("fedavg"))(KEYS, 0, 1)
    shared, _ = tree.split(tree.within(("Dense_0", "head")), other.server)
    toys.same(one.server, shared)


# What is frozen, what is private.


def phases(**hyper):
    """A client's model before and after one FedRep round, with momentum and weight decay."""
    method = toys.make("fedrep", **hyper)
    state = simulate.init(method, KEYS, toys.C)
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[0], toys.PLAN, KEYS.local)
    mine = tree.take(toys.PEOPLE._replace(private=state.private), 0)
    upload, private = jax.jit(lambda: method.round[0].local(state.server, mine, work))()
    return tree.join(state.server, mine.private), tree.join(upload, private)


def test_fedrep_moves_one_part_at_a_time():
    before, after = phases(head_epochs=2, body_epochs=0)
    toys.same(before.params["Dense_0"], after.params["Dense_0"])
    toys.same(before.params["BatchNorm_0"], after.params["BatchNorm_0"])
    assert moved(before.params["head"], after.params["head"])
    assert moved(before.stats, after.stats)
    before, after = phases(head_epochs=0, body_epochs=2)
    toys.same(before.params["head"], after.params["head"])
    assert moved(before.params["Dense_0"], after.params["Dense_0"])
    assert moved(before.stats, after.stats)


def test_fedrep_may_freeze_running_statistics_with_the_body():
    before, after = phases(head_epochs=2, body_epochs=0, head_in_eval_mode=True)
    toys.same(before.stats, after.stats)
    assert moved(before.params["head"], after.params["head"])


def test_fedrep_against_numpy():
    """Two rounds with three of eight clients: [:2] is the body, [2:] the head."""
    method = toys.make("fedrep", toys.TASK, head_epochs=3, body_epochs=2)
    first = naive.first_weights()
    body, heads = first[:2], [first[2:]] * toys.C
    for t in range(2):
        bodies = []
        for i in (ids := naive.cohort(method, t)):
            x, y = naive.data_of(i)
            head_part = lambda h, x=x, y=y: naive.gradient(body + h, x, y)[1][2:]  # noqa: E731, B023
            heads[i] = naive.descend(heads[i], head_part, steps=3)
            body_part = lambda b, i=i, x=x, y=y: naive.gradient(b + heads[i], x, y)[1][:2]  # noqa: E731
            bodies.append(naive.descend(body, body_part, steps=2))
        body = naive.mean_by_size(ids, bodies)
    state, sums = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    assert float(sums.steps) == 2 * 3 * (3 + 2)
    for i in range(toys.C):
        naive.close(tree.join(state.server, tree.take(state.private, i)), body + heads[i])


@pytest.mark.parametrize(
    "name, layers, private",
    [
        ("fedper", 1, {"head"}),
        ("fedper", 2, {"Dense_1", "BatchNorm_1", "head"}),
        ("fedrep", 2, {"Dense_1", "BatchNorm_1", "head"}),
        ("lg_fedavg", 1, {"Dense_0", "BatchNorm_0", "Dense_1", "BatchNorm_1"}),
        ("lg_fedavg", 2, {"Dense_0", "BatchNorm_0"}),
    ],
)
def test_where_the_head_begins(name, layers, private):
    task = make_task(nets.mlp(toys.K, width=3, depth=2, norm=True), (toys.D,), toys.K)
    state = simulate.init(toys.make(name, task, head_layers=layers), KEYS, toys.C)
    assert {leaf.split("/")[1] for leaf in tree.names(state.private)} == private
    shared = {leaf.split("/")[1] for leaf in tree.names(state.server)}
    assert shared == set(task.layers) - private


def test_a_head_cannot_have_more_layers_than_the_model():
    with pytest.raises(BadInput, match="head_layers must be from 1 to 2"):
        toys.make("fedper", head_layers=3)
    with pytest.raises(BadInput, match="head_layers must be from 1 to 2"):
        toys.make("lg_fedavg", head_layers=0)
    with pytest.raises(BadInput, match="head_layers=2 leaves no layer for the body"):
        toys.make("fedrep", head_layers=2)
    with pytest.raises(BadInput, match="head_epochs and body_epochs cannot both be 0"):
        toys.make("fedrep", head_epochs=0, body_epochs=0)


def test_the_head_of_a_convolutional_net_begins_at_its_dense_layers():
    task = make_task(nets.digit_cnn(10, width=2), (28, 28, 3), 10)
    state = jax.eval_shape(lambda: toys.make("fedper", task, head_layers=2).init(KEYS.init, 2))
    assert set(tree.names(state.private)) == {
        f"params/{layer}/{leaf}" for layer in ("Dense_0", "head") for leaf in ("kernel", "bias")
    }


def test_lg_fedavg_after_its_first_rounds():
    """Everybody starts from the averaged body, those who never trained since keep it."""
    pretrain, train = toys.make("lg_fedavg", toys.TASK, pretrain_rounds=2)(4)
    w = naive.weights_of(simulate.init(pretrain.method, KEYS, toys.C).server)
    own = {}
    for t in range(4):
        ids = naive.cohort(pretrain.method, t)
        starts = [own.get(i, w[:2]) + w[2:] for i in ids]
        models = [naive.sgd(s, *naive.data_of(i)) for i, s in zip(ids, starts, strict=True)]
        mean = naive.mean_by_size(ids, models)
        w = mean if t < 2 else w[:2] + mean[2:]
        own |= {i: m[:2] for i, m in zip(ids, models, strict=True)} if t >= 2 else {}
    state, _ = toys.player(pretrain.method, plan=naive.FULL)(KEYS, 0, 2)
    state = train.start(KEYS.init, toys.C, state, {})
    state, _ = toys.player(train.method, plan=naive.FULL)(KEYS, 2, 2, state)
    assert 0 < len(own) < toys.C
    for i in range(toys.C):
        mine = tree.join(state.server, tree.take(state.private, i))
        naive.close(mine, own.get(i, w[:2]) + w[2:])


def test_lg_fedavg_takes_over_the_running_statistics_of_the_body():
    pretrain, train = toys.make("lg_fedavg", pretrain_rounds=2)(4)
    last = averaged()[0]
    state = train.start(KEYS.init, toys.C, last, {})
    for i in range(toys.C):
        toys.same(tree.join(state.server, tree.take(state.private, i)), last.server)


@pytest.mark.parametrize("name, head", [("fedper", True), ("lg_fedavg", False)])
def test_private_parts_against_numpy(name, head):
    """Two rounds with three of eight clients: [:2] is the body, [2:] the head."""
    method = toys.make(name, toys.TASK)
    first = naive.first_weights()
    body, top = [first[:2]] * toys.C, [first[2:]] * toys.C
    for t in range(2):
        ids = naive.cohort(method, t)
        models = [naive.sgd(body[i] + top[i], *naive.data_of(i)) for i in ids]
        mean = naive.mean_by_size(ids, models)
        for i, m in zip(ids, models, strict=True):
            body[i], top[i] = m[:2], m[2:]
        if head:
            body = [mean[:2]] * toys.C
        else:
            top = [mean[2:]] * toys.C
    state, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    for i in range(toys.C):
        whole = tree.join(state.server, tree.take(state.private, i))
        naive.close(whole, body[i] + top[i])


# Fine-tuning.


def tuned(method):
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[1], naive.FULL, KEYS.score)
    w = simulate.init(method, KEYS, toys.C).server
    return w, method.tune(w, tree.take(toys.PEOPLE, 1), work)[0]


def test_a_client_is_tuned_on_its_own_data_before_it_is_scored():
    before, after = tuned(toys.make("finetune", toys.TASK, epochs=naive.STEPS))
    naive.close(after, naive.sgd(naive.weights_of(before), *naive.data_of(1)))


def test_tuning_changes_nothing_that_is_kept():
    state, sums = toys.player(toys.make("finetune"))(KEYS, 0, 3)
    toys.same((state, sums), averaged())
    before, after = tuned(toys.make("finetune", toys.TASK, epochs=0))
    toys.same(before, after)


def test_the_tuned_model_is_the_one_that_is_scored():
    """By hand, for every client; the plain model answers differently."""
    method = toys.make("finetune", toys.TASK, epochs=naive.STEPS)
    state = simulate.init(method, KEYS, toys.C)
    score = functools.partial(evaluate.score, method, naive.FULL, toys.VECTORISED)
    scores = jax.jit(score)(toys.FEDERATION, toys.PEOPLE, KEYS, state, 0)
    first = naive.weights_of(state.server)

    def right(w, i):
        x, y = (np.asarray(a)[np.asarray(toys.FEDERATION.test[i])] for a in toys.FEDERATION[:2])
        return int((naive.predict(w, x) == y).sum())

    by_hand = [right(naive.sgd(first, *naive.data_of(i)), i) for i in range(toys.C)]
    assert scores.test.right[:, 0].astype(int).tolist() == by_hand
    assert by_hand != [right(first, i) for i in range(toys.C)]


# Naive NumPy rounds on skewed classes.


def test_fedrod_against_numpy():
    method = toys.make("fedrod", toys.TASK)
    w = naive.weights_of(simulate.init(method, KEYS, toys.C).server)
    own = {i: w[2:] for i in range(toys.C)}
    for t in range(3):
        ids = naive.cohort(method, t)
        models = []
        for i in ids:
            x, y = naive.data_of(i, toys.SKEWED)
            shift = -np.log(np.maximum(naive.counts(i), 1e-8))

            def gradient_of(both, x=x, y=y, shift=shift):
                v, phi = both[:4], both[4:]
                _, generic = naive.gradient(v, x, y, shift=shift)
                h = naive.features(v, x)
                fixed = h @ v[2] + v[3]
                _, personal = naive.gradient(
                    [np.eye(h.shape[1]), 0 * h[0], *phi], h, y, shift=-fixed
                )
                return generic + personal[2:]

            both = naive.descend(w + own[i], gradient_of)
            models.append(both[:4])
            own[i] = both[4:]
        w = naive.mean_by_size(ids, models, toys.SKEWED)
    state, _ = toys.player(method, plan=naive.FULL, federation=toys.SKEWED)(KEYS, 0, 3)
    naive.close(state.server, w, rtol=1e-3, atol=1e-4)
    for i in range(toys.C):
        phi = tree.take(state.private, i)
        np.testing.assert_allclose(phi["kernel"], own[i][0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(phi["bias"], own[i][1], rtol=1e-3, atol=1e-4)
    x, _ = naive.data_of(0)
    h = naive.features(w, x)
    mine = tree.take(toys.PEOPLE._replace(private=state.private), 0)
    expected = h @ (w[2] + own[0][0]) + w[3] + own[0][1]
    np.testing.assert_allclose(
        method.predict(state.server, mine, x), expected, rtol=1e-3, atol=1e-3
    )
    message, nobody = method.newcomer(state)
    generic = method.predict(message, mine._replace(private=nobody), x)
    np.testing.assert_allclose(generic, h @ w[2] + w[3], rtol=1e-3, atol=1e-3)


def fedproto_by_hand(method, count, lam):
    """-> models, prototypes and which are known, after each round."""
    first = naive.weights_of(tree.take(simulate.init(method, KEYS, toys.C).private, 0))
    models, C, known = [first] * toys.C, np.zeros((toys.K, 16)), np.zeros(toys.K, bool)
    for t in range(count):
        sent = [[] for _ in range(toys.K)]
        for i in naive.cohort(method, t):
            x, y = naive.data_of(i, toys.SKEWED)

            def pull(z, y=y, C=C, known=known):
                return lam * 2 * (z - C[y]) * known[y][:, None] / z.size

            step = lambda v, x=x, y=y, pull=pull: naive.gradient(v, x, y, pull=pull)[1]  # noqa: E731
            models[i] = naive.descend(models[i], step)
            h = naive.features(models[i], x)
            for k in set(y):
                sent[k].append(h[y == k].mean(0))
        known = np.array([len(s) > 0 for s in sent])
        C = np.stack([np.mean(s, 0) if s else np.zeros(16) for s in sent])
    return models, C, known


@pytest.mark.parametrize("count", [1, 4])
def test_fedproto_against_numpy(count):
    """After one round the term has not acted yet."""
    method = toys.make("fedproto", toys.TASK, lam=2.0)
    models, C, known = fedproto_by_hand(method, count, 2.0)
    state, _ = toys.player(method, plan=naive.FULL, federation=toys.SKEWED)(KEYS, 0, count)
    np.testing.assert_allclose(state.server[0], C, rtol=1e-3, atol=1e-4)
    assert (np.asarray(state.server[1]) > 0).tolist() == known.tolist()
    for i in range(toys.C):
        naive.close(tree.take(state.private, i), models[i], rtol=1e-3, atol=1e-4)


def test_fedproto_forgets_the_prototypes_of_absent_classes():
    method = toys.make("fedproto")
    D = 16
    uploads = jnp.ones((2, toys.K, D)) * jnp.array([1.0, 3.0])[:, None, None]
    has = jnp.zeros((2, toys.K)).at[:, 0].set(1).at[1, 2].set(1)
    people = tree.take(toys.PEOPLE, jnp.arange(2))
    C, known = method.round[0].aggregate(
        (9 * jnp.ones((toys.K, D)), jnp.ones(toys.K)), (uploads, has), people
    )
    np.testing.assert_allclose(C[:, 0], [2, 0, 3, 0])
    np.testing.assert_array_equal(known, [1, 0, 1, 0])


def test_fedproto_may_predict_by_the_nearest_prototype_of_the_clients_classes():
    method = toys.make("fedproto", toys.TASK, prediction="prototype")
    models, C, known = fedproto_by_hand(method, 3, 1.0)
    assert not known.all()
    state, _ = toys.player(method, plan=naive.FULL, federation=toys.SKEWED)(KEYS, 0, 3)
    people = simulate.population(toys.SKEWED, toys.K)._replace(private=state.private)
    x = np.asarray(toys.FEDERATION.x[400:])
    for i in range(toys.C):
        far = ((naive.features(models[i], x)[:, None] - C) ** 2).sum(-1)
        far[:, (naive.counts(i) == 0) | ~known] = np.inf
        got = method.predict(state.server, tree.take(people, i), x).argmax(-1)
        assert (np.asarray(got) == far.argmin(1)).mean() > 0.99
    assert min(naive.counts(i).min() for i in range(toys.C)) == 0
    with pytest.raises(BadInput, match="prediction cannot be 'nearest'"):
        toys.make("fedproto", prediction="nearest")


def test_padding_has_no_part_in_prototypes():
    """Full-batch steps: nothing depends on how wide the rows are padded."""
    method = toys.make("fedproto", toys.TASK)
    wide = jnp.pad(toys.FEDERATION.train, ((0, 0), (0, 40)), constant_values=-1)
    wide = toys.FEDERATION._replace(train=wide)
    plan = naive.FULL._replace(batch_size=toys.N + 40)
    one, _ = toys.player(method, plan=naive.FULL)(KEYS, 0, 2)
    other, _ = toys.player(method, plan=plan, federation=wide)(KEYS, 0, 2)
    toys.close(one, other)


def test_prototypes_are_taken_in_evaluation_mode():
    method = toys.make("fedproto")
    state = simulate.init(method, KEYS, toys.C)
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[0], toys.PLAN, KEYS.local)
    mine = tree.take(toys.PEOPLE._replace(private=state.private), 0)
    (C, _), w = jax.jit(lambda: method.round[0].local(state.server, mine, work))()
    x, y = naive.data_of(0)
    h = np.asarray(toys.NORM.apply(w, x).features)
    expected = [h[y == k].mean(0) for k in range(toys.K)]
    np.testing.assert_allclose(C, expected, rtol=1e-4, atol=1e-5)


def test_prototypes_may_be_taken_before_the_last_layers():
    """Two hidden layers; h is what the second one is given, and the pull acts below it alone."""
    task = make_task(nets.mlp(toys.K, width=16, depth=2), (toys.D,), toys.K)
    method, still = (toys.make("fedproto", task, lam=lam, head_layers=2) for lam in (0.5, 0.0))
    state = simulate.init(method, KEYS, toys.C)
    work, _ = make_work(toys.FEDERATION, toys.FEDERATION.train[0], toys.PLAN, KEYS.local)
    mine = tree.take(toys.PEOPLE._replace(private=state.private), 0)
    sent = jnp.full((toys.K, 16), 5.0), jnp.ones(toys.K)
    (C, _), w = jax.jit(lambda: method.round[0].local(sent, mine, work))()
    p = jax.tree.map(np.asarray, w.params)
    x, y = naive.data_of(0)
    h = np.maximum(x @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"], 0)
    expected = [h[y == k].mean(0) for k in range(toys.K)]
    np.testing.assert_allclose(C, expected, rtol=1e-4, atol=1e-5)
    taken = {}

    def take(weights, loss):
        batch = work.draw(8)
        taken["g"] = jax.grad(lambda v: loss(v, batch, jax.random.key(0))[0])(weights).params
        return weights

    for one in (method, still):
        one.round[0].local(sent, mine, work._replace(train=take))
        taken[one] = taken["g"]
    pulled, free = taken[method], taken[still]
    toys.close(pulled["Dense_1"], free["Dense_1"])
    toys.close(pulled["head"], free["head"])
    assert moved(pulled["Dense_0"], free["Dense_0"])
    with pytest.raises(BadInput, match="head_layers must be from 1 to 2"):
        toys.make("fedproto", head_layers=3)
    tokens = make_task(cct.cct7(toys.K), (32, 32, 3), toys.K)
    with pytest.raises(BadInput, match="head_layers=2: .* sees more than a vector"):
        toys.make("fedproto", tokens, head_layers=2)


def test_fedproto_runs_on_logistic_regression():
    """There is no body; the prototypes are means of the examples."""
    task = make_task(nets.mlp(toys.K, depth=0), (toys.D,), toys.K)
    state, _ = toys.player(toys.make("fedproto", task))(KEYS, 0, 1)
    assert tree.finite(state) and state.server[0].shape == (toys.K, toys.D)
