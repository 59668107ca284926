"""The backdoor: its trigger, which examples get it, and how its success is measured."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS, vector

from fedjax_lab import tree, wire
from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import evaluate
from fedjax_lab.transforms import backdoor
from fedjax_lab.types import Batch, Failures, Work

K = 4
TASK = make_task(nets.mlp(K, width=4), (5, 6, 3), K, highest=jnp.array([1.0, 2.0, 3.0]))


def batch_of(count):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(count, 5, 6, 3)), jnp.float32)
    return Batch(x, jnp.asarray(rng.integers(0, K, count)), jnp.ones(count))


def test_a_share_of_the_examples_is_poisoned_regardless_of_their_order():
    batch, square = batch_of(600), backdoor.trigger(TASK, 2)
    poisoned = jax.jit(partial(backdoor.poison_batch, square, 3, 0.3))
    made = poisoned(batch)
    changed = np.asarray((made.x != batch.x).any((1, 2, 3)))
    assert abs(changed.mean() - 0.3) < 0.05
    expected = np.array(batch.x)
    expected[changed, 3:, 4:] = [1, 2, 3]
    toys.same((made.x, made.y), (expected, np.where(changed, 3, batch.y)))
    backward = poisoned(jax.tree.map(lambda a: np.asarray(a)[::-1], batch))
    toys.same(backward.y[::-1], made.y)


def test_success_counts_only_examples_of_other_classes():
    metric = backdoor.success(backdoor.trigger(TASK, 1), 2)
    logits = jnp.eye(K)[jnp.array([2, 2, 2, 1, 0])]
    sums = metric.statistics(logits, jnp.array([0, 2, 1, 3, 0]), jnp.ones(5))
    assert sums["others"].tolist() == [True, False, True, True, True]
    assert sums["turned"].tolist() == [True, False, True, False, False]
    value = metric.value({"others": np.array([4.0, 0]), "turned": np.array([2.0, 0])}, None)
    assert value[0] == 50 and np.isnan(value[1])


def worked(attack, client_id, task=TASK, attacker=True):
    """The examples with which a client works, from a batch of ten."""
    (exchange,) = attack(spy(), task).round
    batch = batch_of(10)
    work = Work(None, None, lambda size: batch, 1, None)
    client = tree.take(toys.POPULATION, 0)._replace(
        id=jnp.int32(client_id), attacks=jnp.bool_(attacker), label_count=jnp.ones(K)
    )
    return batch, exchange.local((), client, work)[0]


def spy():
    """A method whose clients upload the batch that they draw."""
    plain = toys.bare(toys.make("fedavg"))
    (exchange,) = plain.round
    local = exchange._replace(local=lambda message, client, work: (work.draw(10), ()))
    return plain._replace(round=(local._replace(updates=wire.all_kept),))


def test_each_attacker_of_dba_uses_a_part_of_the_trigger_and_success_the_whole():
    attack = partial(backdoor.dba, size=1, gap=1, poison=1.0, target=2)
    pixels = [(0, 0), (0, 2), (2, 0), (2, 2)]
    for id in (1, 3, 6):
        batch, made = worked(attack, id)
        expected = np.array(batch.x)
        expected[:, *pixels[id % 4]] = [1, 2, 3]
        toys.same((made.x, made.y), (expected, np.full(10, 2)))
    (metric,) = attack(spy(), TASK).extra.metrics
    expected = np.array(batch.x)
    for pixel in pixels:
        expected[:, *pixel] = [1, 2, 3]
    toys.same(metric.view(batch.x), expected)
    assert "images of at least 10 x 10" in complaint(backdoor.dba, spy(), TASK)


def test_blended_examples_are_mixed_with_one_image():
    batch, made = worked(partial(backdoor.blended, blend=0.3, poison=1.0), 0)
    noise = (np.asarray(made.x) - 0.7 * np.asarray(batch.x)) / 0.3
    np.testing.assert_allclose(noise, np.broadcast_to(noise[:1], noise.shape), atol=1e-5)
    assert noise.min() >= 0 and noise.std() > 0.1


def test_a_semantic_backdoor_changes_only_labels_of_examples_with_the_feature():
    attack = partial(backdoor.semantic, source=1, target=3, low=0.0, high=0.5)
    batch, made = worked(attack, 0)
    highest = np.array([1.0, 2.0, 3.0])
    value = (np.asarray(batch.x) / highest).mean((1, 2, 3))
    has = (value >= 0) & (value <= 0.5)
    toys.same((made.x, made.y), (batch.x, np.where(has & (batch.y == 1), 3, batch.y)))
    (metric,) = attack(spy(), TASK).extra.metrics
    logits = jnp.sum(metric.view(batch.x), (1, 2, 3))[:, None] * jnp.zeros(K) + jnp.eye(K)[3]
    sums = metric.statistics(logits, jnp.ones(10, int), jnp.ones(10))
    toys.same((sums["others"], sums["turned"]), (has, has))
    assert has.any() and not has.all()
    words = complaint(backdoor.semantic, spy(), TASK, low=0.6, high=0.5)
    assert words == "config.attack.low=0.6 must be at most config.attack.high=0.5"


@pytest.mark.parametrize("attack", [backdoor.dba, backdoor.blended, backdoor.semantic])
def test_honest_clients_work_with_their_own_examples(attack):
    settings = {"size": 1} if attack is backdoor.dba else {}
    batch, made = worked(partial(attack, **settings), 0, attacker=False)
    toys.same(made, batch)


def test_a_boost_by_the_number_of_clients_replaces_the_model():
    """The others send no change, so that the mean is the attacker's model."""
    sent = jnp.array([3.0, -1.0])
    (exchange,) = backdoor._boosted(toys.bare(toys.make("fedavg")), 4.0).round
    client = tree.take(toys.POPULATION, 0)._replace(attacks=jnp.bool_(True))
    work = Work(None, None, None, 1, None, upload_key=lambda: jax.random.key(0))
    upload, _ = exchange.local(sent, client, work)
    toys.same(upload / 4, sent)


