"""The evaluation contract: every method is scored alike, on all the rows that a federation has.

A client's model is what it has after aggregation and broadcast, before any further training, except
where a method's `tune` says otherwise. All accuracies are percent, 0..100.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import simulate
from fedjax_lab.local import fetch, make_work, num_batches
from fedjax_lab.parallel import Strategy, in_groups
from fedjax_lab.types import Array, Client, Federation, Method, Plan, State

WORLD_CLIENTS = 100  # where no newcomer is defined, `global` is the mean over at most so many


class Hits(NamedTuple):
    """Right answers and rows asked, by domain [..., D]."""

    right: Array
    asked: Array


class Scores(NamedTuple):
    """None for rows that the federation does not have."""

    validation: Hits | None  # [C, D]
    test: Hits | None  # [C, D]
    world: Hits | None  # [blocks or clients, D]
    unseen: Hits | None  # [C, D]


def score(
    method: Method,
    plan: Plan,
    strategy: Strategy,
    federation: Federation,
    everyone: Client,
    keys: simulate.Keys,
    state: State,
    t: Array,
) -> Scores:
    """Scores after t rounds, as one pure function. `federation.train` is the clients' own."""
    num_clients = everyone.id.shape[0]
    each = in_groups(strategy, min(plan.cohort, num_clients))
    clients = everyone._replace(private=state.private)
    send = method.scored or method.round[-1].send
    k_score = jax.random.fold_in(keys.score, t)
    k_clients = jax.vmap(jax.random.fold_in, (None, 0))(k_score, clients.id)

    def own(rows_of, count=num_clients):
        """Hits of the clients' own models; rows_of: their own rows [C, T], or one list [T]."""
        shared_rows = rows_of.ndim == 1

        def one(shared, mine):
            server, federation, same = shared
            client, train, key, rows = mine
            message = send(server, client.id)
            if method.tune is not None:
                work, _ = make_work(federation, train, plan._replace(equal_steps=False), key)
                message, private = method.tune(message, client, work)
                client = client._replace(private=private)
            return count_hits(
                method, plan, federation, message, client, same if shared_rows else rows
            )

        stacked = clients, federation.train, k_clients, () if shared_rows else rows_of
        if count < num_clients:
            which = np.linspace(0, num_clients - 1, count).round().astype(int)
            stacked = jax.tree.map(lambda a: a[which], stacked)
        same = rows_of if shared_rows else ()
        return each(one)((state.server, federation, same), stacked)

    def world():
        if method.newcomer is None:
            return own(federation.world, min(num_clients, WORLD_CLIENTS))
        message, private = method.newcomer(state)
        nobody = jax.tree.map(lambda a: jnp.zeros_like(a[0]), everyone)
        client = nobody._replace(id=jnp.int32(-1), private=private)

        def block(shared, rows):
            message, client, federation = shared
            return count_hits(method, plan, federation, message, client, rows)

        size = plan.eval_batch
        rows = federation.world
        rows = jnp.pad(rows, (0, -rows.shape[0] % size), constant_values=-1).reshape(-1, size)
        return each(block)((message, client, federation), rows)

    has = federation
    return Scores(
        None if has.validation is None else own(has.validation),
        None if has.test is None else own(has.test),
        None if has.world is None else world(),
        None if has.unseen is None else own(has.unseen),
    )


def count_hits(method, plan, federation, message, client, rows) -> Hits:
    """One client's model on rows [T], -1 padded at the end."""
    size = min(plan.eval_batch, rows.shape[0])
    padded = jnp.pad(rows, (0, -rows.shape[0] % size), constant_values=-1)

    def step(s, hits):
        now = jax.lax.dynamic_slice(padded, (s * size,), (size,))
        batch = fetch(federation, now, plan)
        right = jnp.argmax(method.predict(message, client, batch.x), -1) == batch.y
        domain = jax.nn.one_hot(federation.domain[now], plan.num_domains) * batch.mask[:, None]
        return Hits(hits.right + right @ domain, hits.asked + jnp.sum(domain, 0))

    zero = jnp.zeros(plan.num_domains)
    batches = num_batches(jnp.sum(rows >= 0), size)
    return jax.lax.fori_loop(0, batches, step, Hits(zero, zero))


def summarise(scores: Scores, domains: tuple[str, ...]) -> dict:
    """The contract's numbers of one evaluation (host side). NaN-free: what is absent is left out.

    accuracy: over the clients' own test rows. global: the model an average client gets, on the
    global test set. id: validation rows. ood: each client's model on the unseen domain. domains: by
    the clients' own test rows, or by the global test set where there are none. id and ood are means
    over clients; id_per_client and ood_per_client hold theirs, None for one without such rows.
    """
    out = {}
    if scores.test is not None:
        out["accuracy"] = _clients(scores.test)
    split = scores.test if scores.test is not None else scores.world
    if split is not None and len(domains) > 1:
        out["domains"] = _by_domain(split, domains)
    if scores.world is not None:
        out["global"] = _pooled(scores.world)
    if scores.validation is not None:
        out |= _mean_and_each("id", scores.validation)
    if scores.unseen is not None:
        out |= _mean_and_each("ood", scores.unseen)
    return out


def _mean_and_each(name, hits):
    clients = _clients(hits)
    return {name: clients["mean"], f"{name}_per_client": clients["per_client"]}


def _clients(hits):
    right, asked = (np.asarray(a, float).sum(-1) for a in hits)
    tested = asked > 0
    each = 100 * right[tested] / asked[tested]
    scored = iter(each.tolist())
    worst = np.sort(each)[: max(1, len(each) // 10)]
    return {
        "mean": float(each.mean()),
        "weighted": float(100 * right.sum() / asked.sum()),
        "worst10": float(worst.mean()),
        "min": float(each.min()),
        "max": float(each.max()),
        "per_client": [next(scored) if t else None for t in tested],
    }


def _by_domain(hits, domains):
    right, asked = (np.asarray(a, float).sum(0) for a in hits)
    rows = zip(domains, right, asked, strict=True)
    return {name: float(100 * r / a) for name, r, a in rows if a}


def _pooled(hits):
    right, asked = (np.asarray(a, float).sum() for a in hits)
    return float(100 * right / asked)
