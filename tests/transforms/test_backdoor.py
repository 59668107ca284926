"""The backdoor: its trigger, which examples get it, and how its success is measured."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint

from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import evaluate
from fedjax_lab.transforms import backdoor
from fedjax_lab.types import Batch

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
