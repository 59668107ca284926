"""A method under the transforms that a config names, in the sections of `TRANSFORMS`."""

import contextlib
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_lab import contract, parallel, simulate, streams
from fedjax_lab.engine import Simulation
from fedjax_lab.errors import BadInput
from fedjax_lab.registry import bind
from fedjax_lab.simulate import Lane, Program
from fedjax_lab.transforms import beside
from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Federation, Stage, Task

# Sections that name transforms, in the order of the wrapping: what is wrapped later is nearer to
# the wire, and what the server does with uploads sees them decoded. What attackers send is clipped.
TRANSFORMS = ("downlink", "attack", "privacy", "aggregator", "compression")


def as_configured(
    stage: Stage, task: Task, config: ml_collections.ConfigDict, setup: Setup | None
) -> Stage:
    """The stage with the clients that a config draws, and with the transforms that it names."""
    stage = _with_sampling(stage, config.run)
    method = stage.method
    named = [key for key in TRANSFORMS if config[key].name != "none"]
    if not named:
        return stage
    task = _as_seen(stage, task)
    words = " and ".join(f"{key} {config[key].name}" for key in named)
    naming = functools.partial(_naming, f"method {config.method.name} with {words}")
    with naming():
        if method.pooled:
            raise BadInput("it trains on everybody's examples at once, and nothing is uploaded")
        for key in named:
            takes = (task, setup) if key == "privacy" else (task,)
            stage = beside.in_stage(stage, functools.partial(_wrap, bind(key, config[key]), takes))
            contract.check_stages((stage,))
    method = stage.method
    each = (
        exchange._replace(local=naming()(exchange.local), aggregate=naming()(exchange.aggregate))
        for exchange in method.round
    )
    init = method.init and naming()(method.init)
    method = method._replace(init=init, round=tuple(each))
    return stage._replace(method=method, start=stage.start and naming()(stage.start))


def is_private(config: Mapping) -> bool:
    """Whether a config asks for differential privacy."""
    return config["privacy"]["name"] != "none"


def make_setup(
    config: ml_collections.ConfigDict, federations: Sequence[Federation]
) -> Setup | None:
    """What epsilon depends on; None of a run that is not private."""
    if not is_private(config):
        return None
    num_clients = len(federations[0].train)
    sizes = np.concatenate([federation.train.count for federation in federations])
    return Setup(
        num_clients=num_clients,
        cohort=min(config.run.cohort or num_clients, num_clients),
        rounds=config.run.rounds,
        sizes=tuple(sizes.tolist()),
        batch_size=config.local.batch_size,
        epochs=config.local.epochs,
    )


def check_private(config: ml_collections.ConfigDict, stages: Sequence[Stage]) -> None:
    """BadInput where a run would not be as private as its accounting says."""
    if not is_private(config):
        return
    name, method = config.privacy.name, config.method.name
    (first, *others) = stages
    if others or first.prepare or first.start or first.view:
        raise BadInput(
            f"config.privacy.name={name} protects the rounds of one stage, and method {method} has"
            " stages, between which it learns of its clients in other ways"
        )
    if config.run.sampling and {"sampling", "bands"} & set(config.privacy):
        raise BadInput(
            f"config.run.sampling={config.run.sampling} and config.privacy.name={name} both draw"
            " the clients of a round, and epsilon is of the second; leave out the first"
        )


def check_first_round(config: ml_collections.ConfigDict, simulation: Simulation) -> None:
    """BadInput where a transform finds in its first round that it cannot be; only shapes are used.

    Later stages, which start from states of earlier ones, are checked when they begin.
    """
    stage, plan = simulation.stages[0], simulation.plan
    is_plain = all(config[key].name == "none" for key in TRANSFORMS)
    if is_plain or stage.method.init is None or stage.view is not None:
        return
    program = Program(stage.method, plan, parallel.vectorized())

    def first_round(federation, population, seed):
        keys = streams.make_keys(seed)
        state = simulate.init(stage.method, keys, len(federation.train))
        lane = Lane(federation, population, keys)
        return simulate.play_round(program, lane, state, jnp.int32(0))

    federation = simulation.training[0]
    population = simulate.population_on_host(federation, simulation.num_classes)
    shapes = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (federation, population)
    )
    jax.eval_shape(first_round, *shapes, jax.eval_shape(lambda: jax.random.key(0)))


def _with_sampling(stage, run):
    """The stage with the clients that a config's section `run` draws, where it says how."""
    if not run["sampling"] or stage.method.pooled:
        return stage
    method = stage.method._replace(sample=bind("sampling", run, "sampling"))
    return stage._replace(method=method)


def _as_seen(stage, task):
    """The task with the examples that clients work on in the stage: embeddings, or its own."""
    if stage.view is None or not stage.view.embedded:
        return task
    return task._replace(input_shape=task.labels().shape[1:])


def _wrap(transform, takes, method):
    return transform(method, *takes)


@contextlib.contextmanager
def _naming(what):
    """Says first of what a BadInput speaks; also of functions that it decorates."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{what}: {error}") from error
