"""The configs: they accept all methods, and hFedF's have the paper's settings."""

import functools
import runpy
from pathlib import Path

import jax.numpy as jnp
import pytest
from slow_cases import exhaustive_but

from fedjax_lab.experiment import experiment, registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.experiment.registry import METHODS
from fedjax_lab.models.task import make_task

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "lr", "weight_decay"),
    [
        ("pacs", 1e-3, 1e-4),
        ("vlcs", 1e-4, 1e-4),
        ("vlcs:local", 1e-4, 1e-4),
        ("vlcs:fedprox", 1e-3, 1e-4),
        ("office_home", 1e-3, 1e-5),
        ("office_home:fedprox", 1e-3, 1e-4),
    ],
)
def test_hfedf_configs_have_the_papers_settings(text, lr, weight_decay):
    name, _, method = text.partition(":")
    path = ROOT / "configs" / f"hfedf_{name}.py"
    full = resolve(load_config(f"{path}:{method}"))
    assert (full.local.lr, full.local.weight_decay) == (lr, weight_decay)
    assert (full.local.optimizer, full.local.batch_size, full.local.epochs) == ("adam", 64, 2)
    assert (full.run.rounds, full.run.cohort, full.model.width) == (200, 0, 32)
    assert (full.partition.num_clients, full.partition.validation) == (3, 0.1)
    assert full.data.name == name
    assert method != "fedprox" or full.method.mu == 1e-2


CONFIGS = sorted((ROOT / "configs").glob("*.py"))
FIRST = [path for path in CONFIGS if path.stem in ("client2vec_digits", "quickstart")]


@functools.cache
def task_of(model, shape):
    task = make_task(registry.look_up("model", model)(10), shape, 10)
    return task._replace(labels=lambda: jnp.zeros((10, 64)))


def methods_of(path):
    """The methods that a config has settings for, and its default; quickstart: all methods."""
    module = runpy.run_path(str(path))
    if path.stem == "quickstart":
        return list(METHODS)
    return sorted({module["get_config"]()["method"]["name"], *module.get("OWN", {})})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_accepts_every_method(path):
    for method in METHODS:
        config = resolve(load_config(f"{path}:{method}"))
        assert config.method.name == method


@pytest.mark.parametrize("path", exhaustive_but(FIRST, CONFIGS), ids=lambda path: path.stem)
def test_a_config_makes_the_methods_that_it_has_settings_for(path):
    for method in methods_of(path):
        config = resolve(load_config(f"{path}:{method}"))
        size = config.data.get("size", 28)
        shapes = {"fashion_mnist": (size, size, 1), "shakespeare": (80,), "synthetic": (60,)}
        shapes["writers"] = (28, 28, 1)
        task = task_of(config.model.name, shapes.get(config.data.name, (size, size, 3)))
        made = registry.make_method(task=task, **config.method)
        stages = experiment.lay_out(made, config.run.rounds)
        several = method.startswith(("fedconcat", "client2vec"))
        assert several or sum(s.rounds for s in stages) == config.run.rounds
        assert method != "client2vec" or stages[-1].rounds == config.run.rounds
