"""Runs of FedConcat, FedConcat-ID and -IB: stages, bytes, settings and clusters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import streams, tree
from fedjax_lab.commands import figures
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task, split_head
from fedjax_lab.papers.fedconcat import cluster_figures as drawing
from fedjax_lab.papers.fedconcat import communication
from fedjax_lab.running import runner
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.population import make_population

CLASSES = 4


@pytest.fixture(scope="module")
def data(folder):
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, 400)
    x = (2 * rng.normal(size=(CLASSES, 5)))[y] + rng.normal(size=(400, 5))
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=y)
    return folder


def build(data, name="fedconcat", seeds=(0,), rounds=5, way="auto", **hyper):
    """Eight clients with two classes each."""
    sections = {
        "partition": {"name": "classes_per_client", "num_clients": 8, "classes": 2},
        "method": {"name": name, **hyper},
        "local": {"lr": 0.05, "momentum": 0.9},
        "run": {"rounds": rounds, "eval_every": 2},
        "engine": {"seeds": way, "strategy": "vectorized"},
    }
    return toys.build(data, seeds, **sections)


HYPER = {"num_clusters": 3, "encoder_rounds": 3, "classifier_rounds": 4}


@pytest.fixture(scope="module")
def whole(data):
    """One uninterrupted run, with both seeds vectorized."""
    return runner.run(build(data, seeds=(0, 1), way="vectorized", **HYPER), quiet=True)


@pytest.mark.exhaustive
def test_fedconcat_with_one_cluster_is_fedavg(data):
    """Stage 2 is FedAvg; with its encoder, the first Phi predicts like FedAvg's model."""
    hyper = {"num_clusters": 1, "encoder_rounds": 3, "classifier_rounds": 1}
    e = build(data, classifier_init="clusters", **hyper)
    plain = runner.run(build(data, "fedavg", rounds=3), quiet=True).states[0].server
    state = played(e, 3)
    toys.close(tree.take(state.server.centers, 0), plain, rtol=1e-6, atol=1e-7)
    last = e.simulation.stages[1].start(jax.random.key(0), 8, state, {}).server
    x = e.simulation.seeds[0].federation.x[:50]
    h = e.simulation.stages[1].view(last.encoders, x)
    logits = e.simulation.stages[1].method.predict(last.classifier, None, h)
    toys.close(logits, e.task.apply(plain, x).logits, rtol=1e-5, atol=1e-5)


def played(e, rounds, stage=0, state=None):
    """The state after `rounds` rounds of a stage, without the engine."""
    keys = streams.make_keys(jax.random.key(e.simulation.seed_numbers[0]))
    federation = e.simulation.seeds[0].federation
    population = make_population(federation, CLASSES)
    federation, population = jax.tree.map(jnp.asarray, (federation, population))
    chosen = e.simulation.stages[stage]
    if state is None:
        facts = chosen.prepare(jax.random.key(1), jax.device_get(population), None)
        state = chosen.start(keys.init, len(population.n), None, facts)
    args = (simulate.Lane(federation, population, keys), state, simulate.no_progress(), 0, rounds)
    return simulate.play(
        simulate.Program(chosen.method, e.simulation.plan, toys.VECTORIZED), *args
    )[0]


@pytest.mark.exhaustive
def test_the_encoders_are_trained_and_then_frozen_for_the_classifier(data, whole):
    """Checks rounds, stages and shapes; two vectorized seeds give the encoders of one seed."""
    names = [(row["round"], row["stage"]) for row in whole.metrics if row["seed"] == 0]
    stages = 2 * ["encoders"] + 3 * ["classifier"]
    assert names == list(zip((2, 3, 4, 6, 7), stages, strict=True))
    server = whole.states[0].server
    assert server.encoders.params["Dense_0"]["kernel"].shape == (3, 5, 8)
    assert server.encoders.params["head"]["kernel"] is None
    assert server.classifier.params["head"]["kernel"].shape == (24, CLASSES)
    e = build(data, **HYPER)
    centers = runner.run(
        toys.changed(e, stages=e.simulation.stages[:1], plan=e.simulation.plan._replace(rounds=3)),
        quiet=True,
    )
    before = split_head(e.task, centers.states[0].server.centers)[0]
    toys.close(before, server.encoders)
    more = runner.run(build(data, **(HYPER | {"classifier_rounds": 100})), quiet=True)
    assert more.metrics[-1]["global"] > 80
    toys.close(more.states[0].server.encoders, server.encoders)  # frozen; only seed 0


