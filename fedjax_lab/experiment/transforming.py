"""Applies the transforms that a config names to a method, in the sections of `TRANSFORMS`."""

import contextlib
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_lab import sampling, streams, tree
from fedjax_lab.engine import parallel
from fedjax_lab.engine.input import Simulation
from fedjax_lab.engine.tracing import depends
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.registry import bind
from fedjax_lab.simulation import contract, needs, outline, simulate
from fedjax_lab.simulation.failures import Attackers
from fedjax_lab.simulation.population import population_on_host
from fedjax_lab.simulation.simulate import Program
from fedjax_lab.transforms import latest_losses, private_state
from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Federation, NeedsClasses, Stage, Task

# Sections that name transforms, in the order of wrapping. Later transforms are nearer to the
# network: the server aggregates uploads after decoding, and attackers' uploads are clipped too.
TRANSFORMS = ("downlink", "attack", "privacy", "aggregator", "compression")


def as_configured(
    stage: Stage, task: Task, config: ml_collections.ConfigDict, setup: Setup | None
) -> Stage:
    """The stage with the sampling and the transforms that a config names.

    setup: the facts on which epsilon depends; None for a run without privacy.
    """
    with _naming(f"method {config.method.name} with config.run.sampling={config.run.sampling}"):
        stage = _with_sampling(stage, task, config.run)
    named = _named(config, stage.method)
    unused = {"mixing": "none", "momentum": 0, "excluded": False}
    for key, value in unused.items() if config.aggregator.name == "none" else ():
        if config.aggregator[key] != value:
            raise BadInput(f"config.aggregator.{key} needs an aggregator (config.aggregator.name)")
    if not named:
        return stage
    task = _as_seen(stage, task)
    words = " and ".join(f"{key} {config[key].name}" for key in named)
    naming = functools.partial(_naming, f"method {config.method.name} with {words}")
    with naming():
        needs.check(stage.method, *UPLOAD_NEEDS)
        if {"compression", "downlink"} & {*named}:  # codes are those of a whole model
            stage = stage._replace(method=stage.method.having(absent=None))
        for key in named:
            stage = private_state.in_stage(stage, _transform(key, config, task, setup))
            contract.check_stages((stage,))
    method = stage.method
    each = (
        exchange._replace(local=naming()(exchange.local), aggregate=naming()(exchange.aggregate))
        for exchange in method.round
    )
    init = method.init and naming()(method.init)
    method = method._replace(init=init, round=tuple(each))
    return stage._replace(method=method, start=stage.start and naming()(stage.start))


def _named(config, method):
    """The sections of the transforms of a method, in the order of wrapping."""
    weighted = config.clock.concurrency > 0 and not method.extra.weighs_staleness
    given = {key: config[key].name != "none" for key in TRANSFORMS} | {"clock": weighted}
    return [key for key in (*TRANSFORMS[:-1], "clock", TRANSFORMS[-1]) if given[key]]


def _transform(key, config, task, setup):
    """The transform of a section, as a function of the method."""
    if key == "clock":
        from fedjax_lab.transforms import staleness  # other runs do not need it

        return functools.partial(staleness.weighted, exponent=config.clock.exponent)
    if key == "aggregator":
        return functools.partial(_aggregated, config.aggregator, task)
    takes = (task, setup) if key == "privacy" else (task,)
    return functools.partial(_wrap, bind(key, config[key]), takes)


def _aggregated(section, task, method):
    """The method with an aggregator, what precedes it, and counts of whom it leaves out."""
    method = bind("aggregator", section)(method, task)
    method = bind("mixing", section, "mixing")(method, task)
    if section.excluded:
        from fedjax_lab.transforms import counted  # other runs do not need it

        method = counted.excluded(method)
    if section.momentum:
        from fedjax_lab.transforms import mixing

        method = mixing.momentum(method, task, section.momentum)
    return method


def is_private(config: Mapping) -> bool:
    """Whether a config enables differential privacy."""
    return config["privacy"]["name"] != "none"


