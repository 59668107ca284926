"""The evaluation contract: every method is scored in the same way, on all rows of a federation.

A client's model is scored as it is after aggregation and broadcast, before any further training,
unless the method has a `tune`. All accuracies are percentages, 0..100. The loss and the metrics
that a config names are measured too: see `metrics`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import streams, tree
from fedjax_lab.simulation import contract, simulate
from fedjax_lab.simulation.client_work import (
    client_federation,
    fetch,
    make_work,
    num_batches,
    work_rows,
)
from fedjax_lab.simulation.metrics import LOSS, Metric, Summed, Whole, by_domain, loss_of
from fedjax_lab.simulation.simulate import Lane, Program
from fedjax_lab.types import Array, Client, Federation, Method, Plan, PyTree, Rows, State

GLOBAL_CLIENTS = 100  # most clients whose mean is `global` if the method defines no newcomer


class Counts(NamedTuple):
    """Numbers of correctly predicted and of all labels by domain [..., D], and other metrics.

    In most tasks an example has one label. `correct` is None if the task has no accuracy.
    `measured` maps the name of a metric to its sums by domain [..., D, ...] or, for a `Whole`, to
    its values [...].
    """

    correct: Array | None
    total: Array
    measured: dict[str, PyTree]


class Answers(NamedTuple):
    """The outputs of a model for rows [T], with their labels: the arguments of a metric."""

    logits: Array  # [T, *outputs]
    labels: Array  # [T, *label]
    mask: Array  # [T]


class Scores(NamedTuple):
    """The counts of one evaluation, by set of rows; None for rows that the federation lacks."""

    validation: Counts | None  # [C, D]
    test: Counts | None  # [C, D]
    global_test: Counts | None  # [1 or clients, D]
    unseen: Counts | None  # [C, D]
    new: Counts | None = None  # [N, D] new clients with the model that they get
    new_tuned: Counts | None = None  # [N, D] new clients after they have used their own data


def score(program: Program, lane: Lane, state: State, t: Array) -> Scores:
    """Scores the models after t rounds, as one pure function.

    `lane.federation.train` has the rows of each client, also for a pooled method. A method's `tune`
    uses the learning rate of the last round.
    """
    federation, program = lane.federation, simulate.in_round(program, jnp.maximum(t - 1, 0))
    of_clients = partial(_score_clients, program, lane, state, t)
    of_average_client = partial(_score_newcomer, program, lane, state)
    if program.method.newcomer is None:
        of_average_client = partial(of_clients, at_most=GLOBAL_CLIENTS)

    def scored(with_models, rows):
        return None if rows is None else with_models(rows)

    with jax.named_scope("evaluate"):
        new, new_tuned = _score_new(program, lane, state, t)
        return Scores(
            validation=scored(of_clients, federation.validation),
            test=scored(of_clients, federation.test),
            global_test=scored(of_average_client, federation.global_test),
            unseen=scored(of_clients, federation.unseen),
            new=new,
            new_tuned=new_tuned,
        )


def _score_clients(program, lane, state, t, rows, at_most=None):
    """Counts [C, D] for the clients' own models; with `at_most`, only of evenly spaced clients.

    rows: the rows of each client, or rows [T] that all clients share.
    """
    (method, plan, strategy, *_), federation = program, lane.federation
    clients = lane.population
    if lane.held is not None:  # the clients to score were chosen when the lane was made
        clients, at_most = strategy.take(clients, lane.held), None
        plan = plan._replace(num_clients=0)
    num_clients = plan.num_clients or len(clients.id)
    clients = clients._replace(private=state.private)
    to_tune = () if method.tune is None else work_rows(method, federation)
    shared_rows = None
    if isinstance(rows, Rows) and len(clients.id) == 1 < len(rows):  # one client has all examples
        num_clients, same = len(rows), jnp.zeros(len(rows), jnp.int32)
        clients, to_tune = strategy.take((clients, to_tune), same)
    if not isinstance(rows, Rows):
        shared_rows, rows = strategy.collect(federation, rows), ()
    if at_most is not None and at_most < num_clients:
        chosen = jnp.asarray(evenly_spaced(num_clients, at_most))
        clients, to_tune, rows = strategy.take((clients, to_tune, rows), chosen)
    k_clients = streams.clients(lane.keys.score, t, clients.id)

    def one(shared, federation, rows, entry):
        (server, shared_rows), (to_tune, rows), (client, key) = shared, rows, entry
        skewed = client_federation(federation, client)
        message = method.sends_scored(server, client.id)
        message, client = _tuned(program, skewed, message, client, to_tune, key)
        federation, rows = (skewed, rows) if shared_rows is None else shared_rows
        return count_model(program, federation, message, client, rows)

    run = strategy.everyone(one, min(plan.cohort, num_clients))
    counts = run((state.server, shared_rows), federation, (to_tune, rows), (clients, k_clients))
    return simulate.without_padding(plan, counts)


def evenly_spaced(num_clients: int, at_most: int = GLOBAL_CLIENTS) -> np.ndarray:
    """The ids of at most `at_most` clients, evenly spaced among all."""
    count = min(at_most, num_clients)
    return np.linspace(0, num_clients - 1, count).round().astype(np.int32)


def _tuned(program, federation, message, client, rows, key):
    """The message and the client after the method's `tune`, if it has one.

    rows: the client's `WorkRows`; not used without `tune`.
    """
    method, plan, *_ = program
    if method.tune is None:
        return message, client
    plan = plan._replace(equal_steps=False)
    work, _ = make_work(
        federation,
        rows.train,
        plan,
        key,
        validation=rows.validation,
        settings=client.traits.get("settings"),
    )
    message, private = contract.check_model("tune", method.tune(message, client, work))
    return message, client._replace(private=private)


def _score_newcomer(program, lane, state, rows):
    """Counts [1, D] of an unseen client's model on rows [G]."""
    plan, strategy = program.plan, program.strategy
    message, private = _newcomer(program, state)
    blank = jax.tree.map(lambda a: jnp.zeros_like(a[0]), lane.population)
    client = blank._replace(id=jnp.int32(-1), private=private)

    def block(shared, federation, rows, entry):
        message, client = shared
        return count(program, federation, message, client, rows)

    blocks = _pad(rows, plan.eval_batch).reshape(-1, plan.eval_batch)
    run = strategy.everyone(block, min(plan.cohort, len(lane.population.id)))
    counts, answers = run((message, client), lane.federation, blocks, ())
    counts = jax.tree.map(lambda a: jnp.sum(a, 0), counts)
    answers = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), answers)
    if strategy.sharding is not None:  # sorting divided arrays takes ten times as long
        answers = jax.lax.with_sharding_constraint(answers, strategy.sharding)
    return jax.tree.map(lambda a: a[None], _with_whole(plan, counts, answers))


