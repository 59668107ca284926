"""Bounds and choices of settings: what annotations declare, and what the registry refuses."""

import inspect
from functools import partial
from typing import Annotated, Any, Literal

import jax
import numpy as np
import pytest
import toys
from inputs import complaint

from fedjax_lab import ranges
from fedjax_lab.experiment import registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.methods.fedbuff import fedbuff
from fedjax_lab.methods.fedconcat import fedconcat
from fedjax_lab.methods.fedprox import fedprox
from fedjax_lab.ranges import BelowOne, NotNegative, OneOf, Positive, PositiveShare, Share, Within

NO_SETTINGS = ("metric", "augmentation")


@pytest.mark.parametrize(
    "annotation, allowed, refused, words",
    [
        (Positive[float], (1e-30, 1, 2.0**40), (0, 0.0, -1, np.nan), "above 0"),
        (NotNegative[int], (0, 1), (-1,), "at least 0"),
        (Share, (0, 0.5, 1), (-0.1, 1.1), "from 0 to 1"),
        (PositiveShare, (0.1, 1), (0, 1.1), "above 0 and at most 1"),
        (BelowOne, (0, 0.9), (1, -0.1), "at least 0 and below 1"),
        (Annotated[int, Within(2, 1000)], (2, 1000), (1, 1001), "from 2 to 1,000"),
        (Annotated[float, Within(high=9)], (-1e9, 9), (9.1,), "at most 9"),
        (Literal["none", "sum"], ("sum",), ("", "Sum"), "one of none, sum"),
        (Literal[1, 2], (1, 2), (0, 3), "one of 1, 2"),
        (Annotated[str, OneOf({"a": 0})], ("a",), ("b",), "one of a"),
        (Positive[int] | Literal["elbow"], (1, "elbow"), (0,), "above 0"),
        (tuple[Literal["a", "b"], ...], ((), ("a", "b")), (("a", "c"),), "one of a, b"),
        (tuple[PositiveShare, ...], ((), (0.5, 1.0)), ((0.5, 0.0),), "above 0 and at most 1"),
    ],
)
def test_an_annotation_declares_what_a_setting_accepts(annotation, allowed, refused, words):
    limit = ranges.limit_of(annotation)
    assert str(limit) == words
    for value in allowed:
        ranges.check("a.b", value, limit)
    for value in refused:
        assert complaint(ranges.check, "a.b", value, limit).startswith("config.a.b ")


def test_other_annotations_declare_nothing():
    for annotation in (
        int,
        float | Literal["inf"],
        tuple,
        "Positive",
        Any,
        inspect.Parameter.empty,
    ):
        assert ranges.limit_of(annotation) is None


def test_a_traced_setting_is_not_checked():
    limit = ranges.limit_of(Share)
    jax.make_jaxpr(lambda value: ranges.check("a.b", value, limit) or value)(7.0)


@pytest.mark.parametrize("value", [np.float32(-1), np.float64(-1), np.int32(-1), [0.5, -1.0]])
def test_numbers_of_numpy_and_lists_are_checked(value):
    assert "config.method.mu must be at least 0, got " in complaint(fedprox, None, mu=value)


def own(task, *, pull: "Share" = 0.5, ways: "Literal['a', 'b']" = "a", free: float = 1.0):
    """A method of a user whose file stores annotations as text."""


def test_a_part_of_the_user_declares_its_bounds():
    given = {"name": own}
    message = complaint(resolve, {"method": {**given, "pull": 1.5}})
    assert message == "config.method.pull must be from 0 to 1, got 1.5"
    message = complaint(resolve, {"method": {**given, "ways": "c"}})
    assert message == "config.method.ways cannot be 'c'; valid: a, b"
    message = complaint(resolve, {"method": {**given, "free": -1.0}})
    assert message == "config.method.free must be at least 0, got -1.0"  # of every method


@pytest.mark.parametrize(
    "name, setting, message",
    [
        ("fedbuff", {"normalize": "mean"}, "config.method.normalize cannot be 'mean'; valid: "),
        ("fedbuff", {"staleness": "polynomal"}, "did you mean 'polynomial'?"),
        ("fedasync", {"staleness": "polynomal"}, "did you mean 'polynomial'?"),
        (
            "d_psgd",
            {"degree": 10**8},
            "config.method.degree must be from 2 to 1,000, got 100000000",
        ),
        ("dfedavgm", {"degree": 10**8}, "config.method.degree must be from 2 to 1,000"),
        (
            "fedem",
            {"num_components": 10**8},
            "config.method.num_components must be from 1 to 1,000",
        ),
        ("fedgkt", {"server_depth": 10**8}, "config.method.server_depth must be from 0 to 1,000"),
    ],
)
def test_a_setting_out_of_bounds_is_refused_before_anything_is_made(name, setting, message):
    assert message in complaint(resolve, {"method": {"name": name, **setting}})
    assert message in complaint(toys.make, name, **setting)


def parts():
    """(kind, name, function) of all functions of the registry that have settings."""
    for kind in registry.NAMED.keys() - set(NO_SETTINGS):
        for name in registry.NAMED[kind]:
            yield kind, name, registry.look_up(kind, name)


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_method_that_is_called_directly_checks_its_settings(name):
    method = registry.look_up("method", name)
    assert inspect.unwrap(method) is not method
    for key, value in outside(method):
        assert f"config.method.{key} " in complaint(method, None, **{key: value})


def test_a_part_that_is_called_directly_checks_its_settings():
    for kind, name, part in parts():
        for key, value in outside(part):
            assert f".{key} " in complaint(part, **{key: value}), (kind, name)


def outside(part):
    """(setting, value) that a part does not accept, for each of its bounds and lists of words."""
    parameters = ranges.signature(part).parameters
    for key, limit in ranges.limits(part).items():
        if isinstance(limit, OneOf):
            yield from ((key, value) for value in ("unheard of", None))
        elif np.isfinite(limit.low):
            yield key, limit.low - 1
        elif np.isfinite(limit.high):
            yield key, limit.high + 1
        if ranges.words_of(parameters[key].annotation):
            yield key, "unheard of"


def test_a_setting_of_a_call_may_be_traced():
    jax.vmap(lambda mu: fedprox(toys.NORM, mu=mu).round and mu)(np.float32([-1, 1]))


def test_the_words_of_a_call_are_named():
    message = complaint(fedbuff, toys.NORM, staleness="polynomal")
    assert message == "config.method.staleness cannot be 'polynomal'; did you mean 'polynomial'?"
    message = complaint(fedconcat, toys.NORM, num_clusters="elbo")
    assert message.endswith("num_clusters cannot be 'elbo'; did you mean 'elbow'?")


def test_a_method_of_the_user_is_checked_when_it_is_made_by_name():
    made = partial(registry.make_method, f"{__name__}:own", toys.NORM)
    assert "config.method.pull must be from 0 to 1" in complaint(made, pull=2.0)


def test_every_default_is_within_its_bounds():
    for kind, name, function in parts():
        if not registry.is_wrapper(function):
            section = registry.keyword_defaults(function)
            ranges.check_settings(f"{kind}.{name}", function, section)


def test_every_number_declares_bounds():
    """A number of a method has one bound in any case."""
    unlimited = {
        f"{name}.{key}"
        for kind, name, function in parts()
        for key, default in registry.keyword_defaults(function).items()
        if type(default) in (int, float) and key not in registry.limits_of(function)
    }
    assert unlimited == set()
