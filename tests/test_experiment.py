"""Experiments that are built from configs: plans, federations, and errors about them."""

import functools

import jax
import numpy as np
import own_parts
import pytest
import toys
from inputs import complaint

from fedjax_lab.engine import parallel
from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment, references
from fedjax_lab.experiment.config import resolve
from fedjax_lab.methods import _sizes
from fedjax_lab.methods.fedconcat_id import noise as noisy_inputs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of 300 4x4 images of three classes and three domains, a fifth of them for testing."""
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
    return experiment.build(resolve(config), list(seeds))


def test_each_color_channel_has_its_mean_and_standard_deviation(tmp_path):
    x = np.zeros((50, 2, 2, 3), np.uint8)
    np.savez(tmp_path / "color.npz", x=x, y=np.arange(50) % 2)
    e = build(str(tmp_path / "color.npz"), data_more={"normalize": "cifar100"})
    black = (0 - e.simulation.seeds[0].federation.center) * e.simulation.seeds[0].federation.scale
    np.testing.assert_allclose(black, [-1.89683, -1.89732, -1.59667], rtol=1e-4)
    noise = np.asarray(noisy_inputs(e.task, jax.random.key(0), 500))
    np.testing.assert_allclose(noise.min((0, 1, 2)), black, atol=0.02)


def test_a_setting_that_does_not_fit_the_images_is_rejected(data, tmp_path):
    vectors = str(tmp_path / "flat.npz")
    np.savez(vectors, x=np.zeros((50, 5), np.float32), y=np.arange(50) % 2)
    for path, more, message in (
        (data, {"normalize": "cifar100"}, "config.data.normalize=cifar100 needs color images"),
        (data, {"augment": "cifar"}, "did you mean 'cifar10"),
        (vectors, {"augment": "cifar10"}, "config.data.augment=cifar10 needs images"),
    ):
        assert message in complaint(build, path, data_more=more)


def test_equal_steps_requires_equally_many_batches_on_all_clients(data):
    """Of 240 examples, 7 clients have 34 or 35: with a batch size of three, both are 12 batches."""
    for batch_size, equal in ((1, False), (2, False), (3, True), (64, True)):
        e = build(data, partition={"num_clients": 7}, local={"batch_size": batch_size})
        assert e.simulation.plan.equal_steps is equal


@pytest.mark.slow
def test_a_pooled_method_trains_on_all_examples_on_a_device_mesh(data):
    """The mesh divides clients as with several processes, each of which must take part."""
    e = build(data, method={"name": "central"}, partition={"num_clients": 6})
    mesh = parallel.on_mesh(parallel.make_mesh(4), parallel.sequential(), by_client=True)
    engine = Engine(toys.changed(e, strategy=mesh).simulation)
    engine.compile()
    while engine.played < 6:
        engine.play(6 - engine.played)
    assert engine.progress().examples.tolist() == [6 * 240]
    assert e.simulation.plan.cohort == 1 and e.simulation.plan.equal_steps


@pytest.fixture(scope="module")
def products(data):
    """A function that returns the matrix products of a run's rounds and evaluation, in StableHLO.

    Its arguments are settings of the engine; it returns a list of lines.
    """

    @functools.cache
    def lines(**engine):
        (programs,) = Engine(build(data, engine=engine).simulation, abstract=True).lower().values()
        text = programs.play.as_text() + programs.score.as_text()
        return [line for line in text.splitlines() if "dot_general" in line]

    return lines


@pytest.mark.slow
def test_the_precision_and_dtype_of_matrix_products_follow_the_config(products):
    assert any("DEFAULT" in line for line in products())
    assert not any("bf16" in line for line in products())
    highest = products(precision="highest")
    assert not any("DEFAULT" in line for line in highest)
    assert sum("HIGHEST" in line for line in highest) > 3
    in_bfloat16 = products(dtype="bfloat16")
    assert sum("bf16" in line for line in in_bfloat16) > 3
    server = [line for line in in_bfloat16 if "HIGHEST" in line]  # the server's mean of the uploads
    assert server and not any("bf16" in line for line in server)


def test_vectorized_seeds_share_the_memory_of_a_device(data):
    """An MLP 16-64-3 has 5 KiB: 30 clients fit the caches of a device, 100 times as many do not."""
    many = {"partition": {"num_clients": 240}, "local": {"batch_size": 1, "epochs": 1}}
    names = [build(data, seeds, **many).simulation.strategy.name for seeds in ((0,), range(100))]
    assert names[0].endswith("vectorized") and not names[1].endswith("vectorized")


@pytest.mark.parametrize(
    ("fsdp", "more", "message"),
    [
        (3, {}, "config.engine.fsdp=3 does not divide the 8 devices; choose 1 or 2 or 4 or 8"),
        (0, {}, "config.engine.fsdp must be above 0, got 0"),
        (4, {"local": {"batch_size": 6}}, "config.engine.fsdp=4 does not divide a batch of 6"),
        (2, {"method": {"name": "pfedhn"}}, "does not fit method pfedhn: its clients take turns"),
    ],
)
def test_an_invalid_fsdp_setting_is_rejected(data, fsdp, more, message):
    more = {"local": {"batch_size": 48}, **more}
    assert message in complaint(build, data, engine={"fsdp": fsdp}, **more)


def test_each_fsdp_group_of_devices_trains_one_client_at_a_time(data):
    """Eight devices as groups of four train two clients at a time."""
    job = build(data, engine={"fsdp": 4}, local={"batch_size": 16})
    assert job.simulation.strategy.name == "mesh(2 x fsdp 4) x sequential"
    assert job.simulation.plan.eval_batch == 100
    assert build(data, engine={"fsdp": 8}).simulation.plan.eval_batch == 104
    assert not build(data, (0, 1), engine={"fsdp": 8}).simulation.vectorized_seeds


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"x": [[0.0]]}, "the dataset's x must be an array, not [[0.0]]"),
        ({"x": np.array([object()] * 240)}, "the dataset's x must be numbers, not object"),
        ({"y": np.full(240, "a")}, "the dataset's y must be numbers, not <U1"),
        ({"domain": np.ones(240, int)}, "row 0 has domain 1, out of range 0..0"),
        ({"classes": 3}, "the label names must be a tuple of text, not 3"),
    ],
)
def test_a_user_defined_dataset_is_validated(fields, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_parts.write(tmp_path)
    blobs = references.find("own.py:blobs")
    config = resolve({"data": {"name": lambda: blobs()._replace(**fields)}})
    assert complaint(experiment.load_data, config.data) == message


def test_the_error_for_missing_validation_rows_names_the_setting(data):
    choosing = {"name": "knn_per", "weight": "validation"}
    for method in ({"name": "fedfomo"}, choosing):
        message = complaint(build, data, method=method)
        assert f"method {method['name']}: it needs validation examples of its clients" in message
        assert "--config.partition.validation=0.2" in message
        build(data, method=method, partition={"validation": 0.2})
    build(data, method={"name": "knn_per"}, partition={"new_clients": 0.2})
    partition = {"validation": 0.2, "new_clients": 0.2}
    message = complaint(build, data, method=choosing, partition=partition)
    assert "of new clients, which have none" in message


def test_a_method_with_pairwise_numbers_has_a_limit_of_clients(data, monkeypatch):
    monkeypatch.setattr(_sizes, "MOST_PAIRS", 25)
    partition = {"num_clients": 6, "validation": 0.2}
    message = complaint(build, data, method={"name": "fedfomo"}, partition=partition)
    assert "6 clients; it takes at most 5" in message
