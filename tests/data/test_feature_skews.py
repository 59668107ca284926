"""Feature skews, which change each client's examples: noise, rotations and user-defined ones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, simulate, streams
from fedjax_lab.config import resolve
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import build
from fedjax_lab.local import fetch, of_client
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.types import Skew

SEEN = {"name": "iid", "num_clients": 4, "feature_skew": "noise", "sigma": 0.5}


def images(size=(6, 6), count=120, dtype=np.uint8):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, *size, 1)).astype(dtype)
    zeros = np.zeros(count, np.int32)
    return Dataset(x, zeros, zeros, np.arange(count) % 4 == 0, ("a", "b"), ("",))


def experiment(dataset, seeds=(0,), method="fedavg", **partition):
    model, run = {"name": "mlp", "width": 4}, {"rounds": 4, "eval_every": 2}
    sections = {"model": model, "run": run, "method": {"name": method}, "partition": partition}
    return build(resolve(sections), seeds, dataset)


def with_and_without_skew(made, client, rows):
    """Raw examples with the skew of a client, and without it."""
    plan = made.simulation.plan
    federation = made.simulation.federations[0]._replace(center=0.0, scale=1.0)
    skew = jax.tree.map(lambda a: a[client], federation.skews)
    return fetch(federation._replace(skew=skew), rows, plan).x, fetch(federation, rows, plan).x


def test_noise_grows_over_the_clients_and_is_fixed_for_each_example():
    """The standard deviation must be sigma * i / (n - 1), for pixels in 0..1."""
    made, rows = experiment(images(), **SEEN), np.arange(120)
    for client, level in enumerate((0, 1 / 6, 1 / 3, 1 / 2)):
        noisy, clean = with_and_without_skew(made, client, rows)
        assert np.std((noisy - clean) / 255) == pytest.approx(level, rel=0.1, abs=1e-6)
        again, _ = with_and_without_skew(made, client, rows[::-1])
        np.testing.assert_allclose(again, noisy[::-1], rtol=1e-6)
    distinct = (noisy - clean).reshape(120, -1)
    assert np.abs(np.corrcoef(distinct) - np.eye(120)).max() < 0.7  # of 36 pixels each


@pytest.mark.parametrize("rotations", [2, 4])
def test_rotations_equal_numpys(rotations):
    partition = {**SEEN, "feature_skew": "rotation", "rotations": rotations, "num_clients": 5}
    del partition["sigma"]
    made, rows = experiment(images(), **partition), np.arange(9)
    for client in range(5):
        turned, clean = with_and_without_skew(made, client, rows)
        by = client % rotations * 4 // rotations
        np.testing.assert_allclose(turned, np.rot90(clean, by, axes=(1, 2)), rtol=1e-6)


def test_random_numbers_of_an_example_do_not_depend_on_the_order():
    x = jnp.asarray(images().x.reshape(120, -1))
    keys = jax.random.key_data(streams.examples(jnp.uint32(3), x))
    assert len(np.unique(keys, axis=0)) == 120
    back = jax.random.key_data(streams.examples(jnp.uint32(3), x[::-1]))
    np.testing.assert_array_equal(keys, back[::-1])
    assert not np.array_equal(keys, jax.random.key_data(streams.examples(jnp.uint32(4), x)))


def test_new_clients_keep_their_number_and_random_numbers():
    whole, some = (
        experiment(images(), (7,), **SEEN, new_clients=share).simulation.federations[0]
        for share in (0.0, 0.5)
    )
    assert whole.skews.client.tolist() == [0, 1, 2, 3]
    assert sorted(some.skews.client) == [0, 1, 2, 3]
    np.testing.assert_array_equal(some.skews.seed, whole.skews.seed[some.skews.client])
    held = [*some.train, *some.new_train]
    for client, rows in zip(some.skews.client, held, strict=True):
        assert set(rows[rows >= 0]) == set(np.asarray(whole.train)[client]) - {-1}
    people = simulate.population_on_host(some, 2), simulate.new_on_host(some, 2)
    np.testing.assert_array_equal(
        np.concatenate([each.skew.client for each in people]), some.skews.client
    )


def test_only_examples_that_clients_hold_are_skewed():
    """The model predicts x, which the skew sets to client % 2; all other examples have x = 0."""
    federation = toys.with_new(toys.FEDERATION)
    federation = federation._replace(
        x=jnp.zeros_like(federation.x),
        y=jnp.zeros_like(federation.y),
        validation=federation.test,
        unseen=jnp.arange(500, 533),
        skews=Skew(np.arange(11, dtype=np.int32), np.zeros(11, np.uint32)),
    )
    plan = toys.PLAN._replace(eval_batch=50, feature_skew=lambda key, x, client: x + client % 2)
    method = fedavg(toys.TASK)._replace(
        predict=lambda message, client, x: jax.nn.one_hot(x[:, 0].astype(jnp.int32), toys.K)
    )
    people = (jax.tree.map(jnp.asarray, of(federation, toys.K)) for of in (
        simulate.population_on_host, simulate.new_on_host))  # fmt: skip
    keys = streams.make_keys(jax.random.key(0))
    population, new = people
    lane = simulate.Lane(federation._replace(skews=None), population, keys, new=new)
    program = simulate.Program(method, plan, toys.VECTORIZED)
    score = jax.jit(partial(evaluate.score, program))
    scores = score(lane, simulate.init(method, keys, toys.C), jnp.int32(1))
    right = {
        form: np.asarray(c.correct / c.total)[:, 0] for form, c in scores._asdict().items() if c
    }
    odd = np.arange(toys.C) % 2
    np.testing.assert_array_equal(right["test"], 1 - odd)
    np.testing.assert_array_equal(right["validation"], 1 - odd)
    np.testing.assert_array_equal(right["new"][[0, 2]], [1, 1])  # numbers 8 and 10
    np.testing.assert_array_equal(right["global_test"], [1])
    np.testing.assert_array_equal(right["unseen"], np.ones(toys.C))


def brighter(key, x, client, num_clients, *, step: float = 0.1):
    """Pixels in 0..1 that rise by `step` from client to client."""
    return x + step * client


def flat(key, x, client, num_clients):
    return x.reshape(-1)


def test_a_user_defined_feature_skew():
    made = experiment(images(), name="iid", num_clients=4, feature_skew=brighter, step=0.2)
    changed, clean = with_and_without_skew(made, 3, np.arange(9))
    np.testing.assert_allclose(changed, clean + 0.6 * 255, rtol=1e-5)
    with pytest.raises(BadInput, match="a feature skew must return an example"):
        experiment(images(), name="iid", num_clients=4, feature_skew=flat)


def test_each_natural_user_has_a_client_number():
    """The data have three users; the config does not state their number."""
    users = np.arange(120, dtype=np.int32) % 3
    dataset = images()._replace(client=users, users=("a", "b", "c"))
    made = experiment(dataset, name="by_client", feature_skew=brighter)
    for client in range(3):
        rows = np.asarray(made.simulation.federations[0].train)[client]
        assert {*users[rows[rows >= 0]]} == {client}
        changed, clean = with_and_without_skew(made, client, rows[:3])
        np.testing.assert_allclose(changed, clean + client * 25.5, rtol=1e-5)


def test_without_a_feature_skew_clients_are_unchanged():
    made = experiment(images(), name="iid", num_clients=4)
    assert made.simulation.plan.feature_skew is None
    assert made.simulation.federations[0].skews is None
    client = simulate.population_on_host(made.simulation.federations[0], 2)
    assert of_client(made.simulation.federations[0], client) is made.simulation.federations[0]


@pytest.mark.parametrize(
    ("dataset", "method", "partition", "said"),
    [
        (images((6, 5)), "fedavg", {"feature_skew": "rotation"}, "square images, not 6 x 5"),
        (images(()), "fedavg", {"feature_skew": "rotation"}, "=rotation needs images"),
        (images(), "fedavg", {"feature_skew": "rotation", "rotations": 3}, "must be 2 or 4, got 3"),
        (images(), "fedavg", {"feature_skew": "noise", "sigma": -1.0}, "sigma must not"),
        (images(dtype=np.int32), "fedavg", {"feature_skew": "noise"}, "real numbers, not int32"),
        (images(), "fedavg", {"feature_skew": "nois"}, "did you mean 'noise"),
        (images(), "central", {"feature_skew": "noise"}, "=noise needs clients; method central"),
        (images(), "client2vec", {"feature_skew": "noise"}, "which method client2vec trains on"),
    ],
)  # fmt: skip
def test_bad_skews_are_rejected(dataset, method, partition, said):
    with pytest.raises(BadInput, match=said):
        experiment(dataset, method=method, num_clients=4, **partition)


def played(seeds=(0,), blocks=(4,), method="finetune", engine=None, augment="none", **partition):
    """The last state of each seed, and the scores, of a run in these blocks of rounds."""
    dataset = images()._replace(y=np.random.default_rng(1).integers(0, 2, 120, np.int32))
    partition = {**SEEN, "new_clients": 0.25, "validation": 0.2, **partition}
    config = {
        "data": {"augment": augment},
        "model": {"name": "mlp", "width": 4},
        "run": {"rounds": 4, "cohort": 3},
        "method": method if isinstance(method, dict) else {"name": method},
        "local": {"batch_size": 7},
        "engine": engine or {},
        "partition": partition,
    }
    playing = Engine(build(resolve(config), seeds, dataset).simulation)
    playing.compile()
    for end in np.cumsum(blocks):
        if playing.stage_is_over:
            playing.next_stage()
            playing.compile()
        while playing.played < end:
            playing.play(end - playing.played)
    return playing.final_states(), evaluate.summarize(playing.evaluate()[-1], ("",))


def assert_same(a, b):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), a, b)


@pytest.mark.slow
def test_results_do_not_depend_on_how_a_run_is_computed():
    """The method also trains on the examples of new clients."""
    plain = played()
    assert_same(played(blocks=(1, 3)), plain)
    for engine in (
        {"strategy": "chunked", "chunk": 2},
        {"strategy": "sequential"},
        {"state": "host"},
        {"data": "stream"},
        {"data": "sharded", "state": "sharded"},
    ):
        assert_same(played(engine=engine), plain)
    states, _ = played((3, 0), engine={"seeds": "vectorized"})
    assert_same(states[1:], plain[0])
    clean = played(sigma=0.0)
    assert not np.allclose(*(jax.tree.leaves(s.server)[1] for s in (clean[0][0], plain[0][0])))


def unchanged(key, x):
    return x


@pytest.mark.slow
def test_an_identity_augmentation_does_not_change_features_of_skewed_examples():
    """FedConcat's classifiers train on features, which are computed in every batch here."""
    method = {"name": "fedconcat", "num_clusters": 2, "encoder_rounds": 2, "classifier_rounds": 2}
    run = partial(played, blocks=(2, 2), method=method, new_clients=0.0)
    assert_same(run(), run(augment=unchanged))
