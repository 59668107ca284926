"""From configs to federations, plans and numbers of a summary; nothing here is compiled."""

import functools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import complaint

from fedjax_lab import experiment, methods, metrics, report
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import METHODS


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


def str_of(value):
    """As a shell passes it."""
    return "9" * 5000 if isinstance(value, int) and value > 10**4000 else str(value)


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


ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.py"))


@functools.cache
def task_of(model, shape):
    task = experiment.make_task(experiment.NAMED["model"][model](10), shape, 10)
    return task._replace(labels=lambda: jnp.zeros((10, 64)))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("method", METHODS)
def test_every_config_takes_every_method(path, method):
    config = experiment.resolve(experiment.load_config(f"{path}:{method}"))
    assert config.method.name == method
    size = config.data.get("size", 28)
    shapes = {"fashion_mnist": (size, size, 1), "shakespeare": (80,)}
    task = task_of(config.model.name, shapes.get(config.data.name, (size, size, 3)))
    made = methods.make(method, task, **experiment._settings(config, "method"))
    stages = experiment.lay_out(made, config.run.rounds)
    assert sum(s.rounds for s in stages) == config.run.rounds or method.startswith(
        ("fedconcat", "client2vec")
    )
    if method == "client2vec":
        assert stages[-1].rounds == config.run.rounds


def test_the_papers_settings():
    def config(text):
        return experiment.resolve(experiment.load_config(str(ROOT / "configs" / text)))

    fedrep = config("fedpick_digits.py:fedrep")
    assert (fedrep.method.head_epochs, fedrep.method.body_epochs) == (4, 1)
    assert fedrep.method.head_layers == config("fedpick_digits.py:fedper").method.head_layers == 2
    for text, weight in (("digits", 10.0), ("office", 1.0), ("domainnet", 1.0)):
        pick = config(f"fedpick_{text}.py:fedpick").method
        assert pick.tau == pick.lam_lce == pick.lam_dis == weight and pick.lam_ent == 0.001
    assert config("fedpick_digits.py:lg_fedavg").method.head_layers == 1
    local = config("fedpick_digits.py").local
    assert (local.lr, local.momentum, local.batch_size, local.epochs) == (0.01, 0.5, 64, 1)
    assert config("fedpick_digits.py").run.rounds == 300
    c2i = config("fedc2i_digits.py:fedprox")
    assert (c2i.local.optimizer, c2i.local.lr, c2i.local.batch_size) == ("adam", 1e-3, 32)
    assert (c2i.local.epochs, c2i.run.rounds, c2i.method.mu) == (2, 20, 0.01)
    large = config("fedconcat_large.py:fedconcat")
    assert (large.partition.num_clients, large.run.cohort, large.run.rounds) == (200, 40, 500)
    decay = large.method.encoder_decay + large.local.weight_decay
    assert decay == pytest.approx(1e-3) and large.method.balanced
    cifar = config("client2vec_cifar10.py")
    assert (cifar.partition.alpha, cifar.partition.num_clients, cifar.run.cohort) == (0.1, 100, 10)
    local = cifar.local
    assert (local.lr, local.momentum, local.weight_decay, local.epochs) == (0.01, 0.0, 5e-5, 5)
    domains = config("client2vec_domainnet.py:moon")
    assert (domains.data.classes, domains.data.size, domains.partition.num_clients) == (50, 64, 60)
    assert (domains.local.momentum, domains.run.cohort, domains.run.rounds) == (0.9, 6, 100)
    assert domains.method.projection == "mlp256"
    skew = config("fmnist_label_skew.py:moon")
    assert (skew.partition.num_clients, skew.local.epochs, skew.run.rounds) == (40, 10, 50)
    assert (skew.local.lr, skew.local.momentum, skew.local.weight_decay) == (0.01, 0.9, 1e-5)
    assert (skew.local.batch_size, skew.method.mu, skew.method.projection) == (64, 0.01, "none")


