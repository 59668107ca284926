"""FedConcat, -ID and -IB, FeSEM and FedSoft: clusters, averages inside them, the concatenation."""

from pathlib import Path

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys

from fedjax_lab import clusters, experiment, metrics, parallel, runner, simulate, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import communication, concatenation
from fedjax_lab.methods.fedconcat_id import first_round, mean_outputs
from fedjax_lab.models import nets
from fedjax_lab.models.task import encode, make_task, split_head
from fedjax_lab.types import State

CLASSES = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, 400)
    x = (2 * rng.normal(size=(CLASSES, 5)))[y] + rng.normal(size=(400, 5))
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=x.astype(np.float32), y=y)
    return str(path)


def build(data, name="fedconcat", seeds=(0,), rounds=5, way="auto", strategy="vectorised", **hyper):
    """Eight clients with two classes each."""
    config = {
        "data": {"name": "arrays", "path": data},
        "partition": {"name": "classes_per_client", "num_clients": 8, "classes": 2},
        "model": {"name": "mlp", "width": 8},
        "method": {"name": name, **hyper},
        "local": {"lr": 0.05, "batch_size": 16, "momentum": 0.9},
        "run": {"rounds": rounds, "eval_every": 2},
        "engine": {"seeds": way, "strategy": strategy},
    }
    return experiment.build(experiment.resolve(config), list(seeds))


HYPER = {"num_clusters": 3, "encoder_rounds": 3, "classifier_rounds": 4}


@pytest.fixture(scope="module")
def whole(data):
    """One uninterrupted run, with both seeds vectorised."""
    return runner.run(build(data, seeds=(0, 1), way="vectorised", **HYPER), quiet=True)


