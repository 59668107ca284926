"""A federation in a loop of one's own: pure functions that can be jitted, vmapped and scanned.

    sim = simulator(method, task, federation, cohort=5, batch_size=32, optimizer=optim.sgd(0.1))
    state = sim.init(key)
    state, info = sim.round(key, state, t)
    scores = sim.score(key, state, t)

The numbers are those of the command `run` with the same seed and settings, up to rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab import defaults, optim, ranges, streams, tree
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.simulation import (
    by_kind,
    contract,
    evaluate,
    metrics,
    needs,
    outline,
    simulate,
)
from fedjax_lab.simulation.client_work import work_rows
from fedjax_lab.simulation.evaluate import Scores
from fedjax_lab.simulation.metrics import Metric
from fedjax_lab.simulation.population import new_on_host, population_on_host
from fedjax_lab.simulation.simulate import (
    Lane,
    Program,
    Round,
)
from fedjax_lab.simulation.strategies import Strategy, is_rows, vectorized
from fedjax_lab.types import (
    Array,
    Client,
    Failures,
    Federation,
    Method,
    Plan,
    PyTree,
    Stage,
    State,
    Task,
)


class Data(NamedTuple):
    """The arrays of a federation: the examples, the rows of each client, and the clients."""

    federation: Federation
    population: Client  # [C], without private state
    new: Client | None  # [N] clients that are only scored; None: there are none


class Simulator(NamedTuple):
    """A method and a federation as pure functions. `t` counts rounds from 0.

    A jitted function contains the arrays that it closes over as constants. Large examples are
    better passed as an argument: `jax.jit(sim.round)(key, state, t, sim.data)`.
    """

    init: Callable[..., State]  # key -> the state before round 0
    round: Callable[..., tuple[State, Round]]
    # (key, state, t, data) -> the state after round t, and measurements of the round
    score: Callable[..., Scores]  # (key, state, t, data) -> the counts of the models after t rounds
    upload: Callable[..., PyTree]
    # (key, state, t, id, data) -> what client `id` uploads in the first exchange of round t; the
    # dropout and the stragglers of a round are ignored; `id` is not traced if models are unlike
    summarize: Callable[[Scores], dict[str, Any]]  # scores -> as a row of metrics, on the host
    data: Data  # the default of the arguments `data`


@defaults.restored()
def simulator(
    method: Method,
    task: Task,
    federation: Federation,
    *,
    cohort: int = 0,
    batch_size: int = 32,
    epochs: int = 1,
    steps: int = 0,
    optimizer: optax.GradientTransformation | None = None,
    clip: float | Array = 0.0,
    dropout: float = 0.0,
    straggler: float = 0.0,
    augment: Callable[[Array, Array], Array] | None = None,
    measures: Sequence[Metric | Callable] = (),
    domains: Sequence[str] = (),
    strategy: Strategy | None = None,
) -> Simulator:
    """The functions `init`, `round` and `score` of a method on a federation.

    Hyper-parameters of the method and the optimizer may be tracers, so that this function can be
    called inside `jax.vmap` over settings. Every seed of a vmap over keys has this federation.

    Args:
      method: a method, for example `fedavg(task)`.
      task: the model: see `models.task.make_task`.
      federation: the examples and those of each client: see `experiment.federation`.
      cohort: the number of clients in a round; 0: all.
      batch_size: the number of examples of a client's step.
      epochs: the number of passes of a client over its examples in a round.
      steps: the number of steps of a client in a round; 0: `epochs` decides.
      optimizer: of the clients; None: `optim.sgd(0.01)`.
      clip: the largest norm of a step's gradient; 0: no limit.
      dropout: the probability that a client's uploads of a round are lost.
      straggler: the probability that a client makes only some of its passes in a round.
      augment: (key, x [B, ...]) -> x, in training, before numbers are scaled; None: no change.
      measures: metrics besides the accuracy and the loss, such as `metrics.BUILT_IN["top5"]`.
      domains: the names of the federation's domains in summaries; (): their numbers.
      strategy: how clients share a device: see `simulation.strategies`; None: all at once.

    Raises:
      BadInput: the method, the federation, the task and these numbers do not fit each other.
    """
    _check_types(task, federation, optimizer)
    _check_method(method, federation)
    _check_examples(task, federation)
    _check_sizes(len(federation.train), cohort, batch_size, epochs, steps)
    _check_failures(dropout, straggler, steps or epochs)
    names = _domain_names(federation, domains)
    plan = make_plan(
        [federation],
        rounds=0,
        cohort=cohort,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        optimizer=optim.sgd(0.01) if optimizer is None else optimizer,
        clip=clip,
        failures=Failures(dropout=dropout, straggler=straggler),
        augment=augment,
        metrics=metrics.make((*measures, *method.extra.metrics), task.objective),
        objective=task.objective,
        num_domains=len(names),
        example_shape=task.input_shape,
    )
    strategy = strategy or vectorized()
    strategy = by_kind.deal_kinds(strategy) if "kind" in federation.traits else strategy
    return from_program(Program(method, plan, strategy), federation, names)


def from_program(program: Program, federation: Federation, domains: tuple[str, ...]) -> Simulator:
    """The functions of a program with one federation, without the checks of `simulator`."""
    method, plan, classes = program.method, program.plan, program.plan.objective.num_classes
    people = [of(federation, classes) for of in (population_on_host, new_on_host)]
    default = Data(*jax.tree.map(jnp.asarray, (federation._replace(traits={}), *people)))
    program, _, _ = outline.first_round(program, default.federation, default.population)

    def lane(key, data):
        return Lane(data.federation, data.population, streams.make_keys(key), new=data.new)

    @defaults.restored()
    def init(key):
        keys = streams.make_keys(key)
        return simulate.init(method, keys, len(federation.train), federation.traits)

    @defaults.restored()
    def play_round(key, state, t, data=default):
        after, measured = simulate.play_round(program, lane(key, data), state, t)
        return tree.typed_like(after, state), measured

    @defaults.restored()
    def score(key, state, t, data=default):
        return evaluate.score(program, lane(key, data), state, jnp.asarray(t))

    @defaults.restored()
    def upload(key, state, t, id, data=default):
        exchange, left = method.round[0], len(method.round) - 1
        ids, rows = jnp.asarray(id)[None], work_rows(method, data.federation)
        rows = jax.tree.map(lambda a: a[ids][0], rows, is_leaf=is_rows)
        client = by_kind.entry(data.population._replace(private=state.private), id)
        stream = streams.exchange(streams.clients(streams.make_keys(key).local, t, ids), left)[0]
        run = simulate.one_client(exchange, plan)
        (sent, _), _ = run(state.server, data.federation, rows, (client, stream, None))
        return sent

    def summarize(scores):
        return evaluate.summarize(jax.device_get(scores), domains, plan.metrics)

    return Simulator(init, play_round, score, upload, summarize, default)


def make_plan(training: Sequence[Federation], *, cohort: int, batch_size: int, **fields) -> Plan:
    """Makes the plan of a run that trains on these federations. fields: further fields of the plan.

    cohort: clients per round; 0: all. A batch has no more examples than the largest client.
    """
    num_clients, width = len(training[0].train), training[0].train.longest
    settings = [f.traits["settings"] for f in training if "settings" in f.traits]
    if settings and settings[0].batch_size is not None:
        batch_size = int(max(of_seed.batch_size.max() for of_seed in settings))
    size = min(batch_size, width)  # larger batches would only have more padding
    sizes = np.concatenate([f.train.count for f in training])
    return Plan(
        cohort=min(cohort or num_clients, num_clients),
        batch_size=size,
        equal_steps=not settings and bool((-(-sizes // size) == -(-width // size)).all()),
        **fields,
    )


def _domain_names(federation, domains):
    """The names of the federation's domains. Raises BadInput if there are fewer names."""
    count = int(np.asarray(federation.domain).max()) + 1
    if domains and len(domains) < count:
        raise BadInput(f"simulator: the federation has {count} domains, got {len(domains)} names")
    return tuple(domains) or tuple(map(str, range(count)))


