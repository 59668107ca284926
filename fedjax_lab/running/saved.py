"""What a run has saved in its folder: its states and its models, read without a change to it."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from fedjax_lab import experiment, tree
from fedjax_lab.config import resolve
from fedjax_lab.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import Experiment
from fedjax_lab.running import files, growth, provenance
from fedjax_lab.running.workdir import Workdir, saved_config
from fedjax_lab.transforms import beside
from fedjax_lab.types import Client, Method, PyTree, Stage, State, Task, Weights

ATTEMPTS = 3  # at reading a folder in which a run replaces its checkpoints


class Saved(NamedTuple):
    """What a run has come to at one of its checkpoints."""

    config: ml_collections.ConfigDict
    experiment: Experiment
    rounds: int  # so many were played
    rows: list[dict]  # of metrics.jsonl, until then
    states: list[State]  # one of each seed
    stage: Stage  # of the method, that was under way
    number: int  # of that stage


def read(folder: Path, rounds: int | None = None) -> Saved:
    """The run of a local folder at its checkpoint after so many rounds; None: at the newest one.

    The data are read again, as the config says. BadInput where the folder holds no run or no such
    checkpoint, or where data or files are not those of the run.
    """
    config = files.read_config(folder / "config.json")
    if config is None:
        raise BadInput(f"{folder} holds no run: it has no config.json")
    seeds = config.pop("seeds")
    resolved = resolve(provenance.recalled(config))
    growth.check_config(folder, saved_config(resolved, seeds))
    built = experiment.build(resolved, seeds)
    for attempt in range(1, ATTEMPTS + 1):
        before = _checkpoints(folder)
        try:
            return _look(folder, built, rounds)
        except (BadInput, FileNotFoundError):
            if attempt == ATTEMPTS or _checkpoints(folder) == before:
                raise
    raise AssertionError  # the last attempt returns or raises


def _checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


def _look(folder, built, rounds):
    engine = Engine(built.simulation)
    rows = Workdir(folder, built).look(engine, rounds)
    return Saved(
        config=built.config,
        experiment=built,
        rounds=engine.played,
        rows=rows,
        states=engine.final_states(),
        stage=engine.stage,
        number=engine.stage_number,
    )


# Models.


def global_model(name: str, method: Method, state: State) -> Weights:
    """The model of a newcomer, also where it comes with more, as with SCAFFOLD's control variate.

    BadInput, which has the method's name, where there is none, or there are several.
    """
    if method.newcomer is None:
        raise BadInput(f"method {name} has no global model")
    message, private = method.newcomer(state)
    parts = jax.tree.leaves((message, private), is_leaf=lambda a: isinstance(a, Weights))
    models = [part for part in parts if isinstance(part, Weights)]
    if models and all(_covers(models[0], other) for other in models):
        return models[0]  # what is sent; the others are where a client's own models begin
    return _joined(name, (message, beside.plain(private)))


def model_of(name: str, method: Method, task: Task, message: PyTree, client: Client) -> Weights:
    """The model with which a client predicts: what it is sent, what it keeps, or both joined.

    Where each is a whole model it is the one that `predict` reads. BadInput where there is not one
    model.
    """
    parts = message, beside.plain(client.private)
    if not all(isinstance(part, Weights) for part in parts) or not _covers(*parts):
        return _joined(name, parts)
    x = jnp.zeros((1, *task.input_shape))

    def with_message(message):
        return method.predict(message, client, x)

    def with_private(part):
        private = beside.with_plain(client.private, part)
        return method.predict(message, client._replace(private=private), x)

    each = zip((with_message, with_private), parts, strict=True)
    read = [part for function, part in each if _reads(function, part)]
    if len(read) != 1:
        raise no_model(name)
    return read[0]


def _joined(name, parts):
    """One model of these parts, of which one may be empty. BadInput where they are not one."""
    parts = [part for part in parts if jax.tree.leaves(part)]
    if not parts or not all(isinstance(part, Weights) for part in parts):
        raise no_model(name)
    return parts[0] if len(parts) == 1 else tree.join(*parts)


def _covers(a, b):
    """Whether the first tree has every leaf that the second one has."""
    return set(tree.names(b)) <= set(tree.names(a))


def _reads(function, argument):
    """Whether a function computes anything from its argument."""
    jaxpr = jax.make_jaxpr(function)(argument).jaxpr
    read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    return any(id(variable) in read for variable in jaxpr.invars)


def no_model(name: str) -> BadInput:
    """The error about a method whose clients predict with something else."""
    return BadInput(f"a client of {name} has more or less than a model")