def test_the_table_of_methods_shows_the_population_deviation():
    sys.path.insert(0, str(ROOT / "launch"))
    import table

    per_seed = {s: {"domains": {"a": a, "b": 90.0}} for s, a in enumerate([80.0, 84.0])}
    row = table.cells(per_seed)
    lines = table.markdown({"fedavg": row, "local": {**row, "a": row["a"] - 1}})
    assert lines[0] == "| | a | b | mean |"
    assert lines[2] == "| `fedavg` | **82.0 (2.0)** | **90.0 (0.0)** | **86.0 (1.0)** |"
    assert lines[3].startswith("| `local` | 81.0 (2.0) |")
    assert table.markdown({}) == ["no run came to its end"]


def test_a_config_is_filled_with_every_default():
    config = experiment.resolve({"method": {"name": "fedprox"}, "local": {"lr": 1}})
    assert config.method.mu == METHODS["fedprox"].__kwdefaults__["mu"]
    assert config.local.lr == 1.0 and isinstance(config.local.lr, float)
    assert config.run.to_dict() == experiment.DEFAULTS["run"]
    with pytest.raises(AttributeError, match="rounds"):
        config.run.rouns = 3


NESTED = "x = []\n    for _ in range(10**5): x = [x]\n    "
FILES = {  # what a config file holds, and what is said of it
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
def test_a_config_file_with_a_mistake_is_told_in_one_line(tmp_path, text):
    path = tmp_path / "config.py"
    path.write_bytes(text.replace("\udcff", "\xff").encode("latin-1"))
    said = complaint(lambda: experiment.resolve(experiment.load_config(str(path))))
    assert FILES[text].lower() in said.lower() and len(said) < 500


def test_a_config_path_that_is_no_file(tmp_path):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folders.py").touch()
    said = complaint(experiment.load_config, str(tmp_path / "folder.py"))
    assert said.startswith("no config file ") and "did you mean" in said and "folders.py'?" in said
    for path in ("a" * 5000, "a\0b"):
        assert len(complaint(experiment.load_config, path)) < 200


def test_a_config_file_may_have_any_ending_and_ctrl_c_stays_one(tmp_path):
    path = tmp_path / "config.txt"
    path.write_text("def get_config():\n    return {'run': {'rounds': 3}}")
    assert experiment.load_config(str(path)) == {"run": {"rounds": 3}}
    path.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        experiment.load_config(str(path))


@pytest.mark.parametrize(
    "config, said",
    [
        ({"model": {"name": ["mlp"]}}, r"config.model.name must be text, got \['mlp'\]"),
        ({"data": {"name": {}}}, "config.data.name must be text, got {}"),
        ({"method": {"name": "client2vec", "base": []}}, "config.method.base must be text"),
        ({"run": {5: 1}}, "a key of config.run must be text, got 5"),
        ({None: {}}, "no config section None"),
        ({"local": {"lr": 10**400}}, "config.local.lr must be finite"),
        ({"model": {"name": "mlp", "width": 10**400}}, r"config.model.width must be below 2\*\*31"),
        ({"run": {"seed": 10**5000}}, "config.run.seed must be below"),
        ({"local": {"lr": np.ones(3)}}, "config.local.lr must be of type float"),
        ({"local": {"lr": np.float64(0.1)}}, "config.local.lr must be of type float"),
        ({"method": {"name": "fedconcat", "num_clusters": np.ones(3)}}, "must be of type int or"),
        ({"data": {"name": "arrays", "path": None}}, "config.data.path must be text, got None"),
    ],
)
def test_a_config_with_a_mistake_is_told(config, said):
    with pytest.raises(BadInput, match=said):
        experiment.resolve(config)


def test_a_path_is_taken_as_it_is_written():
    config = experiment.resolve({"data": {"name": "arrays"}}, [("data.path", "1e3")])
    assert config.data.path == "1e3"


VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=4)),
    st.sampled_from(
        [10**400, 10**5000, np.float64(1), np.ones(2), np.array("a"), object, {1}, "\0"]
    ),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = st.one_of(
    st.sampled_from(
        sorted({"name", "base", *(k for s in experiment.DEFAULTS.values() for k in s)})
    ),
    st.text(max_size=5),
    st.integers(),
    st.none(),
)
SECTIONS = st.sampled_from(list(experiment.DEFAULTS))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.dictionaries(SECTIONS, st.dictionaries(KEYS, VALUES, max_size=2), max_size=3))
def test_any_config_is_resolved_or_told_in_one_line(config):
    try:
        experiment.resolve(config)
    except BadInput as error:
        assert len(str(error)) < 2000


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.tuples(
            st.builds("{}.{}".format, SECTIONS, KEYS), st.one_of(st.text(), VALUES.map(str_of))
        ),
        max_size=3,
    )
)
def test_any_override_is_taken_or_told_in_one_line(overrides):
    try:
        experiment.resolve({}, overrides)
    except BadInput as error:
        assert len(str(error)) < 2000