def _check_types(task, federation, optimizer):
    """Raises BadInput if one of them is something else."""
    if not isinstance(task, Task):
        raise BadInput(f"simulator: the task must be that of make_task, got {quoted(task)}")
    if not isinstance(federation, Federation):
        raise BadInput(
            "simulator: the federation must be one of those that make_federations returns, got"
            f" {quoted(federation)}"
        )
    if not isinstance(optimizer, optax.GradientTransformation | None):
        raise BadInput(
            f"simulator: the optimizer must be one of optax, such as optim.sgd(0.1), got"
            f" {quoted(optimizer)}"
        )


def _check_method(method, federation):
    """Raises BadInput unless it is a method of one stage whose needs the federation meets."""
    if callable(method) and not isinstance(method, Method):
        raise BadInput(
            "simulator: the method has several stages, or it is a function that was not called with"
            " the task; pass fedavg(task), or train stages with fedjax_lab.run"
        )
    contract.check_stages((Stage("train", method, 1),))
    if len(federation.train) > 1:
        remedy = "; pass the federation pool([federation])[0] of experiment.federation"
        needs.check(method, "clients", what="simulator: ", remedy=remedy)
    if method.validation:
        remedy = " or make_federations(..., validation=0.2)"
        needs.check(federation, *needs.VALIDATION, what="simulator: ", remedy=remedy)


