"""Feature skews, which change each client's examples: noise, rotations and user-defined ones."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import streams
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.experiment import build
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.simulation import evaluate, simulate
from fedjax_lab.simulation.client_work import fetch
from fedjax_lab.simulation.population import new_on_host, population_on_host
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
    plan = made.simulation.plan
    federation = made.simulation.seeds[0].federation._replace(center=0.0, scale=1.0)
    skew = jax.tree.map(lambda a: a[client], federation.traits["skew"])
    return tuple(
        fetch(federation._replace(traits=traits), rows, plan).x for traits in ({"skew": skew}, {})
    )


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


def test_new_clients_keep_their_number_and_random_numbers():
    made = [experiment(images(), (7,), **SEEN, new_clients=share) for share in (0.0, 0.5)]
    whole, some = (each.simulation.seeds[0].federation for each in made)
    before, after = (each.traits["skew"] for each in (whole, some))
    assert before.client.tolist() == [0, 1, 2, 3]
    assert sorted(after.client) == [0, 1, 2, 3]
    np.testing.assert_array_equal(after.seed, before.seed[after.client])
    held = [*some.train, *some.new_train]
    for client, rows in zip(after.client, held, strict=True):
        assert set(rows[rows >= 0]) == set(np.asarray(whole.train)[client]) - {-1}
    people = population_on_host(some, 2), new_on_host(some, 2)
    clients = np.concatenate([each.traits["skew"].client for each in people])
    np.testing.assert_array_equal(clients, after.client)


@pytest.mark.exhaustive
def test_only_examples_that_clients_hold_are_skewed():
    """The model predicts x, which the skew sets to client % 2; all other examples have x = 0."""
    federation = toys.with_new(toys.FEDERATION)
    federation = federation._replace(
        x=jnp.zeros_like(federation.x),
        y=jnp.zeros_like(federation.y),
        validation=federation.test,
        unseen=jnp.arange(500, 533),
        traits={"skew": Skew(np.arange(11, dtype=np.int32), np.zeros(11, np.uint32))},
    )
    plan = toys.PLAN._replace(eval_batch=50, feature_skew=lambda key, x, client: x + client % 2)

    def predict(message, client, x):
        return jax.nn.one_hot(x[:, 0].astype(jnp.int32), toys.K)

    method, keys = fedavg(toys.TASK)._replace(predict=predict), streams.make_keys(jax.random.key(0))
    people = [of(federation, toys.K) for of in (population_on_host, new_on_host)]
    population, new = jax.tree.map(jnp.asarray, people)
    lane = simulate.Lane(federation._replace(traits={}), population, keys, new=new)
    program = simulate.Program(method, plan, toys.VECTORIZED)
    score = jax.jit(partial(evaluate.score, program))
    scores = score(lane, simulate.init(method, keys, toys.C), jnp.int32(1))
    counts = {form: c for form, c in scores._asdict().items() if c}
    right = {form: np.asarray(c.correct / c.total)[:, 0] for form, c in counts.items()}
    odd = np.arange(toys.C) % 2
    assert right["test"].tolist() == right["validation"].tolist() == (1 - odd).tolist()
    assert right["new"][[0, 2]].tolist() == [1, 1]  # numbers 8 and 10
    assert right["global_test"].tolist() == [1] and right["unseen"].tolist() == [1] * toys.C


def brighter(key, x, client, num_clients, *, step: float = 0.1):
    """Pixels in 0..1 that rise by `step` from client to client."""
    return x + step * client


def flat(key, x, client, num_clients):
    return x.reshape(-1)


def test_a_user_defined_feature_skew_gets_the_number_of_each_natural_user():
    """The data have three users; the config does not state their number."""
    users = np.arange(120, dtype=np.int32) % 3
    dataset = images()._replace(client=users, users=("a", "b", "c"))
    made = experiment(dataset, name="by_client", feature_skew=brighter, step=0.2)
    for client in range(3):
        rows = np.asarray(made.simulation.seeds[0].federation.train)[client]
        assert {*users[rows[rows >= 0]]} == {client}
        changed, clean = with_and_without_skew(made, client, rows[:3])
        np.testing.assert_allclose(changed, clean + client * 51, rtol=1e-5)
    with pytest.raises(BadInput, match="a feature skew must return an example"):
        experiment(images(), name="iid", num_clients=4, feature_skew=flat)


REJECTED = [  # (data, method, name and settings of the feature skew, words of the error)
    (images((6, 5)), "fedavg", "rotation", {}, "square images, not 6 x 5"),
    (images(()), "fedavg", "rotation", {}, "=rotation needs images"),
    (images(), "fedavg", "rotation", {"rotations": 3}, "rotations cannot be 3; valid: 2, 4"),
    (images(), "fedavg", "noise", {"sigma": -1.0}, "sigma must be at least 0"),
    (images((), dtype=np.int32), "fedavg", "noise", {}, "numbers, not int32"),
    (images(), "central", "noise", {}, "=noise does not fit method central: it trains on"),
    (images(), "client2vec", "noise", {}, "method client2vec: it trains on embeddings"),
]


@pytest.mark.parametrize("dataset, method, skew, settings, said", REJECTED)
def test_bad_skews_are_rejected(dataset, method, skew, settings, said):
    with pytest.raises(BadInput, match=said):
        experiment(dataset, method=method, num_clients=4, feature_skew=skew, **settings)


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


close = partial(toys.close, rtol=2e-5, atol=1e-6)
ENGINES = {  # {name: (settings of the engine, blocks of rounds)}
    "chunked, streamed, state on host": (
        {"strategy": "chunked", "chunk": 2, "state": "host", "data": "stream"},
        (1, 3),
    ),
    "sequential": ({"strategy": "sequential"}, (4,)),
    "sharded": ({"data": "sharded", "state": "sharded"}, (4,)),
}


@functools.cache
def plain():
    return played()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ENGINES)
def test_results_do_not_depend_on_how_a_run_is_computed(name):
    """The method also trains on the examples of new clients."""
    engine, blocks = ENGINES[name]
    close(played(engine=engine, blocks=blocks), plain())


@pytest.mark.exhaustive
def test_seeds_of_a_vectorized_run_have_the_results_of_separate_runs():
    states, _ = played((3, 0), engine={"seeds": "vectorized"})
    close(states[1:], plain()[0])
    clean = played(sigma=0.0)
    assert not np.allclose(*(jax.tree.leaves(s.server)[1] for s in (clean[0][0], plain()[0][0])))


def unchanged(key, x):
    return x


@pytest.mark.exhaustive
def test_an_identity_augmentation_does_not_change_features_of_skewed_examples():
    """FedConcat's classifiers train on features, which are computed in every batch here."""
    method = {"name": "fedconcat", "num_clusters": 2, "encoder_rounds": 2, "classifier_rounds": 2}
    run = partial(played, blocks=(2, 2), method=method, new_clients=0.0)
    close(run(), run(augment=unchanged))
