"""One round, and many. Knows no method by name and no device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import tree
from fedjax_lab.local import fetch, make_work, num_batches
from fedjax_lab.parallel import Strategy, in_groups
from fedjax_lab.types import Array, Client, Federation, Method, Plan, State

EXCHANGE = 3 << 30  # beyond the numbers of a training's streams: those of earlier exchanges


class Keys(NamedTuple):
    """One stream of random numbers per purpose, all from the run's seed alone.

    First weights, cohorts and shuffles are thus the same for every method (common random numbers).
    """

    init: Array
    cohort: Array
    local: Array
    score: Array


class Progress(NamedTuple):
    """What the rounds since an evaluation measured: sums over them."""

    train_loss: Array
    examples: Array  # trained on
    steps: Array  # that the clients' own data ask for
    lane_steps: Array  # that were executed
    diverged: Array  # the first round with a number that is not finite, or -1


def make_keys(seed: Array) -> Keys:
    """The streams of a run with this key."""
    return Keys(*jax.random.split(seed, len(Keys._fields)))


def population(federation: Federation, num_classes: int) -> Client:
    """All clients [C], without private state."""
    rows = federation.train
    n = jnp.sum(rows >= 0, axis=1).astype(jnp.float32)
    labels = jnp.where(rows >= 0, federation.y[rows], num_classes)
    count = jax.vmap(lambda y: jnp.bincount(y, length=num_classes + 1)[:-1])(labels)
    ids = jnp.arange(n.shape[0], dtype=jnp.int32)
    num_clients = jnp.full_like(n, n.shape[0])
    mean_n = jnp.full_like(n, jnp.mean(n))
    share = n / jnp.sum(n)
    return Client(ids, n, share, count.astype(jnp.float32), (), num_clients, mean_n)


def no_progress() -> Progress:
    """The sums before the first round after an evaluation."""
    return Progress(*jnp.zeros(4), jnp.int32(-1))


def init(method: Method, keys: Keys, num_clients: int) -> State:
    """The state before round 1; first weights depend on the seed alone."""
    return method.init(keys.init, num_clients)


def play(
    method: Method,
    plan: Plan,
    strategy: Strategy,
    federation: Federation,
    everyone: Client,
    keys: Keys,
    state: State,
    sums: Progress,
    start: Array,
    count: Array,
) -> tuple[State, Progress]:
    """Rounds start .. start + count - 1 (the first round is 0) as one pure function.

    The sums go in and out, so that the numbers do not depend on how rounds are cut into blocks.
    """

    def one(t, carry):
        state, sums = carry
        after, now = play_round(method, plan, strategy, federation, everyone, keys, state, t)
        diverged = jnp.where((sums.diverged < 0) & ~now.finite, t, sums.diverged)
        return tree.typed_like(after, state), Progress(
            sums.train_loss + now.train_loss,
            sums.examples + now.examples,
            sums.steps + now.steps,
            sums.lane_steps + now.lane_steps,
            diverged,
        )

    return jax.lax.fori_loop(start, start + count, one, (state, sums))


class Round(NamedTuple):
    """What one round measured."""

    train_loss: Array  # mean over the cohort by share, of the mean over local steps
    examples: Array
    steps: Array
    lane_steps: Array
    finite: Array


def play_round(
    method: Method,
    plan: Plan,
    strategy: Strategy,
    federation: Federation,
    everyone: Client,
    keys: Keys,
    state: State,
    t: Array,
) -> tuple[State, Round]:
    """Round t: sample a cohort, then every exchange of the method."""
    server = state.server
    k_cohort, k_local = (jax.random.fold_in(key, t) for key in (keys.cohort, keys.local))
    ids, share = method.sample(k_cohort, server, everyone, plan.cohort)
    in_order = any(exchange.one_by_one for exchange in method.round)
    if not plan.equal_steps and not in_order:
        order = strategy.deal(num_batches(everyone.n[ids], plan.batch_size))
        ids, share = ids[order], share[order]
    cohort = tree.take(everyone, ids)._replace(weight=share, private=tree.take(state.private, ids))
    rows = federation.train[ids]
    k_clients = jax.vmap(jax.random.fold_in, (None, 0))(k_local, ids)
    done, lane_steps = [], 0

    for left, exchange in zip(reversed(range(len(method.round))), method.round, strict=True):
        # The last exchange of a round shuffles as the only one of another method does.
        fold = jax.vmap(jax.random.fold_in, (0, None))
        now = fold(k_clients, EXCHANGE + left) if left else k_clients
        one, mine = _one_client(exchange, plan), (cohort, rows, now)
        if exchange.one_by_one:
            server, private, trainings = _in_turn(exchange, one, server, federation, mine)
            executed = jnp.sum
        else:
            uploads, private, trainings = strategy.each(one)((server, federation), mine)
            server = exchange.aggregate(server, uploads, cohort)
            executed = strategy.lane_steps
        if exchange.alone is not None:
            server = exchange.alone(server, strategy.split)
        cohort = cohort._replace(private=private)
        done += trainings
        lane_steps += sum(executed(training.steps) for training in trainings)

    loss, steps, examples = (sum(a) for a in zip(*done, strict=True)) if done else jnp.zeros((3, 1))
    train_loss = jnp.sum(share * loss / jnp.maximum(steps, 1))
    finite = jnp.isfinite(train_loss) & tree.finite((server, cohort.private))
    measured = Round(train_loss, jnp.sum(examples), jnp.sum(steps), lane_steps, finite)
    return State(server, tree.put(state.private, ids, cohort.private)), measured


def _one_client(exchange, plan):
    def run(shared, mine):
        (server, federation), (client, rows, key) = shared, mine
        message = exchange.send(server, client.id)
        work, trainings = make_work(federation, rows, plan, key)
        upload, private = exchange.local(message, client, work)
        return upload, private, trainings

    return run


def view_pool(plan: Plan, strategy: Strategy, federation: Federation) -> Array:
    """All examples of the pool through the plan's view, [R, ...]."""
    count, size = federation.x.shape[0], plan.eval_batch
    rows = jnp.arange(-(-count // size) * size) % count

    def block(federation, rows):
        return fetch(federation, rows, plan).x

    each = in_groups(strategy, plan.cohort)
    seen = each(block)(federation, rows.reshape(-1, size))
    return seen.reshape(-1, *seen.shape[2:])[:count]


def _in_turn(exchange, one, server, federation, stacked):
    """One client after another, each sent what the server has learnt from the last."""

    def step(server, mine):
        upload, private, trainings = one((server, federation), mine)
        uploads, cohort = jax.tree.map(lambda a: a[None], (upload, mine[0]))
        after = exchange.aggregate(server, uploads, cohort._replace(weight=jnp.ones(1)))
        return tree.typed_like(after, server), (private, trainings)

    server, (private, trainings) = jax.lax.scan(step, server, stacked)
    return server, private, trainings


def cohort_size(method: Method, plan: Plan, everyone: Client, state: State) -> int:
    """How many clients take part in a round; a method may ask for more than the plan."""

    def ids(key, server, everyone):
        return method.sample(key, server, everyone, plan.cohort)[0]

    return jax.eval_shape(ids, jax.random.key(0), state.server, everyone).shape[0]


def message_bytes(
    method: Method, plan: Plan, federation: Federation, everyone: Client, state: State
) -> tuple[int, int]:
    """Bytes (up, down) of one client in one round, from the types of what is sent.

    Nothing is computed. A pooled method has no wire: (0, 0).
    """
    if method.pooled:
        return 0, 0

    def first(a):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), a)

    client = first(everyone)._replace(private=first(state.private))
    up = down = 0
    server = state.server
    for exchange in method.round:
        run = _one_client(exchange, plan)
        rows = jax.ShapeDtypeStruct(federation.train.shape[1:], federation.train.dtype)
        key = jax.eval_shape(lambda: jax.random.key(0))
        upload, _, _ = jax.eval_shape(run, (server, federation), (client, rows, key))
        up += tree.num_bytes(upload)
        down += tree.num_bytes(jax.eval_shape(exchange.send, server, client.id))
    return up, down
