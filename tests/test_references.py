"""Checks user-defined functions in a config: found, described as text, and found again."""

import json
import os
import re
import sys

import jax.numpy as jnp
import own_parts
import pytest
from inputs import complaint

import fedjax_lab
from fedjax_lab.analysis import finished, runs
from fedjax_lab.experiment import experiment, references, registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.experiment.optimizers import make_optimizer
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedprox import fedprox
from fedjax_lab.running import growth, loading, workdir
from fedjax_lab.running.storage import metric_rows, provenance


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file own.py in the current folder, with a part of each kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return own_parts.write(tmp_path)


def in_notebook(task, *, pull: float = 0.5):
    """A method that is defined in a cell of a notebook."""
    return fedprox(task, mu=pull)


# From text to functions.


def test_a_file_is_executed_once_and_again_after_a_change(own):
    first = references.find("own.py:near")
    assert references.find(f"{own}:near") is first
    own.write_text(own.read_text() + "\n")
    assert references.find("own.py:near") is first  # a run uses one version of the file
    digest = references.source_of("own.py:near", first)["sha256"]
    references.refresh()
    assert references.find("own.py:near") is not first
    assert references.source_of("own.py:near", first)["sha256"] != digest


def test_modules_are_found_in_the_current_folder_and_in_that_of_the_file(own):
    package = own.parent / "my_lab_of_tests"
    (package / "ideas").mkdir(parents=True)
    (package / "ideas" / "__init__.py").write_text("class Best:\n    near = print\n")
    assert references.find("my_lab_of_tests.ideas:Best.near") is print
    (package / "helper_of_tests.py").write_text("def near(task):\n    return 1\n")
    (package / "mine.py").write_text("from helper_of_tests import near\n")
    assert references.find("my_lab_of_tests/mine.py:near")(None) == 1


WRONG = [
    ("method", "owm.py:near", "no file 'owm.py'; did you mean 'own.py'?"),
    ("method", "own.py:neer", "own.py has no function 'neer'; did you mean 'near'?"),
    ("method", "own.py:NUMBER", "own.py:NUMBER is not a valid method: it is of type int"),
    ("method", "no_such_module:f", "no module 'no_such_module'; neither the current"),
    ("method", "own.py:shift", "own.py:shift is not a valid method: it must take (task)"),
    ("method", "own.py:no_default", "own.py:no_default: its setting pull needs a default"),
    ("partition", "own.py:near", "it must take (y, domain, num_clients, rng), then settings"),
    ("optimizer", "own.py:blobs", "own.py:blobs is not a valid optimizer: it must take (lr)"),
    ("method", "own.py:<lambda>", "own.py:<lambda> is a lambda or a local function"),
]


@pytest.mark.parametrize("kind, name, message", WRONG)
def test_a_missing_or_invalid_reference_is_a_one_line_error(own, kind, name, message):
    assert message in complaint(registry.look_up, kind, name)


def test_a_file_that_fails_is_an_error_with_the_line(own):
    own.write_text("x = 1\nimport no_such_module_of_tests\n")
    message = complaint(references.find, "own.py:near")
    assert message.startswith("own.py cannot be loaded: ModuleNotFoundError: ")
    assert message.endswith("(line 2)")
    own.write_text("import sys\nsys.exit(0)\n")
    references.refresh()
    assert "SystemExit" in complaint(references.find, "own.py:near")


# From functions to text.


def test_a_function_is_found_again_by_its_text(own, monkeypatch):
    assert registry.name_of("method", fedprox) == "fedprox"
    near = references.find("own.py:near")
    assert registry.name_of("method", near) == "own.py:near"
    assert references.find(references.text_of(references.find("own.py:PARTIAL"))).keywords
    text = references.text_of(in_notebook)
    assert text == f"{__name__}:in_notebook" and references.find(text) is in_notebook
    first, second = load_config("own.py"), load_config("own.py")  # the file is executed twice
    assert first["method"]["name"] is not second["method"]["name"]
    assert [resolve(config).method.name for config in (first, second)] == ["own.py:near"] * 2
    near = second["method"]["name"]
    monkeypatch.chdir(own.parent.parent)
    assert references.find(references.text_of(near)) is near


def test_a_lambda_is_found_only_in_the_same_process(tmp_path):
    def make(mu):
        return lambda task: fedprox(task, mu=mu)

    one, other = make(0.1), make(0.2)
    texts = [references.text_of(one), references.text_of(other), references.text_of(one)]
    assert texts[0] == texts[2] != texts[1] and not references.lasts(texts[0])
    assert [references.find(text) for text in texts] == [one, other, one]
    config = resolve({"method": {"name": one}})
    message = complaint(resume, begin(tmp_path / "run", config), config)
    assert "cannot be determined whether this function has changed" in message


