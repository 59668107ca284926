"""The evaluation contract: every method is scored alike, on all the rows that a federation has.

A client's model is what it has after aggregation and broadcast, before any further training, except
where a method's `tune` says otherwise. All accuracies are percent, 0..100.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import simulate, streams
from fedjax_lab.local import fetch, make_work, num_batches
from fedjax_lab.simulate import Lane, Program
from fedjax_lab.types import Array, Client, Federation, PyTree, Rows, State

GLOBAL_CLIENTS = 100  # where no newcomer is defined, `global` is the mean over at most so many


class Counts(NamedTuple):
    """Examples that were classified correctly, and all, by domain [..., D]."""

    correct: Array
    total: Array


class Scores(NamedTuple):
    """None for rows that the federation does not have."""

    validation: Counts | None  # [C, D]
    test: Counts | None  # [C, D]
    global_test: Counts | None  # [blocks or clients, D]
    unseen: Counts | None  # [C, D]


def score(program: Program, lane: Lane, state: State, t: Array) -> Scores:
    """Scores after t rounds, as one pure function. `federation.train` is the clients' own."""
    federation = lane.federation
    of_clients = partial(_score_clients, program, lane, state, t)
    of_average_client = partial(_score_newcomer, program, lane, state)
    if program.method.newcomer is None:
        of_average_client = partial(of_clients, at_most=GLOBAL_CLIENTS)

    def scored(with_models, rows):
        return None if rows is None else with_models(rows)

    with jax.named_scope("evaluate"):
        return Scores(
            validation=scored(of_clients, federation.validation),
            test=scored(of_clients, federation.test),
            global_test=scored(of_average_client, federation.global_test),
            unseen=scored(of_clients, federation.unseen),
        )


def _score_clients(program, lane, state, t, rows, at_most=None):
    """Counts [C, D] for the clients' own models; with `at_most`, for so many evenly spaced clients.

    rows: each client's own, or the same for all of them [T].
    """
    (method, plan, strategy), federation = program, lane.federation
    clients = lane.population
    if lane.held is not None:
        clients = strategy.take(clients, lane.held)
    num_clients = plan.num_clients or len(clients.id)
    clients = clients._replace(private=state.private)
    train = () if method.tune is None else federation.train
    everybody = None
    if not isinstance(rows, Rows):
        everybody, rows = strategy.collect(federation, rows), ()
    if at_most is not None and at_most < num_clients:
        chosen = jnp.asarray(evenly_spaced(num_clients, at_most))
        clients, train, rows = strategy.take_any((clients, train, rows), chosen)
    k_clients = streams.clients(lane.keys.score, t, clients.id)
    send = method.scored or method.round[-1].send

    def one(shared, federation, rows, entry):
        (server, everybody), (train, rows), (client, key) = shared, rows, entry
        message, client = _tuned(program, federation, send(server, client.id), client, train, key)
        if everybody is not None:
            federation, rows = everybody
        return count_correct(program, federation, message, client, rows)

    run = strategy.everyone(one, min(plan.cohort, num_clients))
    counts = run((state.server, everybody), federation, (train, rows), (clients, k_clients))
    return simulate.without_padding(plan, counts)


def evenly_spaced(num_clients: int, at_most: int = GLOBAL_CLIENTS) -> np.ndarray:
    """At most so many clients among all, as numbers."""
    count = min(at_most, num_clients)
    return np.linspace(0, num_clients - 1, count).round().astype(np.int32)


def _tuned(program, federation, message, client, train, key):
    """Message and client after what the method lets a client do before it is scored."""
    method, plan, _ = program
    if method.tune is None:
        return message, client
    work, _ = make_work(federation, train, plan._replace(equal_steps=False), key)
    message, private = method.tune(message, client, work)
    return message, client._replace(private=private)