def _check_examples(task, federation):
    """Raises BadInput unless the model fits the examples and labels."""
    sizes = federation.x.shape[1:], (int(np.prod(task.input_shape)),)
    if sizes[0] != sizes[1]:
        raise BadInput(
            f"simulator: the task is for inputs {list(task.input_shape)}, {sizes[1][0]} numbers,"
            f" but an example of the federation has {list(sizes[0])}; make the task with its shape"
        )
    label, y = task.objective.label, federation.y
    if y.shape[1:] != label.shape or y.dtype.kind != np.dtype(label.dtype).kind:
        raise BadInput(
            f"simulator: task {task.objective.name} needs labels {label.dtype}{list(label.shape)},"
            f" but those of the federation are {y.dtype}{list(y.shape[1:])}"
        )
    classes, highest = task.objective.num_classes, np.asarray(y).max()
    if classes and highest >= classes:
        raise BadInput(
            f"simulator: the task has {classes} classes, but the federation has label {highest};"
            f" make the task with {highest + 1} classes"
        )


def _check_sizes(num_clients, cohort, batch_size, epochs, steps):
    """Raises BadInput unless these numbers are those of a round."""
    bounds = {
        "cohort": (cohort, 0, num_clients),
        "batch_size": (batch_size, 1, None),
        "epochs": (epochs, 1, None),
        "steps": (steps, 0, None),
    }
    for name, (number, low, high) in bounds.items():
        whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
        if not whole or number < low or (high is not None and number > high):
            upper = "" if high is None else f" and at most {high}, the number of clients"
            raise BadInput(
                f"simulator: {name} must be an integer of at least {low}{upper}, got"
                f" {quoted(number)}"
            )


def _check_failures(dropout, straggler, work):
    """Raises BadInput unless clients can fail like that. work: the passes or steps of a round."""
    bounds = {"dropout": (dropout, ranges.BELOW_ONE), "straggler": (straggler, ranges.SHARE)}
    for name, (number, limit) in bounds.items():
        if not isinstance(number, (int, float)) or not limit.allows(number):
            raise BadInput(f"simulator: {name} must be a number {limit}, got {quoted(number)}")
    if straggler and work < 2:
        raise BadInput(
            "simulator: stragglers make fewer passes or steps, so that there must be at least 2 in"
            f" a round, got {work}"
        )