def comparable(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


# The whole run.


def test_one_cluster_with_its_classifier_is_fedavg(data):
    """Stage 2 is FedAvg; Phi then starts as FedAvg's model."""
    hyper = {"num_clusters": 1, "encoder_rounds": 3, "classifier_rounds": 1}
    e = build(data, classifier_init="clusters", **hyper)
    plain = runner.run(build(data, "fedavg", rounds=3), quiet=True).states[0].server
    state = played(e, 3)
    toys.close(tree.take(state.server.centres, 0), plain, rtol=1e-6, atol=1e-7)
    last = e.simulation.stages[1].start(jax.random.key(0), 8, state, {}).server
    x = e.simulation.federations[0].x[:50]
    h = e.simulation.stages[1].view(last.encoders, x)
    logits = e.simulation.stages[1].method.predict(last.classifier, None, h)
    toys.close(logits, e.task.apply(plain, x).logits, rtol=1e-5, atol=1e-5)


def played(e, rounds, stage=0, state=None):
    """The state after so many rounds of a stage, without the engine."""
    keys = simulate.make_keys(jax.random.key(e.simulation.seeds[0]))
    people = simulate.population(e.simulation.federations[0], CLASSES)
    chosen = e.simulation.stages[stage]
    if state is None:
        facts = chosen.prepare(jax.random.key(1), jax.device_get(people), None)
        state = chosen.start(keys.init, len(people.n), None, facts)
    args = e.simulation.federations[0], people, keys, state, simulate.no_progress(), 0, rounds
    return simulate.play(chosen.method, e.simulation.plan, toys.VECTORISED, *args)[0]


def test_it_learns_in_three_steps_and_keeps_its_encoders(data, whole):
    """Rounds, stages, a model of K encoders; together and one by one alike."""
    names = [(row["round"], row["stage"]) for row in whole.metrics if row["seed"] == 0]
    stages = 2 * ["encoders"] + 3 * ["classifier"]
    assert names == list(zip((2, 3, 4, 6, 7), stages, strict=True))
    server = whole.states[0].server
    assert server.encoders.params["Dense_0"]["kernel"].shape == (3, 5, 8)
    assert server.encoders.params["head"]["kernel"] is None
    assert server.classifier.params["head"]["kernel"].shape == (24, CLASSES)
    e = build(data, **HYPER)
    centres = runner.run(
        toys.changed(e, stages=e.simulation.stages[:1], plan=e.simulation.plan._replace(rounds=3)),
        quiet=True,
    )
    before = split_head(e.task, centres.states[0].server.centres)[0]
    toys.close(before, server.encoders)
    more = runner.run(build(data, **(HYPER | {"classifier_rounds": 100})), quiet=True)
    assert more.metrics[-1]["global"] > 80
    toys.close(more.states[0].server.encoders, server.encoders)  # frozen; seed 0 alone


def test_the_method_comes_to_any_number_of_rounds(data):
    """What FedAvg costs is a bound, but for runs too short for it."""
    for rounds in (1, 2, 9):
        for name in ("fedconcat", "fedconcat_id"):
            e = build(data, name, rounds=rounds, num_clusters=2)
            assert e.simulation.plan.rounds == sum(stage.rounds for stage in e.simulation.stages)
    T_1, T_2 = (
        e.simulation.stages[0].rounds + e.simulation.stages[1].rounds,
        e.simulation.stages[2].rounds,
    )
    assert (T_1, T_2) == (5, 4)  # 2 m 4 = 2 (m - c) + 4 c T_2, m = 84, c = 36


@pytest.mark.parametrize("name", ["fedconcat", "fedconcat_id"])
def test_bytes_are_the_papers_formula(data, name):
    """But for K - 1 biases that the classifier does not have."""
    e = build(data, name, **HYPER)
    last = runner.run(e, quiet=True).metrics[-1]
    m, c = communication.sizes(e.task)
    assert (m, c) == (5 * 8 + 8 + 8 * CLASSES + CLASSES, 8 * CLASSES + CLASSES)
    numbers = communication.cost(m, c, 3, 3, 4) - 2 * 4 * (3 - 1) * CLASSES
    assert last["bytes_up"] + last["bytes_down"] == 8 * 4 * numbers
    assert last["bytes_down"] - last["bytes_up"] == 8 * 4 * 3 * (m - c)


@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_interrupted_and_resumed(rounds, data, whole, tmp_path, monkeypatch):
    """Bit for bit, in either stage; the features are found again."""
    from test_stages import stopping_after

    def e():
        return build(data, seeds=(0, 1), way="vectorised", **HYPER)

    with monkeypatch.context() as patch:
        stopping_after(rounds, patch)
        with pytest.raises(runner.Interrupted):
            runner.run(e(), tmp_path / "cut", quiet=True)
    result = runner.run(e(), tmp_path / "cut", resume=True, quiet=True)
    toys.same(result.states, whole.states)
    rows = metrics.read_metrics(tmp_path / "cut/metrics.jsonl")
    assert comparable(rows) == comparable(whole.metrics)


def test_features_in_every_batch_are_those_that_are_cached(data, whole):
    """An augmentation that changes nothing turns the cache off, `clean` on again."""
    e = build(data, seeds=(0, 1), way="vectorised", **HYPER)
    plan = e.simulation.plan._replace(augment=lambda key, x: x)
    toys.close(runner.run(toys.changed(e, plan=plan), quiet=True).states, whole.states)
    plan = plan._replace(augment=lambda key, x: x + 1)
    shifted = [
        runner.run(
            toys.changed(build(data, feature_cache=cache, **HYPER), plan=plan), quiet=True
        ).states[0]
        for cache in ("exact", "clean")
    ]
    toys.same(*(state.server.encoders for state in shifted))
    weights = [np.asarray(s.server.classifier.params["head"]["kernel"]) for s in shifted]
    assert np.abs(weights[0] - weights[1]).max() > 1e-3


def test_a_mesh_with_chunks_gives_the_same_numbers(data):
    """Five of eight clients on four devices in chunks of two, also for the view of the pool."""
    e = build(data, **HYPER)
    e = toys.changed(e, plan=e.simulation.plan._replace(cohort=5, equal_steps=False))
    mesh = parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2))
    results = [
        runner.run(toys.changed(e, strategy=strategy), quiet=True).states
        for strategy in (toys.VECTORISED, mesh)
    ]
    toys.close(*results)


def test_each_client_may_be_a_cluster(data):
    """Every encoder is then the model that its client has trained alone."""
    e = build(data, clustering="none", encoder_rounds=2, classifier_rounds=1)
    centres = played(e, 2).server.centres
    alone = runner.run(build(data, "local", rounds=2), quiet=True).states[0].private
    toys.close(centres, alone, rtol=1e-5, atol=1e-6)


def test_other_clusterings_are_those_methods_weighted_by_size(data):
    """IFCA's mean is uniform by itself."""
    e = build(data, clustering="ifca", **HYPER)
    plain = runner.run(build(data, "ifca", rounds=3, num_clusters=3, by_size=True), quiet=True)
    server = runner.run(e, quiet=True).states[0].server
    expected = split_head(e.task, plain.states[0].server)[0]
    toys.close(server.encoders, expected, rtol=1e-5, atol=1e-6)


