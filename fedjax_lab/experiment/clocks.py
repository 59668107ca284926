"""The clock of a run, and the schedule of an asynchronous one: the config's section `clock`."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_lab.engine import parallel
from fedjax_lab.engine.input import Seed
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.registry import bind
from fedjax_lab.simulation import client_work, needs, outline
from fedjax_lab.simulation.asynchronous import Rules, make_schedule
from fedjax_lab.simulation.clock import Clock, Pace, durations
from fedjax_lab.simulation.population import population_on_host, select_traits
from fedjax_lab.simulation.simulate import Program
from fedjax_lab.types import Plan, Stage

ASYNCHRONOUS = "config.clock.concurrency"  # the key with which a run is asynchronous
ASYNCHRONOUS_NEEDS = ("plain", "clients", "one_exchange", "all_at_once", "any_clients")
LATE_NEEDS = ("no_turns",)  # of over-selection and deadlines


def is_asynchronous(config: ml_collections.ConfigDict) -> bool:
    """Whether the clients of a run do not wait for each other."""
    return config.clock.concurrency > 0


def check_clock(config: ml_collections.ConfigDict) -> None:
    """Raises BadInput if keys of config.clock contradict each other."""
    clock = config.clock
    asked = {
        "availability": clock.availability != "always",
        "over_selection": clock.over_selection != 1,
        "deadline": clock.deadline > 0,
        "concurrency": is_asynchronous(config),
    }
    for key in (key for key, is_set in asked.items() if is_set and clock.name == "none"):
        raise BadInput(
            f"config.clock.{key}={clock[key]} needs the speeds of the clients; set"
            " config.clock.name=log_normal, constant, half_normal, exponential or trace"
        )
    for key in ("over_selection", "deadline"):
        if is_asynchronous(config) and asked[key]:
            raise BadInput(
                f"config.clock.{key} is for synchronous rounds; with {ASYNCHRONOUS} no client waits"
                " for another one, and config.clock.max_staleness drops old uploads"
            )
    if asked["over_selection"] and config.privacy.name != "none":
        raise BadInput(
            f"config.clock.over_selection={clock.over_selection} cannot be combined with"
            f" config.privacy.name={config.privacy.name}: fast clients would take part more often"
            " than epsilon assumes"
        )
    if clock.late != "lost" and not clock.deadline:
        raise BadInput(f"config.clock.late={clock.late} needs config.clock.deadline")
    for key in ("max_staleness", "start_rate"):
        if clock[key] and not is_asynchronous(config):
            raise BadInput(f"config.clock.{key}={clock[key]} needs {ASYNCHRONOUS}")


def timed(
    config: ml_collections.ConfigDict,
    plan: Plan,
    stages: Sequence[Stage],
    seeds: list[Seed],
) -> tuple[Plan, list[Seed]]:
    """The plan of a run with its clock, and the seeds with what depends on the clock.

    Raises BadInput if the clock does not fit the run.
    """
    check_clock(config)
    if config.clock.name == "none":
        return plan, seeds
    _check_turns(config, stages)
    each = [_seed_clock(config, plan, seed) for seed in seeds]
    clock, paces = each[0][0], [pace for _, pace in each]
    if not is_asynchronous(config):
        failures = plan.failures._replace(clock=clock)
        plan = _over_selected(config, plan._replace(failures=failures), len(paces[0].compute))
    sent, drawn = _first_round(plan, stages[0], seeds[0].federation)
    works = [_work(plan, _local_settings(seed.federation)) for seed in seeds]
    seeds = [
        _with_pace(seed, pace)._replace(task_seconds=sum(durations(clock, pace, 1, work, sent)))
        for seed, pace, work in zip(seeds, paces, works, strict=True)
    ]
    if not is_asynchronous(config):
        _check_over_selection(config, plan, drawn)
        _check_deadline(clock, list(zip(paces, works, strict=True)), sent)
        return plan, seeds
    rules, scheduled = _rules(config, plan, len(paces[0].compute)), []
    for seed, pace, work in zip(seeds, paces, works, strict=True):
        rules_of_seed = rules._replace(work=work)
        timeline = make_schedule(clock, pace, rules_of_seed, sent, seed.number)
        scheduled.append(seed._replace(timeline=timeline))
    failures = plan.failures._replace(dropout=0.0, straggler=0.0)  # the schedule has both
    return plan._replace(failures=failures), scheduled


def _with_pace(seed, pace):
    """The seed with the pace of its clients as a trait; new clients never train, and have zeros."""
    federation = seed.federation
    new = 0 if federation.new_train is None else len(federation.new_train)
    of_all = jax.tree.map(lambda a: np.pad(a, ((0, new), *((0, 0),) * (a.ndim - 1))), pace)
    federation = federation._replace(traits=federation.traits | {"pace": of_all})
    return seed._replace(federation=federation, training=federation)


def _seed_clock(config, plan, seed):
    """The clock of a run, and the paces of the clients of one seed."""
    settings, n = config.clock, np.asarray(seed.federation.train.count)
    rng = np.random.default_rng([seed.number, 3, 1])
    speeds = bind("clock", settings)(len(n), rng)
    available = bind("availability", settings, "availability")(len(n), rng)
    of_clients = _local_settings(seed.federation)
    if speeds.of_tasks:
        compute = speeds.seconds / _work(plan, of_clients)
    else:
        compute = speeds.seconds * (client_work.batch_size(plan, of_clients) if plan.steps else n)
    pace = Pace(compute, 1 / speeds.bandwidth, available)
    clock = Clock(
        factor=speeds.factor,
        minimum=speeds.minimum,
        first=plan.cohort if settings.over_selection > 1 else 0,
        deadline=settings.deadline,
        partial=settings.late == "partial",
    )
    return clock, jax.tree.map(np.float32, pace)


def _local_settings(federation):
    """The settings of the clients [C], without those of new clients; None if they have none."""
    return select_traits(federation, slice(len(federation.train))).get("settings")


def _work(plan, of_clients):
    """`Plan.work` of a client, or of each [C]."""
    return plan.work if of_clients is None or of_clients.work is None else of_clients.work


def _first_round(plan, stage, federation):
    """The bytes of a client's messages in a round of the first stage, and the size of a cohort."""
    if stage.method.init is None:
        return 0, plan.cohort
    if stage.embeddings is not None:
        federation = federation._replace(x=stage.embeddings().examples)
        plan = plan._replace(augment=None, example_shape=())
    population = population_on_host(federation, plan.objective.num_classes)
    program = Program(stage.method, plan, parallel.vectorized())
    program, lane, state = outline.first_round(program, federation, population)
    return sum(program.message_bytes), outline.cohort_size(program, lane, state)