def _newcomer(program, state):
    """The message and the private state for a client that has not taken part in training."""
    private = simulate.without_padding(program.plan, state.private)
    given = program.method.newcomer(state._replace(private=private))
    return contract.check_model("newcomer", given)


def scores_new(method: Method) -> bool:
    """Whether the method has a model for new clients, with or without the use of their data."""
    return method.newcomer is not None or method.join is not None


def uses_data_of_new(method: Method) -> bool:
    """Whether new clients use their own data before they are scored."""
    return method.tune is not None or method.join is not None


def _score_new(program, lane, state, t):
    """Counts [N, D] of the new clients before and after they use their own data.

    Each is None if there are no such counts.
    """
    (method, plan, strategy, *_), federation = program, lane.federation
    if federation.new_test is None or not scores_new(method):
        return None, None
    clients, number = lane.new, plan.num_new or len(lane.new.id)
    if lane.held is not None:
        clients, number = strategy.take(clients, lane.held), len(lane.held)
    train = federation.new_train if uses_data_of_new(method) else ()
    k_clients = streams.clients(lane.keys.score, t, clients.id)

    def one(shared, federation, rows, entry):
        (server, before), (train, test), (client, key) = shared, rows, entry
        federation = client_federation(federation, client)
        client = client._replace(id=jnp.int32(-1))
        after = _made_by_new(program, federation, server, before, client, train, key)

        def counted(model):
            if model is None:
                return None
            message, private = model
            with_model = client._replace(private=private)
            return count_model(program, federation, message, with_model, test)

        return counted(before), counted(after)

    before = None if method.newcomer is None else _newcomer(program, state)
    run = strategy.everyone(one, min(plan.cohort, number))
    rows = train, federation.new_test
    counts = run((state.server, before), federation, rows, (clients, k_clients))
    return jax.tree.map(lambda a: a[:number], counts)