def test_inference_is_from_what_was_asked_for(data):
    """Of outputs on noise, or of the bias alone."""
    e = build(data, "fedconcat_id", num_clusters=2, num_noise=100)
    people = jax.device_get(simulate.population(e.simulation.federations[0], CLASSES))
    state = jax.device_get(
        played(e, 1, state=e.simulation.stages[0].method.init(jax.random.key(0), 8))
    )
    key = jax.random.key(2)
    outputs = e.simulation.stages[1].prepare(key, people, state)["p"]
    k_noise = jax.random.split(key)[0]
    expected = mean_outputs(e.task, state.private[0], k_noise, 100)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)
    other = build(data, "fedconcat_id", num_clusters=2, infer_from="bias")
    found = other.simulation.stages[1].prepare(key, people, state)["p"]
    np.testing.assert_allclose(found, state.private[1], rtol=1e-6)


def test_more_decay_of_encoders_holds_from_the_first_round_on(data):
    for name, stage in (("fedconcat", 0), ("fedconcat_id", 0)):
        norms = []
        for decay in (0.0, 1.0):
            e = build(data, name, encoder_decay=decay, num_clusters=2)
            first = e.simulation.stages[0].method.init
            state = None if first is None else first(jax.random.key(0), 8)
            server = played(e, 1, stage, state).server
            norms.append(float(tree.sq_norm(getattr(server, "centres", server))))
        assert norms[1] < 0.9 * norms[0]


@pytest.mark.parametrize(
    "name, hyper",
    [
        ("fedconcat", {"clustering": "none"}),
        ("fedconcat", {"clustering": "ifca"}),
        ("fedconcat", {"clustering": "fesem"}),
        ("fedconcat", {"clustering": "fedsoft"}),
        ("fedconcat", {"num_clusters": "elbow"}),
        ("fedconcat", {"epsilon": 5.0, "balanced": True, "encoder_decay": 0.01}),
        ("fedconcat_id", {"num_clusters": "elbow", "num_noise": 150}),
        ("fedconcat_id", {"infer_from": "bias", "classifier_init": "clusters"}),
    ],
)
def test_variants_run(data, name, hyper):
    result = runner.run(build(data, name, **(HYPER | hyper)), quiet=True)
    encoders = len(jax.tree.leaves(result.states[0].server.encoders)[0])
    if "clustering" in hyper:
        assert encoders == (8 if hyper["clustering"] == "none" else 3)
    assert 1 <= encoders <= 8
    assert tree.finite(result.states[0])


@pytest.mark.parametrize(
    "name, hyper, message",
    [
        ("fedconcat", {"num_clusters": 0}, "config.method.num_clusters must be above 0"),
        ("fedconcat", {"num_clusters": 9}, "must be from 1 to the 8 clients, got 9"),
        ("fedconcat_id", {"num_clusters": 9}, "must be from 1 to the 8 clients, got 9"),
        ("ifca", {"num_clusters": 9}, "must be from 1 to the 8 clients, got 9"),
        ("fesem", {"num_clusters": 9}, "must be from 1 to the 8 clients, got 9"),
        ("fedsoft", {"num_clusters": 0}, "must be from 1 to the 8 clients, got 0"),
        ("fedconcat", {"clustering": "label"}, "did you mean 'labels'"),
        ("fedconcat", {"clustering": "ifca", "num_clusters": "elbow"}, "does not go with ifca"),
        ("fedconcat", {"classifier_init": "cluster"}, "did you mean 'clusters'"),
        ("fedconcat", {"clustering": "fesem", "encoder_decay": 0.1}, "encoder_decay does not go"),
        ("fedconcat", {"clustering": "none", "balanced": True}, "balanced does not go with"),
        ("fedconcat", {"clustering": "ifca", "epsilon": 1.0}, "epsilon does not go with"),
        ("fedconcat", {"feature_cache": "none"}, "valid: clean, exact"),
        ("fedconcat", {"encoder_rounds": 5}, "set config.method.classifier_rounds"),
        ("fedconcat_id", {"encoder_rounds": 1}, "must be 2 or more"),
        ("fedconcat_id", {"infer_from": "bais"}, "did you mean 'bias'"),
        ("fedconcat_id", {"num_noise": 0}, "config.method.num_noise must be above 0"),
    ],
)
def test_bad_settings_are_named_before_anything_is_compiled(data, name, hyper, message):
    from fedjax_lab.engine import Engine

    with pytest.raises(BadInput, match=message):
        Engine(build(data, name, **hyper).simulation)


# Communication.