def test_convolutions_are_noticed(data):
    assert not experiment.has_convolutions(build(data).task)
    net = experiment.nets.digit_cnn(3)
    task = experiment.make_task(net, (28, 28, 3), 3)
    assert experiment.has_convolutions(task)


ROWS = [
    {"round": r, "seed": s, "train_loss": 1.0, "accuracy": {"mean": a, "per_client": []}, "id": v}
    for s, values in enumerate([[(50, 9), (70, 5), (60, 7)], [(55, 1), (45, 3), (65, 2)]])
    for r, (a, v) in enumerate(values, 1)
]


def test_the_three_ways_to_choose_a_round():
    got = metrics.summarise(ROWS, [0, 1])
    rounds = {way: [got[way]["per_seed"][s]["round"] for s in "01"] for way in got}
    assert rounds == {"last": [3, 3], "best_by_validation": [1, 2], "max_over_rounds": [2, 3]}
    assert got["last"]["mean"]["accuracy"]["mean"] == 62.5
    assert got["last"]["std"]["accuracy"]["mean"] == pytest.approx(np.std([60, 65], ddof=1))
    assert got["last"]["ddof"] == 1
    assert not {"std", "ddof"} & set(metrics.summarise(ROWS[:3], [0])["last"])


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


def test_the_best_round_of_each_domain_is_a_way_of_its_own():
    """What FedPick reports. The mean is over each client's own best."""
    rows = [
        {"round": r, "seed": 0, "train_loss": 1.0, "domains": {"a": a, "b": b}}
        | {"accuracy": {"mean": (a + b + 10) / 3, "per_client": [a, b, 10.0, None]}}
        for r, (a, b) in enumerate([(50.0, 30.0), (40.0, 60.0), (45.0, 55.0)], 1)
    ]
    got = metrics.summarise(rows, [0])
    assert got["max_over_rounds"]["mean"]["domains"] == {"a": 40.0, "b": 60.0}
    assert got["max_per_domain"]["mean"] == {
        "domains": {"a": 50.0, "b": 60.0},
        "accuracy": {"mean": 40.0},
    }
    table = report.closing_table({**got, "seeds": [0]})
    assert "max per domain" in table.splitlines()[0]


def test_a_cut_off_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    row = {"round": 1, "seed": 0, "bytes_up": 1, "bytes_down": 1, "seconds": 0.5}
    metrics.append(path, [row, {**row, "round": 2}])
    with path.open("a") as file:
        file.write('{"round": 3, "tr')
    assert [row["round"] for row in metrics.read_metrics(path)] == [1, 2]
    metrics.keep_until(path, 1)
    assert path.read_text() == json.dumps(row) + "\n"


def test_importing_the_package_starts_nothing():
    """No extra, no backend: a library import must not touch the devices."""
    import subprocess
    import sys

    code = (
        "import sys, fedjax_lab, fedjax_lab.runner, jax._src.xla_bridge as b;"
        "print(len(b._backends), [m for m in ('torch', 'tensorflow', 'transformers',"
        " 'matplotlib.pyplot', 'orbax') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "0 []", out.stdout
    assert jax.__version__