def _made_by_new(program, federation, server, before, client, rows, key):
    """(message, private) after a new client has used its own data; None if it never does.

    before: (message, private) before that.
    """
    method, plan, *_ = program
    if not uses_data_of_new(method):
        return None
    plan, settings = plan._replace(equal_steps=False), client.traits.get("settings")
    work, _ = make_work(federation, rows, plan, key, settings=settings)
    if method.join is not None:
        return contract.check_model("join", method.join(server, client, work))
    message, private = before
    tuned = method.tune(message, client._replace(private=private), work)
    return contract.check_model("tune", tuned)


def count_model(
    program: Program, federation: Federation, message: PyTree, client: Client, rows: Array
) -> Counts:
    """Scores one client's model on rows [T], padded with -1 at the end; returns counts [D]."""
    return _with_whole(program.plan, *count(program, federation, message, client, rows))


def count(
    program: Program, federation: Federation, message: PyTree, client: Client, rows: Array
) -> tuple[Counts, Answers | None]:
    """Scores one client's model on rows [T], padded with -1 at the end; returns (counts, answers).

    The answers are None if no metric needs all of them at once. The counts do not yet have the
    metrics that do.
    """
    plan, size = program.plan, min(program.plan.eval_batch, rows.shape[0])
    padded = _pad(rows, size)

    def step(s, carry):
        counts, kept = carry
        at = jax.lax.dynamic_slice(padded, (s * size,), (size,))
        batch = fetch(federation, at, plan)
        logits = program.method.predict(message, client, batch.x)
        contract.check_logits(logits, len(batch.y), plan.objective)
        which = jax.nn.one_hot(federation.domain[at], plan.num_domains, dtype=jnp.float32)
        domain = which * batch.mask[:, None]
        views = {
            name: program.method.predict(message, client, view(batch.x))
            for name, view in _views(plan).items()
        }
        of_batch = _count_batch(plan, logits, batch.y, domain, views)
        counts = tree.typed_like(tree.add(counts, of_batch), counts)
        if kept is not None:
            logits = logits.astype(kept.dtype)
            kept = jax.lax.dynamic_update_slice_in_dim(kept, logits, s * size, 0)
        return counts, kept

    shape = len(padded), *plan.objective.outputs
    kept = jnp.zeros(shape) if _needs_answers(plan) else None
    batches = num_batches(jnp.sum(rows >= 0), size)
    start = _no_counts(plan, size), kept
    counts, logits = jax.lax.fori_loop(0, batches, step, start)
    if logits is None:
        return counts, None
    return counts, Answers(logits, federation.y[padded], (padded >= 0).astype(jnp.float32))


def _count_batch(plan, logits, labels, domain, views):
    """The counts [D] of a batch.

    domain: one-hot domains [B, D], all 0 for padding. views: logits for changed inputs, by the name
        of the metric that defines the change.
    """
    objective, examples = plan.objective, jnp.sum(domain, 0)
    correct = None if objective.correct is None else objective.correct(logits, labels) @ domain
    total = examples if objective.num_labels is None else objective.num_labels(labels) @ domain
    measured = {
        metric.name: by_domain(
            metric, views.get(metric.name, logits).astype(jnp.float32), labels, domain
        )
        for metric in all_metrics(plan)
        if isinstance(metric, Summed)
    }
    return Counts(correct, total, measured)