def test_the_papers_rounds_follow_from_the_formula():
    """Section 4.3: 173 rounds of the classifier on Fashion-MNIST; 94.3 % of FedAvg on CIFAR-10."""

    def sizes(shape):
        return communication.sizes(make_task(nets.simple_cnn(10), shape, 10))

    gray, colour = sizes((28, 28, 1)), sizes((32, 32, 3))
    assert gray == (44_426, 850) and colour == (62_006, 850)
    assert communication.affordable_rounds(*gray, 5, 31, 50) == pytest.approx(172.98, abs=0.005)
    assert communication.cost(*gray, 5, 31, 173) == pytest.approx(2 * 44_426 * 50, rel=1e-4)
    share = communication.cost(*colour, 5, 31, 200) / (2 * 62_006 * 50)
    assert share == pytest.approx(0.9435, abs=5e-5)
    task = make_task(nets.simple_cnn(10), (28, 28, 1), 10)
    assert communication.split_rounds(task, 50, 5, 0, 0) == (31, 173)
    for m, c, expected in ((23_705_252, 204_900, 0.979), (23_910_152, 409_800, 0.996)):
        share = communication.cost(m, c, 2, 480, 500) / (2 * m * 500)
        assert share == pytest.approx(expected, abs=5e-4)


# Clusters.


def blobs(sizes, seed=0):
    rng = np.random.default_rng(seed)
    centres = 10 * np.eye(len(sizes))
    return np.concatenate(
        [
            centre + 0.1 * rng.normal(size=(n, len(sizes)))
            for centre, n in zip(centres, sizes, strict=True)
        ]
    )


def rng():
    return np.random.default_rng(0)


def test_kmeans_finds_what_is_there():
    labels = clusters.assign(blobs([5, 3, 7]), 3, rng())
    blocks = [set(labels[a:b]) for a, b in ((0, 5), (5, 8), (8, 15))]
    assert [len(block) for block in blocks] == [1, 1, 1] and len(set.union(*blocks)) == 3


def test_equal_points_share_a_cluster():
    assert len(np.unique(clusters.assign(np.ones((6, 3)), 4, rng()))) == 1
    facts = clusters.form(np.ones((6, 3)), 4, False, rng())
    np.testing.assert_array_equal(facts["member"], np.ones((1, 6)))


