"""What one client does with its own rows: train on them, average over them, draw from them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import optim, tree
from fedjax_lab.types import Array, Batch, Federation, Plan, Weights, Work

DRAW = 1 << 31  # beyond the numbers of a training's epochs: the streams of `draw` and later calls
AUGMENT = 1 << 30  # beyond the numbers that losses fold into a step's stream


def everything(name: str) -> bool:
    """The default of `only`: every leaf is trained."""
    return True


def fetch(federation: Federation, rows: Array, plan: Plan, key: Array | None = None) -> Batch:
    """The examples of rows [B]; a row of -1 is padding. The only reader of `federation.x`.

    With a key, those of a training step: augmented where the plan says so.
    """
    x = federation.x[rows].astype(jnp.float32)
    if key is not None and plan.augment is not None:
        x = plan.augment(jax.random.fold_in(key, AUGMENT), x)
    x = (x - federation.center) * federation.scale
    if plan.view is not None:
        x = plan.view(federation.frozen, x)
    return Batch(x, federation.y[rows], (rows >= 0).astype(jnp.float32))


def num_batches(n: Array, batch_size: int) -> Array:
    """Batches in a pass over n examples, the last short one included."""
    return (jnp.asarray(n, jnp.int32) + batch_size - 1) // batch_size


class Training(NamedTuple):
    """What one call of `Work.train` did."""

    loss: Array  # sum over steps
    steps: Array
    examples: Array


def make_work(
    federation: Federation, rows: Array, plan: Plan, key: Array
) -> tuple[Work, list[Training]]:
    """The work of one client on its rows [N], padding last; and a list of its trainings.

    The list grows by one entry while `train` is traced, so `Exchange.local` calls `train` at its
    top level, never inside a jax transformation of its own.
    """
    size = plan.batch_size
    longest = -(-rows.shape[0] // size)
    batches = longest if plan.equal_steps else num_batches(jnp.sum(rows >= 0), size)
    padded = _pad(rows, longest * size).reshape(longest, size)
    positions = jnp.where(rows < 0, -1, jnp.arange(rows.shape[0], dtype=rows.dtype))
    trainings = []

    def in_order(s):
        """Batch s of the rows as they stand."""
        return fetch(federation, padded[s], plan)

    def train(
        weights,
        loss,
        *,
        only=everything,
        epochs=plan.epochs,
        steps=None,
        optimizer=plan.optimizer,
        references=None,
    ):
        """`epochs` passes in fresh order, each cut after `steps` batches; fresh optimiser state.

        references: Batch -> arrays [B, ...], a function of each example alone that the training
        does not change; the loss finds them as `batch.references`. Computed once in a call; where
        training images are augmented, in every step instead.
        """
        call = len(trainings)
        k_call = jax.random.fold_in(key, DRAW + call) if call else key
        free, fixed = (part.params for part in tree.split(only, weights))
        count = batches if steps is None else jnp.minimum(batches, steps)
        if plan.equal_steps and steps is not None:
            count = min(batches, steps)
        table = None
        if references is not None and plan.augment is None:
            table = _each(references, in_order, batches, longest)

        def epoch(e, carry):
            k_order, k_steps = (jax.random.fold_in(k_call, 2 * e + i) for i in range(2))
            order = _pad(shuffle(k_order, positions), longest * size)

            def step(s, carry):
                free, stats, opt, total = carry
                k_step = jax.random.fold_in(k_steps, s)
                at = jax.lax.dynamic_slice(order, (s * size,), (size,))
                batch = fetch(federation, jnp.where(at < 0, -1, rows[at]), plan, k_step)
                if references is not None:
                    found = references(batch) if table is None else tree.take(table, at)
                    batch = batch._replace(references=found)

                def objective(free):
                    return loss(Weights(tree.join(free, fixed), stats), batch, k_step)

                (value, out), grads = jax.value_and_grad(objective, has_aux=True)(free)
                stats = tree.typed_like(out.stats, stats)
                updates, opt = optimizer.update(optim.clip(grads, plan.clip), opt, free)
                return optax.apply_updates(free, updates), stats, opt, total + jnp.float32(value)

            return jax.lax.fori_loop(0, count, step, carry)

        start = free, weights.stats, optimizer.init(free), jnp.float32(0)
        free, stats, _, total = jax.lax.fori_loop(0, epochs, epoch, start)
        n = jnp.minimum(jnp.sum(rows >= 0), count * size)
        done = (total, epochs * count, epochs * n)
        trainings.append(Training(*(jnp.asarray(a, jnp.float32) for a in done)))
        return Weights(tree.join(free, fixed), stats)

    def mean(fn, when=True):
        """fn gives a batch's mean over its real examples; each batch counts by their number.

        when: a flag []; where it does not hold nothing is computed and the mean is 0. A `cond`
        would not do under `vmap`, where it computes both of its branches.
        """

        def step(s, total):
            batch = in_order(s)
            return tree.add(total, fn(batch), jnp.sum(batch.mask))

        nothing = tree.zeros(jax.eval_shape(lambda s: fn(in_order(s)), 0))
        count = batches if when is True else jnp.where(when, batches, 0)
        total = jax.lax.fori_loop(0, count, step, nothing)
        return tree.scale(1 / jnp.maximum(jnp.sum(rows >= 0), 1), total)

    def draw(size):
        """The same batch at every call in an exchange."""
        k_draw = jax.random.fold_in(key, DRAW)
        return fetch(federation, _pad(shuffle(k_draw, rows), size)[:size], plan)

    own_steps = jnp.asarray(plan.epochs * batches, jnp.int32)
    return Work(train, mean, draw, own_steps, plan.optimizer, federation.frozen), trainings


def _each(fn, batch, count, longest):
    """fn of every example in the first `count` batches of `longest`: [longest * B, ...]."""
    shape = jax.eval_shape(lambda s: fn(batch(s)), 0)
    empty = jax.tree.map(lambda a: jnp.zeros((longest, *a.shape), a.dtype), shape)
    table = jax.lax.fori_loop(0, count, lambda s, t: tree.put(t, s, fn(batch(s))), empty)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), table)


def shuffle(key: Array, rows: Array) -> Array:
    """Rows [N] in random order, padding (-1) last."""
    noise = jax.random.bits(key, rows.shape, jnp.uint32) >> 1
    return jax.lax.sort((jnp.where(rows < 0, jnp.uint32(1 << 31), noise), rows), num_keys=1)[1]


def _pad(rows, length):
    return jnp.pad(rows, (0, max(0, length - rows.shape[0])), constant_values=-1)
