"""Configs: defaults, overrides, earlier names, and one-line errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import complaint

from fedjax_lab.data import normalize
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import aliases
from fedjax_lab.experiment.config import resolve, value_at
from fedjax_lab.experiment.keys import DEFAULTS, KEYS, LIMITS
from fedjax_lab.experiment.registry import NAMED, look_up


def str_of(value):
    """The value as text, as a shell passes it."""
    return "9" * 5000 if isinstance(value, int) and value > 10**4000 else str(value)


def test_missing_settings_get_their_defaults():
    config = resolve({"method": {"name": "fedprox"}, "local": {"lr": 1}})
    assert config.method.mu == look_up("method", "fedprox").__kwdefaults__["mu"]
    assert config.local.lr == 1.0 and isinstance(config.local.lr, float)
    assert config.run.to_dict() == DEFAULTS["run"]
    with pytest.raises(AttributeError, match="rounds"):
        config.run.rouns = 3
    config = resolve({"data": {"name": "arrays"}}, [("data.path", "1e3")])
    assert config.data.path == "1e3"  # a path is not parsed as a number


MISTAKES = [
    ({"model": {"name": ["mlp"]}}, "config.model.name must be text, got ['mlp']"),
    ({"data": {"name": {}}}, "config.data.name must be text, got {}"),
    ({"method": {"name": "client2vec", "base": []}}, "config.method.base must be text"),
    ({"run": {5: 1}}, "a key of config.run must be text, got 5"),
    ({None: {}}, "no config section None"),
    ({"local": {"lr": 10**400}}, "config.local.lr must be finite"),
    ({"model": {"name": "mlp", "width": 10**400}}, "config.model.width must be below 2**31"),
    ({"run": {"seed": 10**5000}}, "config.run.seed must be below"),
    ({"local": {"lr": np.ones(3)}}, "config.local.lr must be of type float"),
    ({"local": {"lr": np.float64(0.1)}}, "config.local.lr must be of type float"),
    ({"method": {"name": "fedconcat", "num_clusters": np.ones(3)}}, "must be of type int or"),
    ({"data": {"name": "arrays", "path": None}}, "config.data.path must be text, got None"),
    ({"partition": {"new_clients": 1.0}}, "config.partition.new_clients must be at least 0"),
    ({"partition": {"new_clients": -0.1}}, "config.partition.new_clients must be at least 0"),
    ({"partition": {"new_clients": 0.5, "num_clients": 1}}, "leaves no client to train on"),
    (
        {"partition": {"new_clients": 0.25}, "run": {"cohort": 9}},
        "cohort=9 is more than config.partition.num_clients=10 without 2 new clients",
    ),
]


@pytest.mark.parametrize("config, message", MISTAKES)
def test_a_config_with_a_mistake_is_rejected(config, message):
    assert message in complaint(resolve, config)


def test_a_whole_number_may_be_written_as_a_float():
    for number in ("10", "1e1", "10.0"):
        rounds = resolve({}, [("run.rounds", number)]).run.rounds
        assert rounds == 10 and type(rounds) is int
    assert resolve({"run": {"rounds": 1e1}}).run.rounds == 10
    for wrong in ("1.5", "inf", "1e400"):
        assert "must be of type int" in complaint(resolve, {}, [("run.rounds", wrong)])


def test_booleans_are_written_as_in_absl_flags():
    fedlc = {"method": {"name": "fedlc"}}
    pairs = {True: False, "True": "False", "true": "false", "T": "F", "1": "0"}
    for yes, no in pairs.items():
        for text, expected in ((yes, True), (no, False)):
            config = resolve(fedlc, [("method.exclude_true", text)])
            assert config.method.exclude_true is expected
    message = complaint(resolve, fedlc, [("method.exclude_true", "yes")])
    assert "config.method.exclude_true must be of type bool, got 'yes'" in message


def test_only_boolean_flags_may_be_given_without_a_value():
    for key in ("local.lr", "method.name", "data.unseen", "run.rounds"):
        use = f"use --config.{key}=VALUE"
        assert complaint(resolve, {}, [(key, True)]) == f"--config.{key} needs a value; {use}"
        assert complaint(resolve, {}, [(key, False)]) == f"--noconfig.{key} is not a flag; {use}"


def test_tuples_are_written_as_in_config_flags(monkeypatch):
    def toy(num_classes, *, sizes: tuple = ()):
        pass

    monkeypatch.setitem(NAMED["model"], "toy", toy)
    config = {"model": {"name": "toy"}}
    for text, value in {
        **{"(1,2)": (1, 2), "1,2": (1, 2), "[1, 2]": (1, 2), "3": (3,), "()": ()},
        **{"(a, b)": ("a", "b"), "a": ("a",), "'a','b'": ("a", "b"), "": ()},
    }.items():
        assert resolve(config, [("model.sizes", text)]).model.sizes == value


def test_earlier_names_still_work(monkeypatch):
    for key in ("strategy", "seeds"):
        in_file = resolve({"engine": {key: "vectorised"}})
        given = resolve({}, [(f"engine.{key}", "vectorised")])
        assert in_file.engine[key] == given.engine[key] == "vectorized"
    monkeypatch.setitem(aliases.ALIASES, "local.rate", "local.lr")
    assert resolve({"local": {"rate": 0.5}}).local.lr == 0.5
    assert resolve({"local": {"lr": 0.2}}, [("local.rate", "0.5")]).local.lr == 0.5
    message = complaint(resolve, {"local": {"rate": 0.5, "lr": 0.2}})
    assert message == "config.local.lr is given twice, once under its earlier name"


def test_metrics_are_listed_with_or_without_brackets():
    for text in ("ece,top5", "('ece', 'top5')", "['ece', 'top5']"):
        assert resolve({}, [("run.metrics", text)]).run.metrics == ("ece", "top5")
    assert resolve({"run": {"metrics": ["ece"]}}).run.metrics == ("ece",)
    assert resolve({}).run.metrics == ()
    assert complaint(resolve, {"run": {"metrics": (1,)}}).endswith("must be text, got 1")


def test_every_alias_stands_for_an_existing_name():
    """An alias is not a current name itself."""
    config = resolve({})
    for old, new in aliases.ALIASES.items():
        key, _, value = new.partition("=")
        choices = KEYS[key].choices if key in KEYS else ()
        assert value in choices if value else value_at(config, key) is not None
        assert old.partition("=")[2] not in choices and new not in aliases.ALIASES


def test_every_normalization_is_a_choice():
    assert KEYS["data.normalize"].choices == tuple(normalize.WORDS)


def test_defaults_are_choices_and_within_the_limits():
    for key, known in KEYS.items():
        assert not known.choices or known.default in known.choices
        assert not known.limit or LIMITS[known.limit](key, known.default) is None


VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=4)),
    st.sampled_from(
        [10**400, 10**5000, np.float64(1), np.ones(2), np.array("a"), object, {1}, "\0"]
    ),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


SOME_KEYS = st.one_of(
    st.sampled_from(sorted({"name", "base", *(k for s in DEFAULTS.values() for k in s)})),
    st.text(max_size=5),
    st.integers(),
    st.none(),
)


SECTIONS = st.sampled_from(list(DEFAULTS))


quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)
OVERRIDES = st.tuples(
    st.builds("{}.{}".format, SECTIONS, SOME_KEYS),
    st.one_of(st.text(), VALUES.map(str_of), st.booleans()),
)


@quick
@given(
    st.dictionaries(SECTIONS, st.dictionaries(SOME_KEYS, VALUES, max_size=2), max_size=2),
    st.lists(OVERRIDES, max_size=2),
)
def test_any_config_is_resolved_or_rejected_with_a_short_error(config, overrides):
    for arguments in ((config,), ({}, overrides)):
        try:
            resolve(*arguments)
        except BadInput as error:
            assert len(str(error)) < 2000