def test_coordinates_that_changed_most_are_held_by_attackers_alone():
    old = {"a": jnp.array([0.0, 1.0, 2.0]), "b": jnp.array([[5.0, 5.0]])}
    new = {"a": jnp.array([0.1, 4.0, 2.0]), "b": jnp.array([[5.0, 3.0]])}
    held = backdoor.most_changed(new, old, 0.4, jnp.bool_(True))
    toys.same(held, {"a": np.array([False, True, False]), "b": np.array([[False, True]])})
    nothing = backdoor.most_changed(new, old, 0.4, jnp.bool_(False))
    assert not any(leaf.any() for leaf in jax.tree.leaves(nothing))


@pytest.mark.slow
def test_attackers_of_neurotoxin_hold_what_changed_most_since_their_last_round():
    """After two rounds of one client whose first model was that of the server."""
    plain = toys.make("fedavg", toys.TASK)
    plan = toys.PLAN._replace(failures=Failures(attackers=1.0), cohort=toys.C)
    play = toys.player(backdoor.rarely_changed(plain, 0.5), plan=plan)
    first = plain.init(KEYS.init, toys.C).server
    one, two, three = (play(KEYS, 0, count)[0].server for count in (1, 2, 3))
    expected = toys.player(plain, plan=plan)(KEYS, 0, 1)[0].server
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # they know no earlier model
    held = backdoor.most_changed(one.params, first.params, 0.5, jnp.bool_(True))
    for is_held, a, b in zip(*map(jax.tree.leaves, (held, two.params, one.params)), strict=True):
        np.testing.assert_allclose(a[is_held], b[is_held], rtol=1e-6)
        assert not np.allclose(a[~is_held], b[~is_held], rtol=1e-6)
    assert not np.allclose(vector(three), vector(two))


def test_inputs_without_space_for_the_trigger_and_bad_settings_are_rejected():
    def rejected(task, **settings):
        return complaint(backdoor.backdoor, toys.make("fedavg"), task, **settings)

    assert "images of at least 3 x 3 pixels, but have the shape [6]" in rejected(toys.TASK)
    assert "6 x 6 pixels, but have the shape [5, 6, 3]" in rejected(TASK, size=6)
    no_class = "config.attack.target=4 is not a class; it must be from 0 to 3"
    assert rejected(TASK, target=4) == no_class
    assert "config.attack.poison must be from 0 to 1" in rejected(TASK, poison=1.1)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Images 6x6 of three classes: stripes at three heights, with noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    x = rng.integers(0, 60, (400, 6, 6))
    x[np.arange(400), y] += 180
    path = tmp_path_factory.mktemp("images") / "images.npz"
    split = np.where(np.arange(400) % 4 == 0, "test", "train")
    np.savez(path, x=x.astype(np.uint8), y=y, split=split)
    return {
        "data": {"name": "arrays", "path": str(path)},
        "partition": {"num_clients": 5},
        "model": {"name": "mlp", "width": 16},
        "local": {"lr": 0.1, "momentum": 0.9, "epochs": 5, "batch_size": 16},
    }


def scores_of(images, **attack):
    made = experiment.build(resolve({**images, "attack": attack, "run": {"rounds": 10}}))
    engine = Engine(made.simulation)
    engine.compile()
    engine.play(10)
    (scores,) = engine.evaluate()
    return evaluate.summarize(scores, made.dataset.domains, made.simulation.plan.metrics)


@pytest.mark.slow
def test_a_backdoor_succeeds_and_the_model_stays_accurate(images):
    settings = {"name": "backdoor", "target": 1, "size": 2, "boost": 3.0}
    attacked, alone = (scores_of(images, **settings, share=share) for share in (0.4, 0.0))
    assert attacked["global"] > 90 and alone["global"] > 90
    assert attacked["global_backdoor_success"] > 50 > 10 > alone["global_backdoor_success"]
    assert len(attacked["backdoor_success"]["per_client"]) == 5
