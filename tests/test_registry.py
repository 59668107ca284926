"""Checks names, settings and the words that they accept, and wrappers with a base method."""

import subprocess
import sys

import jax
import pytest
import toys
from inputs import complaint

from fedjax_lab import streams
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import registry
from fedjax_lab.methods.fedprox import fedprox

KEYS = streams.make_keys(jax.random.key(0))


def wrapper(task, make_base, *, strength: float = 1.0):
    """Returns its base and its setting instead of a method."""
    return make_base(task), strength


@pytest.mark.parametrize("kind", registry.NAMED)
def test_every_name_is_that_of_a_part_in_its_module(kind):
    for name in registry.NAMED[kind]:
        part = registry.look_up(kind, name)
        assert (kind, name) == ("augmentation", "none") or registry.name_of(kind, part) == name


def test_parts_are_imported_when_they_are_looked_up():
    code = (
        "import sys; from fedjax_lab.experiment import experiment, registry;"
        " registry.look_up('method', 'fedavg'); registry.look_up('privacy', 'none');"
        " parts = 'fedjax_lab.methods.', 'fedjax_lab.data.sources.', 'scipy';"
        " print([name for name in sys.modules if name.startswith(parts)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['fedjax_lab.methods.fedavg']"


@pytest.fixture
def with_wrapper(monkeypatch):
    monkeypatch.setitem(registry.METHODS, "wrapper", wrapper)


@pytest.mark.parametrize(
    "name, hyper, message",
    [
        ("finetune", {"epochs": -1}, "config.method.epochs must be at least 0, got -1"),
        ("fedprox", {"mu": -0.1}, "config.method.mu must be at least 0, got -0.1"),
        ("fedopt", {"beta2": 1.0}, "config.method.beta2 must be at least 0 and below 1, got 1.0"),
        ("moon", {"tau": 0.0}, "config.method.tau must be above 0, got 0.0"),
    ],
)
def test_an_invalid_setting_of_a_method_is_an_error_that_names_it(name, hyper, message):
    with pytest.raises(BadInput, match=message):
        toys.make(name, **hyper)


def test_a_section_binds_only_the_settings_of_its_function():
    section = {"name": "dirichlet", "alpha": 0.3, "min_size": 1, "tries": 5, "num_clients": 9}
    deal = registry.bind("partition", section)
    assert deal.__name__ == "dirichlet"
    assert deal.keywords == {"alpha": 0.3, "min_size": 1, "tries": 5}


def test_a_wrapper_has_its_own_settings_and_those_of_its_base(with_wrapper):
    settings = {"base": "fedavg", "strength": 1.0}
    assert registry.default_settings(wrapper) == settings
    mu = registry.default_settings(fedprox)["mu"]
    chosen = {"base": "fedprox"}
    assert registry.default_settings(wrapper, chosen) == {**settings, "mu": mu}
    moon = registry.setting_words(registry.look_up("method", "moon"))
    assert registry.setting_words(wrapper, {"base": "moon"}) == moon


def test_a_base_that_cannot_be_wrapped_is_an_error(with_wrapper):
    for base in ("fedprx", "wrapper", ""):
        message = complaint(registry.make_method, "wrapper", toys.NORM, base=base)
        assert f"config.method.base cannot be {base!r}" in message
        assert "'wrapper'" not in message.split(";")[1] and " wrapper" not in message.split(";")[1]
    for base, why in (
        ("fedconcat", "base=fedconcat: it has several stages"),
        ("central", "base=central: its server never sees the updates of several"),
        ("pfedhn", "base=pfedhn: its server never sees the updates of several"),
    ):
        assert why in complaint(toys.make, "wrapper", base=base)


@pytest.mark.slow
def test_settings_reach_the_wrapper_or_its_base(with_wrapper):
    method, strength = toys.make("wrapper", base="fedprox", mu=0.3, strength=2.0)
    assert strength == 2.0
    toys.same(*(toys.player(m)(KEYS, 0, 2) for m in (method, toys.make("fedprox", mu=0.3))))
    with pytest.raises(BadInput, match="method wrapper has no setting 'mu'"):
        toys.make("wrapper", mu=0.3)  # the default base, fedavg, has no mu
    with pytest.raises(BadInput, match="config.method.mu must be at least 0"):
        toys.make("wrapper", base="fedprox", mu=-1.0)