def make_setup(
    config: ml_collections.ConfigDict, federations: Sequence[Federation]
) -> Setup | None:
    """The facts on which epsilon depends; None for a run without privacy."""
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


UPLOAD_NEEDS = ("clients",)  # of every transform
PRIVACY_NEEDS = ("plain",)


def check_private(config: ml_collections.ConfigDict, stages: Sequence[Stage]) -> None:
    """Raises BadInput if a run would be less private than its accounting assumes."""
    if not is_private(config):
        return
    name = config.privacy.name
    what = f"config.privacy.name={name} does not fit method {config.method.name}: "
    needs.check(stages, *PRIVACY_NEEDS, what=what)
    if name == "example_level" and (config.local.steps or config.local.accumulate > 1):
        key = "steps" if config.local.steps else "accumulate"
        raise BadInput(
            f"config.local.{key} cannot be combined with config.privacy.name={name}, which draws"
            " the examples of each step itself; use config.local.epochs"
        )
    if name == "example_level" and config.local.per_client:
        raise BadInput(
            f"config.local.per_client cannot be combined with config.privacy.name={name}, whose"
            " epsilon is that of clients with the same epochs and batch_size"
        )
    if config.run.sampling and {"sampling", "bands"} & set(config.privacy):
        raise BadInput(
            f"config.run.sampling={config.run.sampling} and config.privacy.name={name} both draw"
            " the clients of a round, and epsilon is valid only for the second; drop the first"
        )


def attackers(attack: Mapping) -> float | Attackers:
    """Which clients attack in which rounds: `Failures.attackers`, from a config's section."""
    if attack["name"] == "none":
        return 0.0
    who = Attackers(*(attack[key] for key in Attackers._fields))
    return who.share if who == Attackers(who.share) else who