def test_any_number_of_rounds_is_divided_among_the_stages(data):
    """The cost of FedAvg is the bound, except for runs that are too short for it."""
    for rounds in (1, 2, 9):
        for name in ("fedconcat", "fedconcat_id"):
            e = build(data, name, rounds=rounds, num_clusters=2)
            assert e.simulation.plan.rounds == sum(stage.rounds for stage in e.simulation.stages)
    T_1, T_2 = (
        e.simulation.stages[0].rounds + e.simulation.stages[1].rounds,
        e.simulation.stages[2].rounds,
    )
    assert (T_1, T_2) == (5, 4)  # 2 m 4 = 2 (m - c) + 4 c T_2, m = 84, c = 36


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["fedconcat", "fedconcat_id"])
def test_bytes_match_the_formula_of_the_paper(data, name, whole):
    """Except for K - 1 bias vectors that the classifier does not have."""
    e = build(data, name, **HYPER)
    last = (whole if name == "fedconcat" else runner.run(e, quiet=True)).metrics[-1]
    m, c = communication.sizes(e.task)
    assert (m, c) == (5 * 8 + 8 + 8 * CLASSES + CLASSES, 8 * CLASSES + CLASSES)
    numbers = communication.cost(m, c, 3, 3, 4) - 2 * 4 * (3 - 1) * CLASSES
    assert last["bytes_up"] + last["bytes_down"] == 8 * 4 * numbers
    assert last["bytes_down"] - last["bytes_up"] == 8 * 4 * 3 * (m - c)


@pytest.mark.exhaustive
def test_features_computed_per_batch_equal_cached_features(data, whole):
    """An augmentation that changes nothing turns the cache off; `clean` turns it on again."""
    e = build(data, seeds=(0, 1), way="vectorized", **HYPER)
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


