"""From configs to federations, plans and numbers of a summary; nothing here is compiled."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys

from fedjax_lab import experiment
from fedjax_lab.errors import BadInput


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """300 images 4x4, three classes, three domains, a fifth for testing."""
    path = tmp_path_factory.mktemp("data") / "small.npz"
    rng = np.random.default_rng(0)
    split = np.where(np.arange(300) % 5 == 0, "test", "train")
    domain = np.array(["a", "b", "c"])[np.arange(300) % 3]
    x = rng.integers(0, 256, (300, 4, 4), dtype=np.uint8)
    np.savez(path, x=x, y=rng.integers(0, 3, 300), domain=domain, split=split)
    return str(path)


def build(data, seeds=(0,), **sections):
    config = {"data": {"name": "arrays", "path": data}, **sections}
    config["data"] |= sections.get("data_more", {})
    config.pop("data_more", None)
    return experiment.build(experiment.resolve(config), list(seeds))


def held(rows):
    rows = np.asarray(rows)
    return rows[rows >= 0]


def test_every_example_has_one_place(data):
    e = build(data, partition={"num_clients": 4, "validation": 0.25})
    f = e.simulation.federations[0]
    train, validation = held(f.train), held(f.validation)
    assert not set(train) & set(validation)
    assert sorted([*train, *validation]) == np.flatnonzero(~e.dataset.test).tolist()
    assert sorted(held(f.test)) == np.flatnonzero(e.dataset.test).tolist()
    np.testing.assert_array_equal(f.world, np.flatnonzero(e.dataset.test))
    assert f.unseen is None and len(validation) == 60


def test_an_unseen_domain_is_seen_by_nobody(data):
    e = build(data, data_more={"unseen": "b"}, partition={"num_clients": 4, "validation": 0.1})
    f = e.simulation.federations[0]
    domain = e.dataset.domains.index("b")
    for rows in (f.train, f.validation, f.test, f.world):
        assert domain not in e.dataset.domain[held(rows)]
    np.testing.assert_array_equal(f.unseen, np.flatnonzero(e.dataset.domain == domain))


def test_partitions_follow_the_seed_alone(data):
    a = build(data, (3, 4))
    b = build(data, (4,), method={"name": "ifca"}, run={"rounds": 7})
    np.testing.assert_array_equal(
        a.simulation.federations[1].train, b.simulation.federations[0].train
    )
    assert not np.array_equal(a.simulation.federations[0].train, a.simulation.federations[1].train)


def test_colour_channels_have_a_mean_and_a_deviation(tmp_path):
    x = np.zeros((50, 2, 2, 3), np.uint8)
    np.savez(tmp_path / "colour.npz", x=x, y=np.arange(50) % 2)
    e = build(str(tmp_path / "colour.npz"), data_more={"normalize": "cifar100"})
    black = (0 - e.simulation.federations[0].center) * e.simulation.federations[0].scale
    np.testing.assert_allclose(black, [-1.89683, -1.89732, -1.59667], rtol=1e-4)
    noise = np.asarray(e.task.noise(jax.random.key(0), 500))
    np.testing.assert_allclose(noise.min((0, 1, 2)), black, atol=0.02)


@pytest.mark.parametrize(
    "more, message",
    [
        ({"normalize": "cifar100"}, "config.data.normalize=cifar100 needs colour images"),
        ({"augment": "cifar"}, "did you mean 'cifar10"),
    ],
)
def test_what_does_not_fit_the_images_is_named(data, more, message):
    with pytest.raises(BadInput, match=message):
        build(data, data_more=more)


def test_only_images_are_augmented(tmp_path):
    np.savez(tmp_path / "flat.npz", x=np.zeros((50, 5), np.float32), y=np.arange(50) % 2)
    with pytest.raises(BadInput, match="config.data.augment=cifar10 needs images"):
        build(str(tmp_path / "flat.npz"), data_more={"augment": "cifar10"})


@pytest.mark.parametrize("name, low, high", [("unit", 0, 1), ("half", -1, 1)])
def test_pixels_are_normalised(data, name, low, high):
    f = build(data, data_more={"normalize": name}).simulation.federations[0]
    assert float((0 - f.center) * f.scale) == low
    assert float((255 - f.center) * f.scale) == pytest.approx(high)


@pytest.mark.parametrize("batch_size, equal", [(1, False), (2, False), (3, True), (64, True)])
def test_equal_steps_only_where_all_have_as_many_batches(data, batch_size, equal):
    """240 examples on 7 clients: some hold 34, some 35; in threes both are 12 batches."""
    e = build(data, partition={"num_clients": 7}, local={"batch_size": batch_size})
    assert e.simulation.plan.equal_steps is equal


def test_a_pooled_method_trains_on_everything(data):
    e = build(data, method={"name": "central"}, partition={"validation": 0.2})
    (row,) = np.asarray(e.simulation.training[0].train)
    assert sorted(row) == sorted(held(e.simulation.federations[0].train))
    assert e.simulation.plan.cohort == 1 and e.simulation.plan.equal_steps


@pytest.mark.parametrize(
    "settings, steps",
    [
        ({"lr": 0.5, "momentum": 0.9, "weight_decay": 0.1}, [-0.6, -1.11]),
        ({"lr": 0.5, "optimizer": "adam"}, [-0.5, -0.5]),
    ],
)
def test_the_clients_optimiser_is_the_configs(settings, steps):
    config = experiment.resolve({"local": settings})
    optimizer, w = experiment.make_optimizer(config), jnp.float32(2.0)
    state = optimizer.init(w)
    for expected in steps:  # gradient 1: sgd moves by lr * m, m = 1.2, then 1.08 + 1.14
        update, state = optimizer.update(jnp.float32(1.0), state, w)
        assert float(update) == pytest.approx(expected, rel=1e-4)
        w = optax.apply_updates(w, update)


def test_convolutions_are_noticed(data):
    assert not experiment.has_convolutions(build(data).task)
    net = experiment.nets.digit_cnn(3)
    task = experiment.make_task(net, (28, 28, 3), 3)
    assert experiment.has_convolutions(task)


@pytest.mark.parametrize(
    "name, hyper, message",
    [
        ("finetune", {"epochs": -1}, "config.method.epochs must not be negative, got -1"),
        ("fedprox", {"mu": -0.1}, "config.method.mu must not be negative, got -0.1"),
        ("feddyn", {"alpha": 0.0}, "config.method.alpha must be above 0, got 0.0"),
        ("fedopt", {"beta2": 1.0}, "config.method.beta2 must be at least 0 and below 1, got 1.0"),
        ("moon", {"tau": 0.0}, "config.method.tau must be above 0, got 0.0"),
        ("fedopt", {"tau": 0.0}, "config.method.tau must be above 0, got 0.0"),
    ],
)
def test_a_senseless_setting_of_a_method_is_named(name, hyper, message):
    with pytest.raises(BadInput, match=message):
        toys.make(name, **hyper)


def test_importing_the_package_starts_nothing():
    """No extra, no backend: a library import must not touch the devices."""
    import subprocess

    code = (
        "import sys, fedjax_lab, fedjax_lab.runner, jax._src.xla_bridge as b;"
        "print(len(b._backends), [m for m in ('torch', 'tensorflow', 'transformers',"
        " 'matplotlib.pyplot', 'orbax') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "0 []", out.stdout
    assert jax.__version__