def _check_deadline(clock, each, sent):
    """Raises BadInput if even the fastest client would be late. each: (pace, work) of the seeds."""
    xi = float(clock.factor(jnp.zeros(())))
    of_seeds = [(pace, 1 if clock.partial else work) for pace, work in each]
    fastest = min(np.min(sum(durations(clock, pace, xi, work, sent))) for pace, work in of_seeds)
    if 0 < clock.deadline < fastest:
        what = "one pass" if clock.partial else "its work"
        raise BadInput(
            f"config.clock.deadline={clock.deadline}: nobody would be in time, since the fastest"
            f" client needs {fastest:.4g} s for {what} and its messages"
        )


def _check_turns(config, stages):
    """Raises BadInput if a round of clients that take turns would end without some of them."""
    for key, without in (("over_selection", 1), ("deadline", 0)):
        if config.clock[key] != without:
            what = f"config.clock.{key}={config.clock[key]} does not fit {config.method.name}: "
            needs.check(stages, *LATE_NEEDS, what=what)


def _check_over_selection(config, plan, drawn):
    """Raises BadInput if the number of clients in a round does not depend on run.cohort."""
    if config.clock.over_selection > 1 and drawn != plan.cohort:
        raise BadInput(
            f"config.clock.over_selection={config.clock.over_selection} needs a sampling that draws"
            f" a given number of clients, not one that always draws {drawn}"
        )


def _over_selected(config, plan, num_clients):
    """The plan with a larger sample, of which the first uploads are used."""
    sample = math.ceil(config.clock.over_selection * plan.cohort - 1e-9)
    if sample > num_clients:
        raise BadInput(
            f"config.clock.over_selection={config.clock.over_selection} draws {sample} clients in a"
            f" round, but there are {num_clients}; use at most {num_clients / plan.cohort:.4g}"
        )
    return plan._replace(cohort=sample)


def _rules(config, plan, num_clients):
    """The rules of an asynchronous run. Raises BadInput if they cannot be met."""
    clock, buffer = config.clock, plan.cohort
    if clock.concurrency > num_clients:
        raise BadInput(
            f"config.clock.concurrency={clock.concurrency} is more than the {num_clients} clients"
        )
    if buffer > clock.concurrency:
        raise BadInput(
            f"config.run.cohort={config.run.cohort}: an update of the server waits for {buffer}"
            f" uploads, the buffer, more than the {clock.concurrency} clients that train at a time"
            " (config.clock.concurrency)"
        )
    return Rules(
        updates=plan.rounds,
        buffer=buffer,
        concurrency=clock.concurrency,
        max_staleness=clock.max_staleness,
        start_rate=clock.start_rate,
        lost=plan.failures.dropout,
        straggler=plan.failures.straggler,
    )


def check_method(config: ml_collections.ConfigDict, stages: Sequence[Stage]) -> None:
    """Raises BadInput if an asynchronous run has a method that cannot train asynchronously."""
    if not is_asynchronous(config):
        return
    for key in ("run.sampling", "privacy.name"):
        section, entry = key.split(".")
        if config[section][entry] not in ("", "none"):
            raise BadInput(
                f"{ASYNCHRONOUS} cannot be combined with config.{key}={config[section][entry]},"
                " which needs the rounds of synchronous runs"
            )
    what = f"{ASYNCHRONOUS} does not fit method {config.method.name}: "
    remedy = "; docs/time.md has methods that are made for it"
    needs.check(stages, *ASYNCHRONOUS_NEEDS, what=what, remedy=remedy)