def _no_counts(plan, size):
    """The counts before the first batch of `size` examples."""
    like, objective = jax.ShapeDtypeStruct, plan.objective
    logits = like((size, *objective.outputs), jnp.float32)
    labels = like((size, *objective.label.shape), objective.label.dtype)
    domain = like((size, plan.num_domains), jnp.float32)
    views = dict.fromkeys(_views(plan), logits)
    return tree.zeros(jax.eval_shape(partial(_count_batch, plan), logits, labels, domain, views))


def _with_whole(plan, counts, answers):
    """Adds the metrics that need all answers of a client at once to its counts."""
    if answers is None:
        return counts
    values = {
        metric.name: jnp.asarray(metric.value(*answers), jnp.float32)
        for metric in plan.metrics
        if isinstance(metric, Whole)
    }
    return counts._replace(measured={**counts.measured, **values})


def all_metrics(plan: Plan) -> tuple[Metric, ...]:
    """The loss and the plan's metrics: what an evaluation measures besides the accuracy."""
    return (loss_of(plan.objective), *plan.metrics)


def _views(plan):
    """The functions that change the model's input for some metrics, by the name of the metric."""
    summed = (metric for metric in plan.metrics if isinstance(metric, Summed))
    return {metric.name: metric.view for metric in summed if metric.view is not None}


def _needs_answers(plan: Plan) -> bool:
    """Whether a metric needs all answers of a client at once."""
    return any(isinstance(metric, Whole) for metric in plan.metrics)


def _pad(rows, multiple):
    return jnp.pad(rows, (0, -rows.shape[0] % multiple), constant_values=-1)


def summarize(
    scores: Scores, domains: tuple[str, ...], named: Sequence[Metric] = ()
) -> dict[str, Any]:
    """Summarizes one evaluation by the numbers of the contract, on the host.

    The result has no NaN; numbers that do not exist are left out. Its keys:

    accuracy: of the clients' own models on their own test rows. global: of the model that an
    average client gets, on the global test set. id: on the clients' validation rows. ood: of each
    client's model on the unseen domain. domains: by domain, on the clients' test rows or, without
    such rows, on the global test set. new and new_tuned: of the new clients, before and after they
    use their own data. id, ood, new and new_tuned are means over clients; id_per_client and so on
    have the value of each client, None for one without such rows.

    The loss and the named metrics have the same forms: loss, domains_loss, global_loss, ...; None
    is a value that is not finite. A mean over clients leaves out those for which a metric is not
    defined. `weighted` is the value over all clients' examples together or, for a `Whole`, the mean
    weighted by examples. A `Whole` has no domains. A task without an accuracy has only these.
    """
    split = scores.test if scores.test is not None else scores.global_test
    with np.errstate(all="ignore"):
        out = _summarize_accuracy(scores, split, domains)
        for metric in (LOSS, *named):
            out |= _summarize_metric(metric, scores, split, domains)
    return out


def _summarize_accuracy(scores, split, domains):
    """The numbers of the accuracy, without a name of a metric in their keys."""
    out: dict[str, Any] = {}
    if not any(counts is not None and counts.correct is not None for counts in scores):
        return out
    if scores.test is not None:
        out["accuracy"] = _clients(scores.test)
    if split is not None and len(domains) > 1:
        out["domains"] = _by_domain(split, domains)
    if scores.global_test is not None:
        out["global"] = _pooled(scores.global_test)
    for form, counts in _means_of_clients(scores).items():
        out |= _mean_and_each(form, "", _clients(counts))
    return out


def _means_of_clients(scores):
    """{form: counts [C, D]} of the forms that have a mean over clients and each client's value."""
    forms = {
        "id": scores.validation,
        "ood": scores.unseen,
        "new": scores.new,
        "new_tuned": scores.new_tuned,
    }
    return {form: counts for form, counts in forms.items() if counts is not None}


def _mean_and_each(form, metric, clients):
    key = f"{form}{metric}"
    return {key: clients["mean"], f"{key}_per_client": clients["per_client"]}


def _clients(counts):
    correct, total = (np.asarray(a, float).sum(-1) for a in (counts.correct, counts.total))
    tested = total > 0
    each = np.full(len(total), np.nan)
    each[tested] = 100 * correct[tested] / total[tested]
    return _spread(each, 100 * correct.sum() / total.sum())


