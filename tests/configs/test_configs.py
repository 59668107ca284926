"""The configs: they accept all methods, and hFedF's have the paper's settings."""

import functools
import runpy
from pathlib import Path

import numpy as np
import pytest
from inputs import complaint
from slow_cases import exhaustive_but

from fedjax_lab.configs import hfedf_digits, hfedf_pacs, hfedf_tuning
from fedjax_lab.data import places
from fedjax_lab.data.sources.digit_domains import DOMAINS, digit_domains
from fedjax_lab.experiment import experiment, registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import PLAIN, load_config, packaged
from fedjax_lab.experiment.registry import METHODS
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.models.task import make_task
from fedjax_lab.testing.toy import needs_adapters

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
    return task._replace(embeddings=lambda: Embeddings(np.zeros((1, 64)), np.zeros((10, 64))))


def methods_of(path):
    """The methods that a config has settings for, and its default.

    Quickstart: all methods for models without adapters.
    """
    module = runpy.run_path(str(path))
    if path.stem == "quickstart":
        return [name for name in METHODS if not needs_adapters(name)]
    return sorted({module["get_config"]()["method"]["name"], *module.get("OWN", {})})


@pytest.mark.parametrize(
    "path, methods",
    [(path, METHODS if path in FIRST else ["fedconcat", "hfedf"]) for path in CONFIGS],
    ids=lambda value: getattr(value, "stem", ""),
)
def test_every_config_accepts_other_methods(path, methods):
    for method in methods:
        config = resolve(load_config(f"{path}:{method}"))
        assert config.method.name == method


@pytest.mark.parametrize("path", exhaustive_but(FIRST, CONFIGS), ids=lambda path: path.stem)
def test_a_config_makes_the_methods_that_it_has_settings_for(path):
    for method in methods_of(path):
        config = resolve(load_config(f"{path}:{method}"))
        size = config.data.get("size", 28)
        shapes = {"fashion_mnist": (size, size, 1), "shakespeare": (80,), "synthetic": (60,)}
        shapes["plays"] = (80,)
        shapes["writers"] = shapes["mnist"] = (28, 28, 1)
        task = task_of(config.model.name, shapes.get(config.data.name, (size, size, 3)))
        made = registry.make_method(task=task, **config.method)
        stages = experiment.lay_out(made, config.run.rounds)
        more = method.startswith(("fedconcat", "client2vec", "fedfed"))  # stages with their own
        assert more or sum(s.rounds for s in stages) == config.run.rounds
        assert method not in ("client2vec", "fedfed") or stages[-1].rounds == config.run.rounds


REFUSED = {
    "cifar10": "fedjax-lab data get cifar10",
    "mnist": "fedjax-lab data get mnist",
    "image_folder": "config.data.folder is empty: config.data.folder takes a folder with",
    "table": "config.data.path is empty",
}


@pytest.mark.parametrize("name, said", REFUSED.items())
def test_a_plain_config_says_in_one_line_how_to_get_its_data(name, said, monkeypatch):
    monkeypatch.setattr(places, "PLACES", ("/nowhere",))
    assert said in complaint(experiment.load_data, resolve(load_config(name)).data)


def test_an_unknown_config_is_answered_with_the_plain_ones_first():
    message = complaint(load_config, "no_such_config")
    assert f"valid: {', '.join(PLAIN)}, asynchronous" in message
    assert set(PLAIN) <= packaged().keys()


# hFedF for the digit domains: the settings of Table 10, and the data without the target.


OF_PAPER = "central", "local", "fedavg", "fedprox", "fedsr", "fedgma", "pfedhn", "hfedf"


def test_the_digits_have_the_settings_of_pacs():
    """Only the data, the network, embedding_dim and the number of clients differ."""
    for method in OF_PAPER:
        digits = resolve(hfedf_digits.get_config(method))
        pacs = resolve(hfedf_pacs.get_config(method))
        assert digits.local == pacs.local
        dimension = {"embedding_dim": 1} if method == "hfedf" else {}
        assert digits.method.to_dict() == {**pacs.method.to_dict(), **dimension}
        assert digits.run.rounds == pacs.run.rounds == 200
        assert (digits.partition.num_clients, pacs.partition.num_clients) == (4, 3)


def test_hfedf_has_the_settings_of_table_10():
    config = resolve(hfedf_digits.get_config("hfedf"))
    assert (config.method.server_lr, config.local.lr, config.local.weight_decay) == (1e-3,) * 3
    assert (config.method.server_decay, config.method.ema) == (1e-5, 0.95)
    assert (config.local.batch_size, config.run.rounds, config.method.embedding_dim) == (64, 200, 1)


@pytest.mark.slow
def test_the_data_for_tuning_exclude_the_target_domain():
    whole = digit_domains(size=16, train_per_domain=400)
    made = hfedf_tuning.digit_domains_without(target="street", size=16, train_per_domain=400)
    assert made.domains == tuple(name for name in DOMAINS if name != "street")
    for name in made.domains:
        rows, where = made.domain == made.domains.index(name), whole.domain == DOMAINS.index(name)
        assert np.array_equal(made.x[rows], whole.x[where])
        assert np.array_equal(made.y[rows], whole.y[where])
        assert np.array_equal(made.test[rows], whole.test[where])
    assert len(made.y) == 4 * 900
    message = complaint(hfedf_tuning.digit_domains_without, target="stret")
    assert message.startswith("config.data.target") and "street" in message


def test_tuning_holds_out_another_domain_for_each_target():
    assert set(hfedf_tuning.HELD_OUT) == set(hfedf_tuning.HELD_OUT.values()) == set(DOMAINS)
    assert all(target != held_out for target, held_out in hfedf_tuning.HELD_OUT.items())
    config = resolve(hfedf_tuning.get_config("fedprox"))
    simulation = experiment.build(config, [0]).simulation
    federation = simulation.seeds[0].federation
    assert len(federation.unseen) == 900 and config.data.unseen == "street"
    assert len(federation.train.count) == 3