def _score_newcomer(program, lane, state, rows):
    """Counts [blocks, D] of an unseen client's model on rows [G]."""
    plan, strategy = program.plan, program.strategy
    private = simulate.without_padding(plan, state.private)
    message, private = program.method.newcomer(state._replace(private=private))
    nobody = jax.tree.map(lambda a: jnp.zeros_like(a[0]), lane.population)
    client = nobody._replace(id=jnp.int32(-1), private=private)

    def block(shared, federation, rows, entry):
        message, client = shared
        return count_correct(program, federation, message, client, rows)

    blocks = _pad(rows, plan.eval_batch).reshape(-1, plan.eval_batch)
    run = strategy.everyone(block, min(plan.cohort, len(lane.population.id)))
    return run((message, client), lane.federation, blocks, ())


def count_correct(
    program: Program, federation: Federation, message: PyTree, client: Client, rows: Array
) -> Counts:
    """One client's model on rows [T], -1 padded at the end."""
    plan = program.plan
    size = min(plan.eval_batch, rows.shape[0])
    padded = _pad(rows, size)

    def step(s, counts):
        at = jax.lax.dynamic_slice(padded, (s * size,), (size,))
        batch = fetch(federation, at, plan)
        logits = program.method.predict(message, client, batch.x)
        _check_logits(logits, batch)
        correct = jnp.argmax(logits, -1) == batch.y
        domain = jax.nn.one_hot(federation.domain[at], plan.num_domains) * batch.mask[:, None]
        return Counts(counts.correct + correct @ domain, counts.total + jnp.sum(domain, 0))

    zero = jnp.zeros(plan.num_domains)
    batches = num_batches(jnp.sum(rows >= 0), size)
    return jax.lax.fori_loop(0, batches, step, Counts(zero, zero))


def _check_logits(logits, batch):
    """AssertionError, while tracing, unless there are logits [B, K], which else would broadcast."""
    import chex  # here, so that importing the package takes no longer

    chex.assert_shape(logits, (len(batch.y), None))


def _pad(rows, multiple):
    return jnp.pad(rows, (0, -rows.shape[0] % multiple), constant_values=-1)


def summarize(scores: Scores, domains: tuple[str, ...]) -> dict:
    """The contract's numbers of one evaluation (host side). NaN-free: what is absent is left out.

    accuracy: over the clients' own test rows. global: the model an average client gets, on the
    global test set. id: validation rows. ood: each client's model on the unseen domain. domains: by
    the clients' own test rows, or by the global test set where there are none. id and ood are means
    over clients; id_per_client and ood_per_client hold theirs, None for one without such rows.
    """
    out = {}
    if scores.test is not None:
        out["accuracy"] = _clients(scores.test)
    split = scores.test if scores.test is not None else scores.global_test
    if split is not None and len(domains) > 1:
        out["domains"] = _by_domain(split, domains)
    if scores.global_test is not None:
        out["global"] = _pooled(scores.global_test)
    if scores.validation is not None:
        out |= _mean_and_each("id", scores.validation)
    if scores.unseen is not None:
        out |= _mean_and_each("ood", scores.unseen)
    return out


def _mean_and_each(name, counts):
    clients = _clients(counts)
    return {name: clients["mean"], f"{name}_per_client": clients["per_client"]}


def _clients(counts):
    correct, total = (np.asarray(a, float).sum(-1) for a in counts)
    tested = total > 0
    each = 100 * correct[tested] / total[tested]
    scored = iter(each.tolist())
    worst = np.sort(each)[: max(1, len(each) // 10)]
    return {
        "mean": float(each.mean()),
        "weighted": float(100 * correct.sum() / total.sum()),
        "worst10": float(worst.mean()),
        "min": float(each.min()),
        "max": float(each.max()),
        "per_client": [next(scored) if t else None for t in tested],
    }


def _by_domain(counts, domains):
    correct, total = (np.asarray(a, float).sum(0) for a in counts)
    rows = zip(domains, correct, total, strict=True)
    return {name: float(100 * c / n) for name, c, n in rows if n}


def _pooled(counts):
    correct, total = (np.asarray(a, float).sum() for a in counts)
    return float(100 * correct / total)
