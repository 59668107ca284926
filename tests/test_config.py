"""Configs: defaults, overrides, earlier names, and one-line errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import complaint

from fedjax_lab import ranges
from fedjax_lab.configs import hfedf_digits, quickstart
from fedjax_lab.data import normalize
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import aliases
from fedjax_lab.experiment.config import resolve, value_at
from fedjax_lab.experiment.config_files import load_config, packaged
from fedjax_lab.experiment.keys import DEFAULTS, KEYS
from fedjax_lab.experiment.registry import NAMED, keyword_defaults, look_up
from fedjax_lab.ranges import OneOf


def str_of(value):
    """The value as text, as a shell passes it."""
    return "9" * 5000 if isinstance(value, int) and value > 10**4000 else str(value)


def test_missing_settings_get_their_defaults():
    config = resolve({"method": {"name": "fedprox"}, "local": {"lr": 1}})
    assert config.method.mu == keyword_defaults(look_up("method", "fedprox"))["mu"]
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
    ({"engine": {"strategy": "vectorize"}}, "did you mean 'vectorized'?"),
    ({"run": {"dropout": 1}}, "config.run.dropout must be at least 0 and below 1, got 1.0"),
    ({"run": {"dropout": -0.1}}, "config.run.dropout must be at least 0 and below 1, got -0.1"),
    ({"run": {"straggler": 1.5}}, "config.run.straggler must be from 0 to 1, got 1.5"),
    ({"run": {"straggler": 0.5}}, "config.run.straggler=0.5 needs config.local.epochs of at least"),
]


@pytest.mark.parametrize("config, message", MISTAKES)
def test_a_config_with_a_mistake_is_rejected(config, message):
    assert message in complaint(resolve, config)


def test_whole_numbers_and_booleans_are_written_as_in_absl_flags():
    for number in ("10", "1e1", "10.0"):
        rounds = resolve({}, [("run.rounds", number)]).run.rounds
        assert rounds == 10 and type(rounds) is int
    assert resolve({"run": {"rounds": 1e1}}).run.rounds == 10
    for wrong in ("1.5", "inf", "1e400"):
        assert "must be of type int" in complaint(resolve, {}, [("run.rounds", wrong)])
    fedlc = {"method": {"name": "fedlc"}}
    pairs = {True: False, "True": "False", "true": "false", "T": "F", "1": "0"}
    for yes, no in pairs.items():
        for text, expected in ((yes, True), (no, False)):
            config = resolve(fedlc, [("method.exclude_true", text)])
            assert config.method.exclude_true is expected
    message = complaint(resolve, fedlc, [("method.exclude_true", "yes")])
    assert "config.method.exclude_true must be of type bool, got 'yes'" in message
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


def test_a_removed_key_is_left_out_or_refused():
    """A config of an earlier version has the key, usually with what every run now does."""
    assert "sampling" not in resolve({"engine": {"sampling": "exact"}}).engine
    message = complaint(resolve, {"engine": {"sampling": "device"}})
    assert message == complaint(resolve, {}, [("engine.sampling", "device")])
    assert message.startswith("config.engine.sampling was removed; every run is as with")


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
        choices = getattr(KEYS[key].limit, "values", ()) if key in KEYS else ()
        assert value in choices if value else value_at(config, key) is not None
        assert old.partition("=")[2] not in choices and new not in aliases.ALIASES


def test_every_normalization_is_a_choice():
    assert KEYS["data.normalize"].limit == OneOf(tuple(normalize.WORDS))


def test_defaults_are_choices_and_within_the_limits():
    for key, known in KEYS.items():
        ranges.check(key, known.default, known.limit)


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


# Files of configs.


NESTED = "x = []\n    for _ in range(10**5): x = [x]\n    "


FILES = {  # {content of a config file: part of the error}
    "import sys; sys.exit(0)": "cannot be loaded: SystemExit: 0",
    "def get_config():\n    raise SystemExit": "cannot be loaded: SystemExit",
    "def get_config(:": "SyntaxError",
    "x = 1": "has no attribute 'get_config'",
    "get_config = 1": "not callable",
    "raise ValueError('long ' * 10**5)": "cannot be loaded: ValueError: long",
    "x = " + "-" * 20000 + "1": "cannot be loaded",
    "def get_config():\n    return get_config()": "RecursionError",
    "def get_config():\n    return None": "a config is a dict of sections, each a dict; got None",
    f"def get_config():\n    {NESTED}return x": "got [[[...]]]",
    f"def get_config():\n    {NESTED}return {{'run': {{'rounds': x}}}}": "config.run.rounds must",
    "x = '\udcff'": "UTF-8",
    "x = 1\0": "null bytes",
}


@pytest.mark.parametrize("text", FILES, ids=range(len(FILES)))
def test_a_config_file_with_a_mistake_is_a_one_line_error(tmp_path, text):
    path = tmp_path / "config.py"
    path.write_bytes(text.replace("\udcff", "\xff").encode("latin-1"))
    message = complaint(lambda: resolve(load_config(str(path))))
    assert FILES[text].lower() in message.lower() and len(message) < 500


def test_a_config_path_that_is_not_a_file_is_rejected(tmp_path, monkeypatch):
    """The message lists the config files of the current folder, or the nearest packaged config."""
    monkeypatch.chdir(tmp_path)
    for name in ("quickstrat", "quickstrat:fedavg", "configs/quickstart.py"):
        assert complaint(load_config, name).endswith("did you mean 'quickstart'?")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folders.py").touch()
    message = complaint(load_config, str(tmp_path / "folder.py"))
    assert message.startswith("no config file ") and "folders.py'?" in message
    for path in ("a" * 5000, "a\0b"):
        assert len(complaint(load_config, path)) < 600


def test_a_config_file_may_have_colons_and_any_suffix_and_be_interrupted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "at 10:30"
    folder.mkdir()
    path = folder / "config.txt"
    path.write_text("def get_config(method='moon'):\n    return {'method': {'name': method}}")
    for text, method in ((f"{path}", "moon"), (f"{path}:fedavg", "fedavg")):
        assert load_config(text) == {"method": {"name": method}}
    (tmp_path / "near.py").write_text("def near(task): return task")
    assert load_config(f"{path}:near.py:near")["method"]["name"] == "near.py:near"
    path.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_config(str(path))


def test_packaged_configs_are_found_by_name_and_files_take_precedence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {"quickstart", "hfedf_digits"} <= packaged().keys() and "__init__" not in packaged()
    assert load_config("quickstart") == quickstart.get_config()
    assert load_config("hfedf_digits:fedprox") == hfedf_digits.get_config("fedprox")
    (tmp_path / "quickstart").mkdir()  # a folder is not a config
    assert load_config("quickstart") == quickstart.get_config()
    (tmp_path / "quickstart").rmdir()
    (tmp_path / "quickstart").write_text("def get_config():\n    return {'run': {'rounds': 3}}")
    assert load_config("quickstart") == {"run": {"rounds": 3}}