@pytest.mark.exhaustive
def test_each_client_may_be_a_cluster(data):
    """The model of each cluster is then the one that its client trains alone."""
    e = build(data, clustering="none", encoder_rounds=2, classifier_rounds=1)
    centers = played(e, 2).server.centers
    alone = runner.run(build(data, "local", rounds=2), quiet=True).states[0].private
    toys.close(centers, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_clustering_by_ifca_is_ifca_weighted_by_size(data):
    """By default, IFCA's mean is uniform."""
    e = build(data, clustering="ifca", **HYPER)
    plain = runner.run(build(data, "ifca", rounds=3, num_clusters=3, by_size=True), quiet=True)
    server = runner.run(e, quiet=True).states[0].server
    expected = split_head(e.task, plain.states[0].server)[0]
    toys.close(server.encoders, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name, hyper, message",
    [
        ("fedconcat", {"num_clusters": 9}, "must be from 1 to the number of clients, 8, got 9"),
        ("ifca", {"num_clusters": 9}, "must be from 1 to the number of clients, 8, got 9"),
        ("fedconcat", {"clustering": "label"}, "did you mean 'labels'"),
        ("fedconcat", {"clustering": "ifca", "num_clusters": "elbow"}, "clustering=ifca; choose"),
        ("fedconcat", {"clustering": "fesem", "encoder_decay": 0.1}, "encoder_decay cannot be"),
        ("fedconcat", {"clustering": "none", "balanced": True}, "balanced cannot be combined"),
        ("fedconcat", {"clustering": "ifca", "epsilon": 1.0}, "epsilon cannot be combined"),
        ("fedconcat", {"encoder_rounds": 5}, "set config.method.classifier_rounds"),
        ("fedconcat_id", {"encoder_rounds": 1}, "must be at least 2"),
    ],
)
def test_invalid_settings_are_reported_before_anything_is_compiled(data, name, hyper, message):
    with pytest.raises(BadInput, match=message):
        Engine(build(data, name, **hyper).simulation)


def test_the_cost_formula_gives_the_rounds_of_the_paper():
    """Section 4.3: 173 rounds of the classifier on Fashion-MNIST; 94.3 % of FedAvg on CIFAR-10."""

    def sizes(shape):
        return communication.sizes(make_task(nets.simple_cnn(10), shape, 10))

    gray, color = sizes((28, 28, 1)), sizes((32, 32, 3))
    assert gray == (44_426, 850) and color == (62_006, 850)
    assert communication.affordable_rounds(*gray, 5, 31, 50) == pytest.approx(172.98, abs=0.005)
    assert communication.cost(*gray, 5, 31, 173) == pytest.approx(2 * 44_426 * 50, rel=1e-4)
    share = communication.cost(*color, 5, 31, 200) / (2 * 62_006 * 50)
    assert share == pytest.approx(0.9435, abs=5e-5)
    task = make_task(nets.simple_cnn(10), (28, 28, 1), 10)
    assert communication.split_rounds(task, 50, 5, 0, 0) == (31, 173)
    for m, c, expected in ((23_705_252, 204_900, 0.979), (23_910_152, 409_800, 0.996)):
        share = communication.cost(m, c, 2, 480, 500) / (2 * m * 500)
        assert share == pytest.approx(expected, abs=5e-4)


@pytest.mark.slow
def test_label_distributions_are_normalized_counts_plus_laplace_noise(data):
    """Eq. 2, and eq. 14 with a Laplace scale of 1 / epsilon: std sqrt(2) / epsilon."""
    population = make_population(build(data).simulation.seeds[0].federation, CLASSES)
    population = jax.tree.map(lambda a: np.tile(a, (500,) + (1,) * (a.ndim - 1)), population)
    expected = population.label_count / population.label_count.sum(1, keepdims=True)

    def p(**hyper):
        stage = build(data, num_clusters=2, **hyper).simulation.stages[0]
        return stage.prepare(jax.random.key(0), population, None)["p"]

    np.testing.assert_allclose(p(), expected, rtol=1e-6)
    noise = p(epsilon=4.0) - expected
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(np.sqrt(2) / 4, rel=0.05)
    assert np.abs(noise).mean() == pytest.approx(1 / 4, rel=0.05)


@pytest.mark.slow
def test_first_models_are_averaged_inside_the_inferred_clusters(data):
    """-ID averages by size; with T_1 = 2, one more round inside the clusters follows."""
    e = build(data, "fedconcat_id", num_clusters=2, encoder_rounds=2, num_noise=100)
    population = jax.device_get(make_population(e.simulation.seeds[0].federation, CLASSES))
    stage = e.simulation.stages[1]
    assert [s.rounds for s in e.simulation.stages[:2]] == [1, 1]
    state = played(e, 1, state=e.simulation.stages[0].method.init(jax.random.key(0), 8))
    facts = stage.prepare(jax.random.key(2), population, jax.device_get(state))
    server = stage.start(None, 8, state, facts).server
    models = jax.device_get(state.private[0])
    for k, member in enumerate(facts["member"]):
        share = member * population.n / (member * population.n).sum()
        expected = jax.tree.map(lambda a: np.tensordot(share, a, 1), models)  # noqa: B023
        toys.close(tree.take(server.centers, k), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_the_figures_of_finished_runs(data, tmp_path, capsys):
    """Accuracy by megabytes per client, the members of the clusters, and the elbow."""
    e = build(data, **(HYPER | {"num_clusters": "elbow"}))
    result = runner.run(e, tmp_path / "run", quiet=True)
    facts = dict(np.load(tmp_path / "run/stages/encoders-0.npz"))
    both = {name: np.stack([fact, 0 * fact]) for name, fact in facts.items()}
    assert drawing.first_seed(both)["p"].tolist() == facts["p"].tolist()
    encoders = jax.tree.leaves(result.states[0].server.encoders)[0]
    assert len(facts["member"]) == len(encoders) and len(facts["inertia"]) <= 7
    megabytes, accuracy = drawing.accuracy_by_megabytes(tmp_path / "run")
    last = result.metrics[-1]
    assert megabytes[-1] == (last["bytes_up"] + last["bytes_down"]) / 8e6
    assert accuracy[-1] == last["global"] and len(megabytes) == len(result.metrics)
    assert figures.main(["fedconcat", f"--out={tmp_path}/out", str(tmp_path / "run")]) == 0
    drawn = {path.name for path in (tmp_path / "out").iterdir()}
    assert drawn == {"accuracy_by_megabytes.png", "run-clusters.png", "run-elbow.png"}
    (tmp_path / "empty").mkdir()
    assert figures.main(["fedconcat", f"--out={tmp_path}/out", str(tmp_path / "empty")]) == 2
    assert "holds no evaluated run" in capsys.readouterr().err
