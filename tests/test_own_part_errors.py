"""Errors of parts of a user's own: one line that names the culprit, and exit code 2."""

import io
import sys
import sysconfig

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from children import run
from commands import call

import fedjax_lab
from fedjax_lab import errors, sampling
from fedjax_lab.commands import command
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment, references
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.running.progress import ProgressBar
from fedjax_lab.simulation import contract


def dataset(count=40, **fields):
    y = (np.arange(count) % 2).astype(np.int32)
    x = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    nothing, test = np.zeros(count, np.int32), np.arange(count) % 5 == 0
    return Dataset(x, y, nothing, test, ("a", "b"), ("all",))._replace(**fields)


def short_labels():
    return dataset(y=np.zeros(30, np.int32))


def no_columns():
    return dataset(x=np.zeros((40, 0), np.float32))


class Mute(Exception):
    """An exception that cannot be shown."""

    def __str__(self):
        raise RuntimeError("no text")


class Gone(Exception):
    """An exception whose text ends the process."""

    def __str__(self):
        raise SystemExit(5)


def mute():
    raise Mute


def gone():
    raise Gone


def text_schedule(rounds):
    return lambda t: "half"


def with_update(update):
    return optax.GradientTransformation(lambda params: (), update)


def other_shapes(lr):
    return with_update(lambda g, s, p=None: (jax.tree.map(lambda a: a[:1], g), s))


def other_tree(lr):
    return with_update(lambda g, s, p=None: (jax.tree.leaves(g), s))


def no_state(lr):
    return with_update(lambda g, s, p=None: g)


def growing(lr):
    update = with_update(lambda g, s, p=None: (g, np.zeros(4, np.float32))).update
    return optax.GradientTransformation(lambda params: np.zeros(3, np.float32), update)


def few_embeddings(data):
    return Embeddings(np.zeros((3, 32), np.float32), np.zeros((3, 32), np.float32))


def no_width(data):
    return Embeddings(np.zeros((len(data.y), 0), np.float32), np.zeros((3, 0), np.float32))


HERE = f"{__file__}:"
OPTIMIZER, SCHEDULE = "local.optimizer", "local.schedule"
WRONG = [
    ("data.name", "short_labels", "the dataset has 40 examples, but its y has shape [30]"),
    ("data.name", "no_columns", "the dataset's x has no columns"),
    ("data.name", "mute", "Mute: (its message cannot be shown)"),
    ("data.name", "gone", "Gone: (its message cannot be shown)"),
    (SCHEDULE, "text_schedule", "it must return one number for each round"),
    (OPTIMIZER, "other_shapes", "its `update` must return updates in the shapes of the weights"),
    (OPTIMIZER, "other_tree", "its `update` must return updates in the shapes of the weights"),
    (OPTIMIZER, "no_state", "its `update` must return (updates, state)"),
    (OPTIMIZER, "growing", "its `update` must return the state in the shapes that `init` gave"),
    (OPTIMIZER, "os:system", "optimizer os:system failed: TypeError"),
    (OPTIMIZER, "builtins:len", "optimizer builtins:len failed: TypeError"),
    (SCHEDULE, "os:system", "schedule os:system failed: TypeError"),
    ("model.name", "os:system", "model os:system failed: TypeError"),
    ("embedding.name", "few_embeddings", "must return examples of shape [300, E]"),
    ("embedding.name", "no_width", "must return examples of shape [300, E] with E > 0"),
]


toy = toys.config_file(run={"rounds": 2, "eval_every": 2, "cohort": 3})


@pytest.mark.parametrize(("key", "name", "message"), WRONG, ids=lambda text: text[:30])
def test_an_error_of_a_part_is_one_line(toy, tmp_path, capsys, key, name, message):
    name = name if ":" in name else HERE + name
    method = ":client2vec" if key == "embedding.name" else ""
    code = call(f"--config={toy}{method}", f"--config.{key}={name}", f"--workdir={tmp_path / 'w'}")
    said = capsys.readouterr().err.strip()
    assert code == 2 and said.startswith("error:") and said.count("\n") == 0
    assert message in said


def test_text_is_shown_and_errors_without_text_hide_no_failure_of_the_machine():
    with pytest.raises(BadInput, match="not 'x'"):
        contract.check_augmented("x", np.zeros((2, 3)))
    error = MemoryError("too large")
    error.__cause__ = Mute()
    assert command.machine_failure(error) == "out of memory; too large"
    assert command.machine_failure(Mute()) is None
    assert command.machine_failure(MemoryError()) == "out of memory"