# References in a config.


def test_every_name_in_a_config_may_be_a_user_defined_function(own, monkeypatch):
    config = resolve(load_config("own.py"), [("embedding.name", "own.py:flat")])
    assert config.data.to_dict().items() >= {"name": "own.py:blobs", "count": 240}.items()
    assert config.partition.shuffle is True and config.model.width == 4
    assert config.method.pull == 0.5 and config.embedding.size == 32
    assert (config.local.nesterov, config.local.momentum) == (False, 0.5)
    assert list(config.run.metrics) == ["own.py:right"]
    more = [("data.augment", "own.py:brighter"), ("run.sampling", "own.py:first_ones")]
    config = resolve(load_config("own.py"), [*more, ("local.optimizer", "optax:adamw")])
    assert config.local.nesterov is False and config.local.momentum == 0.0
    # A wrapper and its base.
    config = {"method": {"name": "own.py:twice", "base": references.find("own.py:near")}}
    resolved = resolve(config, [("method.pull", "0.25")])
    assert resolved.method.base == "own.py:near" and resolved.method.pull == 0.25
    assert resolve({"method": {"name": "client2vec", "base": "own.py:near"}}).method.pull == 0.5
    assert resolve({"method": {"name": "own.py:twice"}}, [("method.base", "moon")]).method.tau
    # Built-in names do not query installed packages.
    monkeypatch.setattr(references, "offered", lambda group: pytest.fail(group))
    resolve({"method": {"name": "client2vec", "base": "fedprox"}}, [("local.optimizer", "adam")])


@pytest.mark.parametrize(
    "override, message",
    [
        ("method.pul=1", "method 'own.py:near' has no setting 'pul'; did you mean 'pull'?"),
        ("method.pull=far", "config.method.pull must be of type float, got 'far'"),
        ("data.augment=cifar1", "no augmentation 'cifar1'; did you mean 'cifar10"),
        ("run.metrics=own.py:near", "own.py:near is not a valid metric: it must"),
    ],
)
def test_a_wrong_setting_of_a_user_defined_part_is_an_error(own, override, message):
    assert message in complaint(resolve, load_config("own.py"), [override.split("=")])


def test_a_user_defined_optimizer_gets_the_keys_that_it_names(own):
    local = {"optimizer": "own.py:steps", "lr": 0.5, "momentum": 0.9, "nesterov": True, "clip": 1}
    made = make_optimizer(local)
    state = made.init(jnp.ones(2))
    update, _ = made.update(jnp.ones(2), state, jnp.ones(2))
    assert update.tolist() == pytest.approx([-0.5 * 1.9] * 2)
    local["optimizer"] = "own.py:brighter"
    assert "must take (lr)" in complaint(make_optimizer, local)


def test_a_run_has_the_parts_that_its_config_names(own):
    config = load_config("own.py")
    more = {"data": {"augment": "own.py:brighter"}, "run": {"sampling": "own.py:first_ones"}}
    config = {name: {**values, **more.get(name, {})} for name, values in config.items()}
    simulation = experiment.build(resolve(config)).simulation
    assert simulation.plan.augment is references.find("own.py:brighter")
    method = simulation.stages[0].method
    assert method.sample.__wrapped__ is references.find("own.py:first_ones")
    assert [len(held) for held in simulation.seeds[0].federation.train] == [48] * 4


@pytest.mark.parametrize(
    "section, made, message",
    [
        ("partition", None, "must return a list of 4 arrays, the positions of each client's"),
        ("partition", [[0.5]] * 4, "must return integers [N], but client 0 has float64 of shape"),
        ("partition", [[0], [1], [2], [999]], "gives client 3 the position 999, which is not in"),
        ("method", None, "must return a Method, or a function that returns the stages"),
        ("data", None, "must return a Dataset, not None"),
    ],
)
def test_a_part_that_returns_a_wrong_value_is_an_error(own, section, made, message):
    arguments = ", ".join(registry.TAKES[section])
    own.write_text(own.read_text() + f"\n\ndef bad({arguments}):\n    return {made}\n")
    config = resolve(load_config("own.py"), [(f"{section}.name", "own.py:bad")])
    assert message in complaint(experiment.build, config)