def _spread(each, weighted, lower_is_better=False):
    """The values of clients [C] and their summary, which leaves out NaN."""
    defined = each[~np.isnan(each)]
    ascending, tenth = np.sort(defined), max(1, len(defined) // 10)
    worst = ascending[-tenth:] if lower_is_better else ascending[:tenth]
    parts = {"worst10": worst, "min": ascending[:1], "max": ascending[-1:]}
    return {
        "mean": _mean(defined),
        "weighted": _finite(weighted),
        **{name: _mean(values) for name, values in parts.items()},
        "variance": _finite(defined.var()) if len(defined) else None,
        "gini": _gini(ascending),
        "per_client": np.where(np.isfinite(each), each, None).tolist(),
    }


def _gini(ascending):
    """Half the mean difference between two clients, relative to the mean; None if one is below 0.

    It is 0 if all clients have the same value, and nearly 1 if one has everything.
    """
    if not len(ascending) or ascending[0] < 0:
        return None
    total = ascending.sum() or 1.0  # if all values are 0, so is the coefficient
    rank = 2 * np.arange(1, len(ascending) + 1) - len(ascending) - 1
    return _finite((rank * ascending).sum() / (len(ascending) * total))


def _mean(values):
    return _finite(values.mean()) if len(values) else None


def _finite(value):
    return float(value) if np.isfinite(value) else None


def _by_domain(counts, domains):
    correct, total = (np.asarray(a, float).sum(0) for a in (counts.correct, counts.total))
    rows = zip(domains, correct, total, strict=True)
    return {name: float(100 * c / n) for name, c, n in rows if n}


def _pooled(counts):
    correct, total = (np.asarray(a, float).sum() for a in (counts.correct, counts.total))
    return _finite(100 * correct / total)


def _summarize_metric(metric, scores, split, domains):
    """The numbers of one metric; their keys end in its name."""
    name, out = metric.name, {}
    if scores.test is not None:
        out[name] = _metric_of_clients(metric, scores.test)
    if split is not None and len(domains) > 1 and isinstance(metric, Summed):
        rows = zip(domains, _value(metric, split, 0), split.total.sum(0), strict=True)
        out[f"domains_{name}"] = {domain: _finite(value) for domain, value, n in rows if n}
    if scores.global_test is not None:
        out[f"global_{name}"] = _metric_of_clients(metric, scores.global_test)["mean"]
    for form, counts in _means_of_clients(scores).items():
        out |= _mean_and_each(form, f"_{name}", _metric_of_clients(metric, counts))
    return out


def by_group(
    accuracy: dict | None, groups: np.ndarray | None, names: dict[Any, str]
) -> dict[str, float]:
    """The mean accuracy of the clients of each group; {} if there are no groups.

    accuracy: of clients, as in `summarize`. groups: of at least these clients. names: of all
    groups, in the order of the result.
    """
    if accuracy is None or groups is None:
        return {}
    each = np.array(accuracy["per_client"], float)
    of_clients = np.array([names[group] for group in groups.tolist()])[: len(each)]
    scored = ~np.isnan(each)
    means = {name: _mean(each[(of_clients == name) & scored]) for name in names.values()}
    return {name: mean for name, mean in means.items() if mean is not None}


def _metric_of_clients(metric, counts):
    total = np.asarray(counts.total, float).sum(-1)
    if isinstance(metric, Summed):
        each, weighted = _value(metric, counts, 1), _value(metric, counts, (0, 1))
    else:
        each = np.where(total > 0, np.asarray(counts.measured[metric.name], float), np.nan)
        defined = ~np.isnan(each)
        weighted = (each * total)[defined].sum() / total[defined].sum()
    return _spread(each, weighted, metric.lower_is_better)


def _value(metric, counts, axis):
    """The value of a `Summed` after summing over these axes of [C, D]."""
    sums, total = jax.tree.map(
        lambda a: np.asarray(a, float).sum(axis), (counts.measured[metric.name], counts.total)
    )
    return metric.value(sums, total)