def describe_attackers(
    config: ml_collections.ConfigDict, simulation: Simulation
) -> tuple[str, ...]:
    """Lines on how many clients attack, and how many attackers the aggregator expects.

    Raises BadInput if clients or rounds in which they attack do not exist.
    """
    C, M = len(simulation.seeds[0].training.train), simulation.plan.cohort
    lines, aggregator = [], config.aggregator
    if config.attack.name != "none":
        lines.append(f"attack {config.attack.name}: {_attackers_in_words(config, C, M)}")
    for key, words in EXPECTED.items():
        if key in aggregator:
            number = min(sampling.at_least_one(aggregator[key], M), (M - 1) // 2)
            said = words.format(number) + f" of {M} in a round" + _rounded(aggregator[key], M)
            lines.append(f"aggregator {aggregator.name}: {said}")
    return tuple(lines)


def _attackers_in_words(config, C, M):
    """How many clients attack and when. Raises BadInput as `describe_attackers` does."""
    attack, rounds = config.attack, config.run.rounds
    beyond = [id for id in attack.clients if not 0 <= id < C]
    for key, value, low, high in (
        ("clients", beyond[0] if beyond else 0, 0, C - 1),
        ("per_round", attack.per_round, 0, M),
        ("last", attack.last, 0, rounds),
        ("first", attack.first, 1, attack.last or rounds),
    ):
        if not low <= value <= high:
            raise BadInput(
                f"config.attack.{key} must be from {low} to {high} in this run, got {value}"
            )
    first, last = attack.first, attack.last or rounds
    window = f" in rounds {first} to {last}" * ((first, last) != (1, rounds))
    if attack.clients:
        return f"{len({*attack.clients})} of {C} clients attack{window}"
    if attack.per_round:
        return f"{attack.per_round} of {M} clients of a round attack{window}"
    number = sampling.at_least_one(attack.share, C)
    alone = ", who alone changes nothing" * (number == 1 and attack.name in NEED_OTHERS)
    alone *= attack.get("knowledge") == "own"
    return f"{number} of {C} clients attack{window}" + _rounded(attack.share, C) + alone


def _rounded(share, count):
    """A remark on a share of less than one client."""
    return f" ({share:g} of {count} is less than one)" * (0 < share * count < 1)


NEED_OTHERS = "little_is_enough", "min_max", "min_sum"  # with knowledge=own
EXPECTED = {  # by the setting of an aggregator that is a share
    "trim": "without the {0} lowest and the {0} highest values",
    "attackers": "at most {0} attackers",
}


def check_first_round(config: ml_collections.ConfigDict, simulation: Simulation) -> None:
    """Raises BadInput if a transform cannot be applied, by tracing the first round with shapes.

    Also checks the first cohorts of a user's sampling. Later stages start from states of earlier
    ones, and are checked when they begin.
    """
    _check_first_cohorts(config, simulation)
    stage, plan = simulation.stages[0], simulation.plan
    is_plain = plan.objective.has_classes and simulation.base is None
    is_plain = is_plain and all(config[k].name == "none" for k in TRANSFORMS)
    if is_plain or stage.method.init is None or not stage.is_plain:
        return
    training = simulation.seeds[0].training
    population = population_on_host(training, simulation.num_classes)
    program = Program(stage.method, plan, parallel.vectorized())
    outline.first_round(program, training, population)


def _check_first_cohorts(config: ml_collections.ConfigDict, simulation: Simulation) -> None:
    """Raises BadInput if a user's sampling returns invalid clients or shares in the first rounds.

    A sampling that uses the server's state is only checked while the run trains.
    """
    method, plan = simulation.stages[0].method, simulation.plan
    if not sampling.is_own(method.sample) or method.init is None:
        return
    population = population_on_host(simulation.seeds[0].training, simulation.num_classes)
    population = jax.tree.map(jnp.asarray, population)
    keys = streams.make_keys(jax.random.key(simulation.seed_numbers[0]))

    def draw(server, key):
        return contract.check_sample(method.sample(key, server, population, plan.cohort))

    number = len(population.id)
    server = jax.eval_shape(lambda: simulate.init(method, keys, number)).server
    if depends(draw, server, keys.cohort):
        return
    for t in range(min(FIRST, plan.rounds)):
        ids, shares = draw(tree.zeros(server), jax.random.fold_in(keys.cohort, t))
        contract.check_cohort(sampling_name(config), ids, shares, number)


FIRST = 3  # rounds whose cohorts are checked before the run begins


def sampling_name(config: ml_collections.ConfigDict) -> str:
    """The sampling of a run in messages."""
    if config.run.sampling:
        return f"the sampling config.run.sampling={config.run.sampling}"
    return f"the sampling of method {config.method.name}"


def _with_sampling(stage, task, run):
    """The stage with the sampling of config.run.sampling, if that is set."""
    if not run["sampling"]:
        return stage
    sample = bind("sampling", run, "sampling")
    if latest_losses.are_seen(sample):
        return stage._replace(method=latest_losses.sampled(stage.method, task, sample))
    return stage._replace(method=stage.method._replace(sample=sample))


def _as_seen(stage, task):
    """The task with the input shape of the stage: that of embeddings, or the task's own."""
    if stage.embeddings is None:
        return task
    return task._replace(input_shape=stage.embeddings().examples.shape[1:])


def _wrap(transform, takes, method):
    return transform(method, *takes)


@contextlib.contextmanager
def naming_users_of_classes(config: ml_collections.ConfigDict):
    """Prepends the names of the method and its transforms to the message of a NeedsClasses."""
    named = [f"{key} {config[key].name}" for key in TRANSFORMS if config[key].name != "none"]
    try:
        yield
    except NeedsClasses as error:
        parts = " with ".join([f"method {config.method.name}", *named])
        raise BadInput(f"{parts}: {error}") from error


@contextlib.contextmanager
def _naming(what):
    """Prepends `what` to the message of a BadInput. Can also be used as a decorator."""
    try:
        yield
    except NeedsClasses:
        raise
    except BadInput as error:
        raise BadInput(f"{what}: {error}") from error