def test_the_method_of_a_config_file_may_be_any_reference(own):
    for module in ("other.py", "helper_of_own.py"):
        own_parts.write(own.parent, module)
    for method in ("near", "own.py:near", "other.py:near", "helper_of_own:near"):
        name = resolve(load_config(f"own.py:{method}")).method.name
        assert name == ("own.py:near" if method == "near" else method)
    own.write_text(
        own.read_text() + "\n\ndef get_config(method):\n"
        "    return {'method': {'name': method, **{'near': {'pull': 2.0}}.get(method, {})}}\n"
    )
    method = resolve(load_config("own.py:near")).method
    assert method.to_dict() == {"name": "own.py:near", "pull": 2.0, "epochs_of_start": 1}
    assert "did you mean 'near'?" in complaint(load_config, "own.py:neat")
    assert resolve(load_config("own.py:fedprox")).method.name == "fedprox"


# Parts from installed packages.


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that offers parts."""
    info = tmp_path / "site" / "lab_extra-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-extra\nVersion: 1.0\n")
    points = ["[fedjax_lab.methods]", "near = lab_extra:near", "fedavg = lab_extra:near"]
    points += ["broken = lab_extra:nothing", "[fedjax_lab.data]", "blobs = lab_extra:blobs"]
    (info / "entry_points.txt").write_text("\n".join(points))
    own_parts.write(tmp_path / "site", "lab_extra.py")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield
    sys.modules.pop("lab_extra", None)


def test_installed_packages_offer_parts_by_plain_names(package):
    config = resolve({"method": {"name": "near"}, "data": {"name": "blobs", "count": 9}})
    assert (config.method.name, config.method.pull, config.data.spread) == ("near", 0.5, 1.0)
    assert registry.source_of("method", "near")["module"] == "lab_extra"
    assert registry.look_up("method", "fedavg") is fedavg  # built-in parts win
    assert "near" in registry.names("method")
    assert "did you mean 'near'?" in complaint(registry.look_up, "method", "neear")
    message = complaint(registry.look_up, "method", "broken")
    assert message.startswith(
        "'broken' of lab-extra (lab_extra:nothing) cannot be loaded: Attribute"
    )


# References in the folder of a run.


@pytest.fixture
def run(own):
    """The folder of a run of own.py that has begun."""
    return begin(own.parent / "run", resolve(load_config("own.py")))


def begin(folder, config):
    folder.mkdir()
    metric_rows.write_json(folder / "config.json", growth.saved_config(config, [0]))
    (folder / "metrics.jsonl").touch()
    return folder


def resume(folder, config):
    with workdir.owned(folder, config, [0], resume=True):
        pass


def test_config_json_records_the_source_of_each_part(own, run):
    saved = json.loads((run / "config.json").read_text())
    assert saved["method"]["name"] == "own.py:near"
    source = {"module": None, "file": str(own), "sha256": references.digest(str(own))}
    assert saved["parts"]["own.py:near"] == source
    of_module = growth.saved_config(resolve({"local": {"optimizer": "optax:adamw"}}), [0])
    assert list(of_module["parts"]) == ["optax:adamw"]
    assert of_module["parts"]["optax:adamw"]["module"] == "optax"
    assert of_module["parts"]["optax:adamw"]["file"].endswith("alias.py")
    assert "parts" not in growth.saved_config(resolve({}), [0])


def test_a_run_resumes_with_the_same_source_under_any_name_only(own, run, monkeypatch):
    resume(run, resolve(load_config("own.py")))
    own.write_text(own.read_text() + "# changed\n")
    message = complaint(resume, run, resolve(load_config("own.py")))
    assert f"{run} holds a run with another version of own.py:" in message
    assert f"{own} has changed since it began; restore it" in message
    other = resolve(load_config("own.py"), [("method.name", "fedavg")])
    assert "own.py has changed" in complaint(resume, run, other)
    plain = resolve({"method": {"name": "fedavg"}})
    assert "holds another run: its config." in complaint(resume, run, plain)
    own_parts.write(own.parent)
    (own.parent / "inner").mkdir()
    monkeypatch.chdir(own.parent / "inner")
    resume(run, resolve(load_config("../own.py")))
    own.rename(own.parent / "inner" / "moved.py")
    resume(run, resolve(load_config("moved.py")))


@pytest.fixture
def received(run, monkeypatch):
    """The folder of a run of own.py that another process has begun."""
    monkeypatch.setattr(references, "_executions", {})
    return run


def recalled(folder):
    """The name of the method of a run that is resumed without a config."""
    config, _ = growth.completed(None, None, folder)
    return config.method.name


def test_code_that_only_a_folder_names_needs_trust(own, received):
    mark = own.parent / "executed"
    own.write_text(f"open({str(mark)!r}, 'w')\n{own.read_text()}")
    message = complaint(recalled, received)
    assert message == (
        f"{received} names code that would be executed: {own}:Net; if you trust this code, add"
        " --trust, in Python trust=True, or name its file as this run did, with --config"
    )
    for reads in (fedjax_lab.load, loading.build):
        assert complaint(reads, received) == message
    with references.trusting(False):
        assert complaint(recalled, received) == message and not mark.exists()
    with references.trusting():
        assert recalled(received) == f"{own}:near" and mark.exists()


def test_code_that_this_process_has_named_needs_no_trust(own, received, monkeypatch):
    load_config("own.py")
    assert recalled(received) == f"{own}:near"
    monkeypatch.setattr(references, "_executions", {})
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(own), raising=False)
    saved = json.loads((received / "config.json").read_text())
    assert provenance.recalled(saved, received)["method"]["name"] == f"{own}:near"


@pytest.mark.parametrize(
    "method, source, code",
    [
        ("own.py:near", {"file": "received/own.py"}, "received/own.py:near"),
        ("own.py:near", {"file": "received/own.py", "module": "own"}, "received/own.py:near"),
        ("received:near", {"file": "/x/received.py", "module": "received"}, "(/x/received.py)"),
        ("shutil:rmtree", {}, "shutil:rmtree"),
        ("optax:_src.utils.contextlib.os.kill", {}, "os.kill"),
        ("own.py:twice", {}, ""),
        ("optax:adamw", {"file": "/received/optax.py", "module": "optax"}, ""),
    ],
)
def test_a_folder_cannot_replace_what_this_process_has_named(own, method, source, code, tmp_path):
    load_config("own.py")
    (tmp_path / "received").mkdir()
    own_parts.write(tmp_path / "received")
    config = {"method": {"name": method}, "parts": {method: source}}
    if code:
        message = complaint(provenance.recalled, config, tmp_path)
        assert f"{tmp_path} names code that would be executed: " in message and code in message
    else:
        assert provenance.recalled(config, tmp_path)["method"]["name"] == method
    assert not {"/received", "/x", "received", str(tmp_path / "received")} & set(sys.path)


def test_the_base_of_a_method_and_metrics_are_code_too(own, received):
    for config in ({"method": {"name": "ditto", "base": "a.py:f"}}, {"run": {"metrics": ["a:f"]}}):
        assert "names code" in complaint(provenance.recalled, config, received)


def test_a_function_of_a_notebook_is_identified_by_its_code(own, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "in_notebook", in_notebook, raising=False)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(in_notebook, "__module__", "__main__")
    config = resolve({"method": {"name": in_notebook}})
    assert config.method.name == "__main__:in_notebook" and config.method.pull == 0.5
    source = growth.saved_config(config, [0])["parts"]["__main__:in_notebook"]
    assert source["module"] == "__main__" and len(source["sha256"]) == 64
    other = references.source_of("__main__:in_notebook", begin)  # a function with other code
    assert other == {**source, "sha256": other["sha256"]} and other["sha256"] != source["sha256"]
    monkeypatch.delattr(sys.modules["__main__"], "in_notebook")
    assert "defined in a notebook" in complaint(references.find, "__main__:in_notebook")


def test_a_report_reads_runs_with_missing_source_and_separates_versions(own, run):
    own.write_text(own.read_text() + "# changed\n")
    again = begin(own.parent / "again", resolve(load_config("own.py")))
    own.unlink()
    one, other = (runs.read(folder).config for folder in (run, again))
    assert one["method"]["name"] == "own.py:near" == other["method"]["name"]
    assert one["method"]["name_source"] != other["method"]["name_source"]
    assert "parts" not in one


@pytest.mark.slow
def test_a_run_of_user_defined_parts_resumes_and_loads_from_another_folder(own, monkeypatch):
    whole = fedjax_lab.run(load_config("own.py"), workdir="run", quiet=True)
    assert whole.metrics[-1]["right"]["mean"] > 0.5
    (own.parent / "run/summary.json").unlink()
    fedjax_lab.run(load_config("own.py"), workdir="run", resume=True, quiet=True)
    monkeypatch.chdir(os.path.sep)
    assert finished.load(own.parent / "run").method.predict is not None
    own.unlink()
    assert re.search(r"no file '.*own\.py'", complaint(finished.load, own.parent / "run"))