@pytest.mark.parametrize("sizes", [[18, 1, 1], [10, 10, 1], [7, 7, 7], [30, 2, 2, 2, 4]])
def test_balanced_clusters_keep_below_their_cap(sizes):
    """cap = max(floor(1.2 n / K), ceil(n / K)); nobody is lost, and who fits stays."""
    points, K = blobs(sizes), len(sizes)
    labels = clusters.assign(points, K, rng(), balanced=True)
    n = sum(sizes)
    cap = max(int(1.2 * n / K), -(-n // K))
    found = np.bincount(labels, minlength=K)
    assert found.sum() == n and found.max() <= cap and labels.min() == 0
    if max(sizes) <= cap:
        plain = clusters.assign(points, K, rng())
        np.testing.assert_array_equal(labels, plain)


def reference_balance(points, centres, rng):
    """Section 5.6, step by step, with the clusters forbidden to a member written down."""
    n, K = len(points), len(centres)
    cap, centres, last = max(int(1.2 * n / K), -(-n // K)), centres.copy(), None
    for _ in range(100):
        far = [[np.sqrt(((p - c) ** 2).sum()) for c in centres] for p in points]
        a = [min(range(K), key=lambda k: (far[i][k], k)) for i in range(n)]  # noqa: B023
        forbidden = [set() for _ in range(n)]
        empty = [k for k in range(K) if k not in a]
        for k in range(K):
            while a.count(k) > cap:
                members = [i for i in range(n) if a[i] == k]
                i = max(members, key=lambda i: (far[i][k], -i))  # noqa: B023
                a[i] = -1
                forbidden[i].add(k)
        for i in range(n):
            if a[i] < 0:
                free = [k for k in range(K) if k not in forbidden[i] and a.count(k) < cap]
                a[i] = min(free, key=lambda k: (far[i][k], k))  # noqa: B023
        for k in range(K):
            members = [i for i in range(n) if a[i] == k]
            centres[k] = points[members].mean(0) if members else points[rng.integers(n)]
        if not empty and a == last:
            break
        last = a
    return np.array(a)


def test_balanced_clusters_against_a_plain_reference():
    """40 cases: ties of integers, centres far away that stay empty, crowded ones."""
    for seed in range(40):
        draw = np.random.default_rng(seed)
        n, K = int(draw.integers(6, 30)), int(draw.integers(2, 6))
        points = draw.integers(0, 4, (n, 2)).astype(float)
        points[: n // 2] = points[0]
        centres = draw.normal(size=(K, 2)) * (20 if seed % 3 == 0 else 2)
        found = clusters.balance(points, centres, np.random.default_rng(seed))
        expected = reference_balance(points, centres, np.random.default_rng(seed))
        np.testing.assert_array_equal(found, expected)


def test_balanced_clusters_split_what_is_equal():
    """Six equal points in four clusters of at most two."""
    labels = clusters.assign(np.ones((6, 3)), 4, rng(), balanced=True)
    assert np.bincount(labels).max() == 2


def test_a_full_cluster_gives_away_its_farthest():
    """Six points on a line, two centres, room for three each: the one nearest to 10 moves."""
    points = np.array([[0.0], [0.1], [0.2], [4.0], [10.0], [10.1]])
    labels = clusters.balance(points, np.array([[0.0], [10.0]]), rng())
    np.testing.assert_array_equal(labels, [0, 0, 0, 1, 1, 1])


def test_the_elbow_is_where_the_curve_bends():
    K, inertia = clusters.elbow(blobs([6, 6, 6, 6]), rng())
    assert K == 4
    n = len(inertia)
    assert n == 12 and (np.diff(inertia) < 0).all()
    ends = np.array([[1, inertia[0]], [n, inertia[-1]]])
    along = (ends[1] - ends[0]) / np.linalg.norm(ends[1] - ends[0])
    far = [
        abs(np.cross(np.append(along, 0), np.append(np.array([k + 1, inertia[k]]) - ends[0], 0))[2])
        for k in range(n)
    ]
    assert K == 1 + int(np.argmax(far))


def test_the_elbow_of_few_points():
    assert clusters.elbow(np.ones((5, 2)), rng())[0] == 1
    assert clusters.elbow(np.array([[0.0], [1.0]]), rng())[0] == 1
    assert clusters.elbow(np.array([[0.0], [0.5], [1.0]]), rng())[0] == 1  # a tie
    with pytest.raises(BadInput, match="at least two clients"):
        clusters.elbow(np.ones((1, 2)), rng())


def test_label_distributions_are_counts_over_sizes_with_noise_of_the_right_scale(data):
    """Eq. 2, and eq. 14 with a Laplace scale of 1 / epsilon: std sqrt(2) / epsilon."""
    people = simulate.population(build(data).simulation.federations[0], CLASSES)
    people = jax.tree.map(lambda a: np.tile(a, (500,) + (1,) * (a.ndim - 1)), people)
    expected = people.label_count / people.label_count.sum(1, keepdims=True)

    def p(**hyper):
        stage = build(data, num_clusters=2, **hyper).simulation.stages[0]
        return stage.prepare(jax.random.key(0), people, None)["p"]

    np.testing.assert_allclose(p(), expected, rtol=1e-6)
    noise = p(epsilon=4.0) - expected
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(np.sqrt(2) / 4, rel=0.05)
    assert np.abs(noise).mean() == pytest.approx(1 / 4, rel=0.05)


# Stages against NumPy.

MEMBER = np.array([[1, 0, 0, 1, 0, 0, 1, 0], [0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0, 1]])


def averages(members, ids, models, centres):
    """By size inside each cluster; a cluster without participants keeps its centre."""
    out = []
    for k in range(len(members)):
        mine = [j for j, i in enumerate(ids) if members[k][i]]
        out.append(
            naive.mean_by_size([ids[j] for j in mine], [models[j] for j in mine])
            if mine
            else centres[k]
        )
    return out


def test_a_round_inside_clusters_against_numpy():
    """Two rounds of three clients: some cluster has nobody."""
    method = concatenation.inside_clusters(toys.TASK, 0.05)
    w = toys.TASK.init(naive.KEYS.init)
    state = State(concatenation.Clusters(tree.repeat(w, 3), jnp.asarray(MEMBER, jnp.float32)), ())
    centres = [naive.first_weights() for _ in range(3)]
    state, _ = toys.player(method, plan=naive.FULL)(naive.KEYS, 0, 2, state)
    for t in range(2):
        ids = drawn(t)
        models = [
            naive.sgd(
                centres[int(MEMBER[:, i].argmax())], *naive.data_of(i), decay=naive.DECAY + 0.05
            )
            for i in ids
        ]
        centres = averages(MEMBER, ids, models, centres)
    assert any(not MEMBER[k][drawn(0)].any() for k in range(3))  # somebody has no participant
    for k in range(3):
        naive.close(tree.take(state.server.centres, k), centres[k])


def drawn(t):
    return naive.cohort(toys.make("fedavg"), t)


def test_a_round_of_the_classifier_against_numpy():
    """The plain mean over unequal clients of three steps on features; the encoders stay."""
    method = concatenation.on_features(toys.K)
    phi = concatenation.linear(toys.D, toys.K).init(naive.KEYS.init)
    encoders = toys.TASK.init(naive.KEYS.init)
    state = State(concatenation.Concatenation(encoders, phi), ())
    state, sums = toys.player(method, plan=naive.FULL)(naive.KEYS, 0, 1, state)
    head = [np.asarray(phi.params["head"][name]) for name in ("kernel", "bias")]

    def gradient(w, x, y):
        logits = x @ w[0] + w[1]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        d = (p - np.eye(toys.K)[y]) / len(y)
        return [x.T @ d, d.sum(0)]

    models = []
    for i in drawn(0):
        x, y = naive.data_of(i)
        models.append(naive.descend(head, lambda w: gradient(w, x, y), steps=1))  # noqa: B023
    expected = naive.mean(np.full(3, 1 / 3), models)
    after = state.server.classifier.params["head"]
    np.testing.assert_allclose(after["kernel"], expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["bias"], expected[1], rtol=1e-4, atol=1e-6)
    toys.same(state.server.encoders, encoders)
    assert float(sums.steps) == 3


def test_a_pass_of_the_classifier_is_cut_after_three_batches():
    method = concatenation.on_features(toys.K)
    phi = concatenation.linear(toys.D, toys.K).init(naive.KEYS.init)
    state = State(concatenation.Concatenation((), phi), ())
    plan = toys.PLAN._replace(batch_size=4, cohort=toys.C)
    _, sums = toys.player(method, plan=plan)(naive.KEYS, 0, 1, state)
    n = np.asarray(toys.PEOPLE.n)
    assert float(sums.steps) == np.minimum(3, np.ceil(n / 4)).sum()
    assert float(sums.examples) == np.minimum(12, n).sum()


def test_features_are_the_encoders_side_by_side():
    """[theta^1(x), theta^2(x)] in evaluation mode, by one forward pass."""
    models = clusters.distinct_starts(toys.NORM, jax.random.key(0), 2)
    encoders, heads = split_head(toys.NORM, models)
    x = toys.FEDERATION.x[:7]
    h = concatenation.concatenate(toys.NORM, encoders, x)
    alone = [toys.NORM.apply(tree.take(models, k), x).features for k in range(2)]
    np.testing.assert_allclose(h, np.concatenate(alone, 1), rtol=1e-5, atol=1e-6)
    toys.same(encode(toys.NORM, tree.take(encoders, 1), x), alone[1])
    assert heads.params["Dense_0"]["kernel"] is None
    calls = [
        str(jax.make_jaxpr(lambda e: concatenation.concatenate(toys.NORM, e, x))(e)).count("dot_g")
        for e in (encoders, tree.take(encoders, jnp.array([0, 1, 0, 1])))
    ]
    assert calls[0] == calls[1]


def test_a_classifier_from_the_clusters_sums_their_logits():
    models = clusters.distinct_starts(toys.NORM, jax.random.key(0), 3)
    stage = concatenation.concatenation(toys.NORM, 1, "clusters", "exact")
    server = stage.start(jax.random.key(0), toys.C, State(models, ()), {}).server
    x = toys.FEDERATION.x[:7]
    logits = stage.method.predict(server.classifier, None, stage.view(server.encoders, x))
    alone = [toys.NORM.apply(tree.take(models, k), x).logits for k in range(3)]
    np.testing.assert_allclose(logits, sum(alone), rtol=1e-4, atol=1e-5)


# Label distributions that are inferred.


def test_outputs_on_noise_against_numpy():
    """Eq. 3: the mean of softmax over R uniform images, the same for all; a sum of 1."""
    models = clusters.distinct_starts(toys.TASK, jax.random.key(0), 3)
    key = jax.random.key(5)
    p = np.asarray(mean_outputs(toys.TASK, models, key, 200))
    x = np.concatenate([toys.TASK.noise(k, 100) for k in jax.random.split(key, 2)])
    assert x.shape == (200, toys.D) and 0 <= x.min() < 0.01 and 0.99 < x.max() <= 1
    for k in range(3):
        w = naive.weights_of(tree.take(models, k))
        logits = naive.features(w, x) @ w[2] + w[3]
        softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(p[k], softmax.mean(0), rtol=1e-4)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)


def test_models_face_the_noise_in_evaluation_mode():
    models = clusters.distinct_starts(toys.NORM, jax.random.key(0), 2)
    models = models._replace(stats=jax.tree.map(lambda a: a + 0.5, models.stats))
    key = jax.random.key(5)
    p = mean_outputs(toys.NORM, models, key, 100)
    x = toys.NORM.noise(jax.random.split(key, 1)[0], 100)
    for k in range(2):
        logits = toys.NORM.apply(tree.take(models, k), x).logits
        np.testing.assert_allclose(p[k], jax.nn.softmax(logits).mean(0), rtol=1e-4)


def test_constant_classifiers_give_everyone_the_same_distribution():
    models = clusters.distinct_starts(toys.TASK, jax.random.key(0), 3)
    models.params["head"] = jax.tree.map(jnp.zeros_like, models.params["head"])
    p = mean_outputs(toys.TASK, models, jax.random.key(5), 100)
    np.testing.assert_allclose(p, 1 / toys.K, rtol=1e-6)


def test_noise_has_the_range_of_the_inputs():
    low, high = jnp.array([-1.0, 0.0]), jnp.array([1.0, 3.0])
    task = make_task(nets.mlp(3), (4, 4, 2), 3, lowest=low, highest=high)
    x = np.asarray(task.noise(jax.random.key(0), 300))
    assert x.shape == (300, 4, 4, 2)
    np.testing.assert_allclose(x.min((0, 1, 2)), low, atol=0.02)
    np.testing.assert_allclose(x.max((0, 1, 2)), high, atol=0.02)
    np.testing.assert_allclose(x.mean((0, 1, 2)), (low + high) / 2, atol=0.05)


def test_one_step_from_a_zero_head_tells_the_label_distribution():
    """-IB is then exact: - dL/db_c = share of class c - 1/K."""
    w = toys.TASK.init(naive.KEYS.init)
    w.params["head"] = jax.tree.map(jnp.zeros_like, w.params["head"])
    method = first_round(toys.TASK, 2)
    from fedjax_lab import optim

    plan = naive.FULL._replace(epochs=1, optimizer=optim.sgd(0.1))
    state = method.init(naive.KEYS.init, toys.C)._replace(server=w)
    args = naive.KEYS, 0, 1, state
    state, _ = toys.player(method, plan=plan, federation=toys.SKEWED)(*args)
    for i in range(toys.C):
        count = naive.counts(i)
        np.testing.assert_allclose(state.private[1][i], count / count.sum(), atol=1e-5)


def test_bias_formula_against_numpy():
    """(b_i - b_0) / (s eta) + softmax(b_0), s steps of lr eta whatever the momentum."""
    method = first_round(toys.TASK, 2)
    state, _ = toys.player(method, plan=naive.FULL)(
        naive.KEYS, 0, 1, method.init(naive.KEYS.init, 8)
    )
    start = naive.first_weights()
    models = [naive.sgd(start, *naive.data_of(i)) for i in range(toys.C)]
    soft = np.exp(start[3]) / np.exp(start[3]).sum()
    for i, w in enumerate(models):
        expected = (w[3] - start[3]) / (naive.STEPS * naive.LR) + soft
        np.testing.assert_allclose(state.private[1][i], expected, rtol=1e-3, atol=1e-4)
        naive.close(tree.take(state.private[0], i), w)
    naive.close(state.server, naive.mean_by_size(range(toys.C), models))


def test_first_models_are_averaged_inside_the_clusters_found(data):
    """-ID: by size, and the encoders of T_1 = 2 are one more round of the clusters."""
    e = build(data, "fedconcat_id", num_clusters=2, encoder_rounds=2, num_noise=100)
    people = jax.device_get(simulate.population(e.simulation.federations[0], CLASSES))
    stage = e.simulation.stages[1]
    assert [s.rounds for s in e.simulation.stages[:2]] == [1, 1]
    state = played(e, 1, state=e.simulation.stages[0].method.init(jax.random.key(0), 8))
    facts = stage.prepare(jax.random.key(2), people, jax.device_get(state))
    server = stage.start(None, 8, state, facts).server
    models = jax.device_get(state.private[0])
    for k, member in enumerate(facts["member"]):
        share = member * people.n / (member * people.n).sum()
        expected = jax.tree.map(lambda a: np.tensordot(share, a, 1), models)  # noqa: B023
        toys.close(tree.take(server.centres, k), expected, rtol=1e-5, atol=1e-6)


# FeSEM and FedSoft.


def distance(v, w):
    return sum(((a - b) ** 2).sum() for a, b in zip(v, w, strict=True))


def test_fesem_rounds_against_numpy():
    """Random groups first, then the centre nearest to the own last model; three a round."""
    mu = 0.3
    method = toys.make("fesem", toys.TASK, num_clusters=2, mu=mu)
    state, _ = toys.player(method, plan=naive.FULL)(naive.KEYS, 0, 5)
    group = np.asarray(method.init(naive.KEYS.init, toys.C).server.group)
    assert sorted(np.bincount(group)) == [4, 4]
    centres, last, moved = [naive.first_weights()] * 2, {}, False
    for t in range(5):
        ids = naive.cohort(method, t)
        models, chosen = [], []
        for i in ids:
            k = group[i]
            if i in last:
                k = int(np.argmin([distance(last[i], c) for c in centres]))
                moved |= k != group[i]
            c = centres[k]
            pull = lambda w: naive.add([0 * a for a in c], naive.sub(w, c), mu)  # noqa: B023, E731
            models.append(naive.sgd(c, *naive.data_of(i), extra=pull))
            chosen.append(k)
        member = np.zeros((2, toys.C))
        member[chosen, ids] = 1
        centres = averages(member, ids, models, centres)
        last |= dict(zip(ids, models, strict=True))
    assert moved
    for i, w in last.items():
        naive.close(tree.take(state.server.models, i), w)
    for k in range(2):
        naive.close(tree.take(state.server.centres, k), centres[k])
    assert set(np.flatnonzero(state.server.known)) == set(last)


def test_fedsoft_rounds_against_numpy():
    """Importance every second round, on the same examples under all models."""
    mu, K = 0.3, 3
    method = toys.make("fedsoft", toys.TASK, num_clusters=K, mu=mu)
    state, _ = toys.player(method, plan=naive.FULL)(naive.KEYS, 0, 4)
    init = simulate.init(method, naive.KEYS, toys.C).server.centres
    centres = [naive.weights_of(tree.take(init, k)) for k in range(K)]
    u = np.full((toys.C, K), 1 / K)
    for t in range(4):
        ids = naive.cohort(method, t)
        models = []
        for i in ids:
            x, y = naive.data_of(i)
            if t % 2 == 0:
                loss = [each_loss(c, x, y) for c in centres]
                best = np.argmin(loss, 0)
                u[i] = np.maximum(1e-4, [(best == k).mean() for k in range(K)])

            def pull(w):
                return [
                    sum(mu * u[i][k] * (a - centres[k][j]) for k in range(K))  # noqa: B023
                    for j, a in enumerate(w)
                ]

            models.append(naive.sgd(centres[int(u[i].argmax())], x, y, extra=pull))
        weight = np.array([u[i] * len(naive.data_of(i)[1]) for i in ids]).T
        centres = [naive.mean(row / row.sum(), models) for row in weight]
    for k in range(K):
        naive.close(tree.take(state.server.centres, k), centres[k])
    np.testing.assert_allclose(state.private, u, rtol=1e-5)


def each_loss(w, x, y):
    logits = naive.features(w, x) @ w[2] + w[3]
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]


def test_one_cluster_of_fesem_and_fedsoft_without_their_terms_is_fedavg():
    plain, _ = toys.player(toys.make("fedavg"))(toys_keys(), 0, 3)
    for name in ("fesem", "fedsoft"):
        method = toys.make(name, num_clusters=1, mu=0.0)
        state, _ = toys.player(method)(toys_keys(), 0, 3)
        toys.close(tree.take(state.server.centres, 0), plain.server, rtol=1e-5, atol=1e-6)


def toys_keys():
    return simulate.make_keys(jax.random.key(0))


def test_ifca_may_start_from_one_model():
    method = toys.make("ifca", num_clusters=2, distinct_starts=False)
    centres = simulate.init(method, toys_keys(), toys.C).server
    toys.same(tree.take(centres, 0), tree.take(centres, 1))


# Pictures.


def test_the_pictures_of_finished_runs(data, tmp_path, monkeypatch, capsys):
    """Megabytes of one client; which clients are together; the number of clusters at the bend."""
    root = Path(__file__).parent.parent
    monkeypatch.syspath_prepend(str(root / "launch"))
    import fedconcat_figures

    e = build(data, **(HYPER | {"num_clusters": "elbow"}))
    result = runner.run(e, tmp_path / "run", quiet=True)
    facts = dict(np.load(tmp_path / "run/stages/encoders-0.npz"))
    both = {name: np.stack([fact, 0 * fact]) for name, fact in facts.items()}
    assert fedconcat_figures.first_seed(both)["p"].tolist() == facts["p"].tolist()
    encoders = jax.tree.leaves(result.states[0].server.encoders)[0]
    assert len(facts["member"]) == len(encoders) and len(facts["inertia"]) <= 7
    megabytes, accuracy = fedconcat_figures.accuracy_by_megabytes(tmp_path / "run")
    last = result.metrics[-1]
    assert megabytes[-1] == (last["bytes_up"] + last["bytes_down"]) / 8e6
    assert accuracy[-1] == last["global"] and len(megabytes) == len(result.metrics)
    monkeypatch.setattr("sys.argv", ["x", f"--out={tmp_path}/out", str(tmp_path / "run")])
    fedconcat_figures.main()
    drawn = {path.name for path in (tmp_path / "out").iterdir()}
    assert drawn == {"accuracy_by_megabytes.png", "run-clusters.png", "run-elbow.png"}
    monkeypatch.setattr("sys.argv", ["x", f"--out={tmp_path}/out", str(tmp_path / "nothing")])
    with pytest.raises(SystemExit):
        fedconcat_figures.main()
    assert "holds no metrics.jsonl" in capsys.readouterr().err