def test_an_error_in_an_installed_package_of_a_part_is_found(tmp_path, monkeypatch):
    """The package is in site-packages, like the libraries whose errors are bugs."""
    installed = tmp_path / "site-packages"
    (installed / "offered_part").mkdir(parents=True)
    (installed / "offered_part/__init__.py").write_text("from offered_part.inner import make\n")
    (installed / "offered_part/inner.py").write_text("def make(lr):\n    return {}['absent']\n")
    monkeypatch.syspath_prepend(str(installed))
    paths = sysconfig.get_path

    def get_path(name):
        return str(installed) if name == "purelib" else paths(name)

    monkeypatch.setattr(sysconfig, "get_path", get_path)
    part = references.find("offered_part:make")
    with pytest.raises(KeyError) as caught:
        part(0.1)
    assert errors.place_of(caught.value) == "inner.py, line 2"


def test_a_variable_that_jax_refuses_is_named():
    code = "from fedjax_lab.commands import command; command.begin(); import jax"
    done = run(code, JAX_NUM_CPU_DEVICES="abc")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "the environment variable JAX_NUM_CPU_DEVICES=abc" in done.stderr
    done = run("from fedjax_lab.commands import command; command.begin(); 1 / 0")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr


def test_a_part_cannot_close_the_output_of_a_command():
    code = (
        "import sys; from fedjax_lab.commands import command; command.begin()\n"
        "def main(arguments):\n"
        "    sys.stdout.close(); sys.stderr.close()\n"
        "    print('told'); print('wrong', file=sys.stderr)\n"
        "    sys.stdout = sys.stderr = None\n"
        "    return 2\n"
        "command.run(main, [])"
    )
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (2, "told\n", "wrong\n")


def test_a_closed_output_does_not_end_a_run_from_python(monkeypatch):
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        with ProgressBar(2, 0, quiet=False) as progress:
            progress.start_clock(0)
            progress.say("compiling")
            progress.rounds(1, evaluated_next=False)


# Samplings: what is no cohort is refused before training, or stops the run.


def thirds(key, server, population, m):
    return jnp.arange(m), jnp.full(m, 1 / 3 / m)


def from_one(key, server, population, m):
    return 1 + jnp.arange(len(population.id)), jnp.full(len(population.id), 1 / 6)


def negative(key, server, population, m):
    return jnp.arange(3), jnp.asarray([-1.0, 1.0, 1.0])


def server_shares(key, server, population, m):
    """Shares that depend on the server's weights, and sum to 1/2."""
    finite = jnp.isfinite(jnp.sum(server.params["head"]["bias"]))
    return jnp.arange(m), jnp.where(finite, jnp.full(m, 1 / 2 / m), 0)


def config(toy, sample):
    config = load_config(toy)
    return {**config, "run": {**config["run"], "sampling": sample}}


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (thirds, "thirds must return shares .* they sum to 0.333333; divide them by their sum"),
        (from_one, "from_one draws client 6, but the clients are 0 .. 5"),
        (negative, "one of them is -1"),
    ],
)
def test_a_sample_that_is_no_cohort_is_refused_before_training(toy, sample, message):
    with pytest.raises(BadInput, match=message):
        experiment.build(resolve(config(toy, sample)))


@pytest.mark.slow
def test_shares_that_depend_on_the_server_stop_the_run_in_one_line(toy):
    with pytest.raises(BadInput, match=r"server_shares returned in round 1 \(seed 0\) .* sum to 1"):
        fedjax_lab.run(config(toy, server_shares), quiet=True)


def test_is_cohort_against_its_definition():
    whole = jax.jit(contract.is_cohort, static_argnums=2)
    ids = jnp.arange(4)
    cases = {
        (0.25, 0.25, 0.25, 0.25): True,
        (0.0, 0.0, 0.0, 0.0): True,  # nobody was drawn
        (0.5, 0.0, 0.5, 0.0): True,
        (0.5, 0.5, 0.5, 0.5): False,
        (np.nan, 0.5, 0.5, 0.0): False,
        (2.0, -1.0, 0.0, 0.0): False,
    }
    for shares, expected in cases.items():
        assert bool(whole(ids, jnp.asarray(shares), 4)) == expected
    assert not whole(ids, jnp.full(4, 0.25), 3) and not whole(ids - 1, jnp.full(4, 0.25), 4)


def test_samplings_of_the_package_are_known():
    assert not any(map(sampling.is_own, (sampling.by_size, sampling.evenly(sampling.shuffled))))
    assert sampling.is_own(thirds) and sampling.is_own(sampling.evenly(thirds))
