"""The work of one client on its own rows: training, means over examples, and random batches."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import get_opaque_trace_state

from fedjax_lab import optim, streams, tree
from fedjax_lab.errors import BadInput, quoted
from fedjax_lab.simulation import contract
from fedjax_lab.types import (
    Array,
    Batch,
    Client,
    Federation,
    LocalSettings,
    Method,
    Plan,
    PyTree,
    Stepping,
    Turn,
    Weights,
    Work,
)


def everything(name: str) -> bool:
    """The default of `only`, which selects every leaf for training."""
    return True


def fetch(federation: Federation, rows: Array, plan: Plan, key: Array | None = None) -> Batch:
    """The examples of rows [B], where -1 is padding. The only function that reads `federation.x`.

    The examples are converted to float32 and to the shape `plan.example_shape`. In a federation of
    one client (`client_federation`) its feature skew is applied. With a key, the examples are those
    of a training step and are augmented by `plan.augment`.
    """
    raw = federation.x[rows]
    x = raw.astype(jnp.float32)
    if plan.example_shape:
        x = x.reshape(*rows.shape, *plan.example_shape)
    skew = federation.traits.get("skew")
    if skew is not None and plan.feature_skew is not None:
        keys = streams.examples(skew.seed, raw)
        x = jax.vmap(plan.feature_skew, (0, 0, None))(keys, x, skew.client)
    if key is not None and plan.augment is not None:
        x = contract.check_augmented(plan.augment(streams.augmentation(key), x), x)
    x = (x - federation.center) * federation.scale
    if plan.view is not None:
        x = plan.view(federation.frozen, x)
    return Batch(x, federation.y[rows], (rows >= 0).astype(jnp.float32))


def client_federation(federation: Federation, client: Client) -> Federation:
    """The federation from which `fetch` returns examples with the feature skew of this client."""
    return federation._replace(traits=client.traits)


def num_batches(n: Array, batch_size: Array | int) -> Array:
    """The number of batches in a pass over n examples, including a short last batch."""
    return (jnp.asarray(n, jnp.int32) + batch_size - 1) // batch_size


def planned_batches(plan: Plan, turn: Turn) -> Array:
    """The batches that each client of a round trains on, [M], by which a strategy deals them."""
    clients = turn.clients
    batches = num_batches(clients.n, batch_size(plan, clients.traits.get("settings")))
    batches = jnp.ones_like(batches) if plan.steps else batches
    return batches if turn.work is None else batches * turn.work


@jax.tree_util.register_static
class Public:
    """The public examples 0 .. P - 1 of a run, for clients and the server: `Work.public`.

    They are inputs of the model like other examples, without augmentation and feature skew. Their
    labels are in the batches; a method that takes them for unlabeled leaves them alone. Without
    public examples, any use raises BadInput.
    """

    def __init__(self, federation: Federation, plan: Plan):
        self._federation, self._plan = federation, plan._replace(equal_steps=False)

    @property
    def size(self) -> int:
        """P."""
        return self._examples()[1].shape[0]

    def batch(self, places: Array) -> Batch:
        """The examples at these places [B]."""
        return fetch(self._pool(), places, self._plan)

    def outputs(self, fn: Callable[[Batch], PyTree], places: Array | None = None) -> PyTree:
        """The outputs of fn for the examples at these places, [A, ...]; None: for all, [P, ...].

        fn: Batch -> arrays [B, ...].
        """
        return outputs(self.at(jnp.arange(self.size) if places is None else places), fn)[0]

    def at(self, places: Array) -> "Examples":
        """The examples at these places [A], divided into batches."""
        return make_examples(self._pool(), places, self._plan)

    def _examples(self):
        if self._federation.public is None:
            raise BadInput(
                "the method uses examples that the server and all clients have, and there are none;"
                " take some of the training examples with --config.partition.public=0.1"
            )
        return self._federation.public

    def _pool(self):
        x, y = self._examples()
        return self._federation._replace(x=x, y=y, traits={})


class WorkRows(NamedTuple):
    """The rows that a client's `Work` uses, of one client [N] or of many (`Rows`)."""

    train: Any
    validation: Any = None  # None: `Method.validation` is false


def work_sets(method: Method) -> tuple[str, ...]:
    """The fields of a federation that hold the rows of `Work`, in the order of `WorkRows`."""
    return WorkRows._fields if method.validation else ("train",)


def work_rows(method: Method, federation: Federation) -> WorkRows:
    """The rows of every client's `Work` with this method."""
    return WorkRows(*(getattr(federation, name) for name in work_sets(method)))


class Training(NamedTuple):
    """Totals of one call of `Work.train`."""

    loss: Array  # sum over the steps on the client's own examples
    steps: Array
    examples: Array
    own_steps: Array  # those on its own examples


class Examples(NamedTuple):
    """The examples of one client: rows [N] of a federation, padding last, divided into batches."""

    federation: Federation
    rows: Array
    plan: Plan
    padded: Array  # [longest, B] the rows in their original order
    batches: Array | int  # batches of a pass without padding; an int if no steps are masked
    of_step: Array | int  # examples of a training step, B or fewer
    steps: Array | int  # training steps of a pass

    @property
    def longest(self) -> int:
        """The number of batches in a pass over all rows, including padding."""
        return self.padded.shape[0]

    @property
    def size(self) -> Array:
        """The number of rows that are not padding."""
        return jnp.sum(self.rows >= 0)

    def batch(self, s: Array) -> Batch:
        """Batch s of the rows in their original order."""
        return fetch(self.federation, self.padded[s], self.plan)


def batch_size(plan: Plan, settings: LocalSettings | None) -> Array | int:
    """The number of examples of a client's training step. settings: its own."""
    if settings is None or settings.batch_size is None:
        return plan.batch_size
    return jnp.minimum(settings.batch_size, plan.batch_size)


def work_of(settings: LocalSettings | None) -> Array | None:
    """The work of a client, as `Plan.work`; None: that of the plan. settings: its own."""
    return None if settings is None else settings.work


def make_examples(
    federation: Federation, rows: Array, plan: Plan, settings: LocalSettings | None = None
) -> Examples:
    """The examples of rows [N], divided into batches of `batch_size(plan, settings)`."""
    size, of_step = plan.batch_size, batch_size(plan, settings)
    longest = -(-rows.shape[0] // size)
    padded = _pad(rows, longest * size).reshape(longest, size)
    batches = longest if plan.equal_steps else num_batches(jnp.sum(rows >= 0), size)
    steps = batches if isinstance(of_step, int) else num_batches(jnp.sum(rows >= 0), of_step)
    return Examples(federation, rows, plan, padded, batches, of_step, steps)


def make_work(
    federation: Federation,
    rows: Array,
    plan: Plan,
    key: Array,
    passes: Array | None = None,
    validation: Array | None = None,
    settings: LocalSettings | None = None,
) -> tuple[Work, list[Training]]:
    """The `Work` of one client, and a list to which each of its trainings is added.

    Args:
      federation: holds the examples.
      rows: the client's training rows [N], padding last.
      plan: the sizes of the run.
      key: the client's stream of random numbers in this exchange.
      passes: the work of the client, as `plan.work`; None: its own, or the plan's. If a method
        requests another number of passes, the client makes the same share of it, rounded up.
      validation: the client's validation rows [V], padding last; None: `Work` does not have them.
      settings: the client's own numbers; None: those of the plan.

    The list gets an entry when `train` is traced. `Exchange.local` must therefore call `train` at
    its top level or in `Work.switch`, not inside a jax transformation of its own; else BadInput is
    raised.
    """
    if settings is not None and settings.rate is not None:
        assert plan.optimizer_of is not None  # the plan of a config has it
        plan = plan._replace(optimizer=plan.optimizer_of(settings.rate))
    passes = work_of(settings) if passes is None else passes
    examples = make_examples(federation, rows, plan, settings)
    sets = {"train": examples}
    if validation is not None:
        sets["validation"] = make_examples(federation, validation, plan._replace(equal_steps=False))
    trainings: list[Training] = []
    records: Records = [(get_opaque_trace_state(), trainings)]
    done = partial(_done, plan, passes)
    steps = done(plan.steps) if plan.steps else done(plan.epochs) * examples.steps
    public = Public(federation, plan)
    work = Work(
        train=_recorded(examples, public, key, done, records),
        mean=_on_sets(mean, sets),
        draw=partial(draw, examples, key),
        steps=jnp.asarray(steps, jnp.int32),
        optimizer=plan.optimizer,
        frozen=federation.frozen,
        upload_key=partial(streams.upload, key),
        outputs=_on_sets(outputs, sets),
        public=public,
        switch=partial(_switch, records),
    )
    return work, trainings


def _done(plan, passes, amount):
    """The part of an amount of work that makes `passes` of `Plan.work`; None: all of it."""
    return amount if passes is None else -(-amount * passes // plan.work)


# The place of a trace, and the trainings in it: at the top level, and in the branch of a `switch`.
Records = list[tuple[Any, list[Training]]]


def _recorded(examples, shared, key, done, records: Records):
    """`Work.train`, which adds an entry to the last of the records in each call. done: see `_done`.

    examples: the client's. shared: `Work.public`; the option `public` has places among them, on
    whose examples the client then trains instead of its own.
    """
    plan = examples.plan

    def train_once(weights, loss, *, epochs=None, steps=None, public=None, **options):
        chosen = examples if public is None else shared.at(public)
        level, trainings = records[-1]
        if get_opaque_trace_state() != level:
            raise BadInput(INSIDE)
        calls = sum(len(earlier) for _, earlier in records)
        options |= {"key": streams.training(key, calls), "steps": steps}
        if plan.steps and epochs is None and steps is None:
            options["total"] = done(plan.steps)
        else:
            options["epochs"] = done(plan.epochs if epochs is None else epochs)
        weights, training = train(chosen, weights=weights, loss=loss, **options)
        if public is not None:
            training = training._replace(loss=0 * training.loss, own_steps=0 * training.steps)
        trainings.append(training)
        return weights

    return train_once


def _switch(records: Records, index: Array, branches: Sequence[Callable[[], PyTree]]) -> PyTree:
    """`Work.switch`. All branches must have the same number of trainings."""

    def recorded(branch):
        records.append((get_opaque_trace_state(), []))
        try:
            return branch(), records[-1][1]
        finally:
            records.pop()

    made, trainings = jax.lax.switch(index, [partial(recorded, branch) for branch in branches])
    records[-1][1].extend(trainings)
    return made


INSIDE = (
    "work.train is called inside a jax transformation (such as vmap, scan, fori_loop, cond, grad or"
    " jit), which hides its steps from the simulator; call it at the top level of a method's"
    " local, for several trainings in a Python loop"
)


def _on_sets(function, sets):
    """The function with an option `rows`, which selects the set of examples, by default "train"."""

    def run(*args, rows="train", **options):
        if rows not in sets:
            raise BadInput(
                f"`Work` has no rows {quoted(rows)}, but {' and '.join(sets)}; a method that needs"
                " validation rows must set Method(validation=True)"
            )
        return function(sets[rows], *args, **options)

    return run


def train(
    examples: Examples,
    key: Array,
    weights: Weights,
    loss: Callable,
    *,
    only: Callable[[str], bool] = everything,
    epochs: int | Array | None = None,
    steps: int | Array | None = None,
    total: int | Array | None = None,
    optimizer: optax.GradientTransformation | None = None,
    references: Callable[[Batch], PyTree] | PyTree | None = None,
    stepping: Callable[[Examples], Stepping] | None = None,
) -> tuple[Weights, Training]:
    """Trains weights for several passes, each in a new random order of the examples.

    The state of the optimizer is initialized in each call.

    Args:
      examples: the training examples.
      key: the stream of random numbers of this training.
      weights: the initial weights.
      loss: (weights, batch, key) -> (mean over the batch, `Output` of the pass): `losses.Loss`.
      only: selects the leaves to train by their names; other leaves do not change.
      epochs: the number of passes; None: `plan.epochs`.
      steps: the largest number of batches of a pass; None: no limit.
      total: the number of steps, over as many passes as they take; None: `epochs` decides.
      optimizer: an optax.GradientTransformation; None: `plan.optimizer`.
      references: Batch -> arrays [B, ...]: values of each example that do not depend on the trained
        weights; the loss gets them as `batch.references`. They are computed once per call, or in
        every step if training images are augmented. Or these values themselves, [N, ...] in the
        order of the examples.
      stepping: examples -> `Stepping`: how each step draws its examples and computes their
        gradient. The number of steps does not change. None: each pass uses every example once, in a
        new random order, with the gradient of the loss.

    Returns:
      The trained weights, and the totals of the training.
    """
    plan = examples.plan
    epochs = plan.epochs if epochs is None else epochs
    optimizer = plan.optimizer if optimizer is None else optimizer
    count = _batches_of_a_pass(examples, steps)
    batch_at = _batches_with(references, examples)
    by = _in_fresh_order(examples) if stepping is None else stepping(examples)

    free, fixed = (part.params for part in tree.split(only, weights))
    update = _make_update(loss, fixed, optimizer, plan, by.gradient)

    def step(draw, k_steps, s, carry):
        k_step = jax.random.fold_in(k_steps, s)
        return update(carry, batch_at(draw(s), k_step), k_step)

    start = free, weights.stats, optimizer.init(free), jnp.float32(0)
    free, stats, _, value = _all_steps(by.draw, key, step, count, epochs, total, start)
    n = jnp.minimum(examples.size, count * examples.of_step)
    if total is None:
        done = value, epochs * count, epochs * n
    else:
        passes, rest = total // jnp.maximum(count, 1), total % jnp.maximum(count, 1)
        done = value, total, passes * n + jnp.minimum(n, rest * examples.of_step)
    value, steps, n = (jnp.asarray(a, jnp.float32) for a in done)
    trained = Weights(tree.join(free, fixed), stats)
    return trained, Training(value, steps, n, own_steps=steps)


def _all_steps(draw, key, step, count, epochs, total, start):
    """The carry after all steps: of `epochs` passes of `count` steps, or else `total` steps.

    draw: as in `Stepping`. step: (draw of a pass, its key, number of the step, carry) -> carry.
    """

    def one_pass(e, carry, length=count):
        k_order, k_steps = streams.epoch(key, e)
        return jax.lax.fori_loop(0, length, partial(step, draw(k_order), k_steps), carry)

    if total is None:
        return jax.lax.fori_loop(0, epochs, one_pass, start)
    if isinstance(total, int) and isinstance(count, int):  # all clients have the same passes
        passes, rest = divmod(total, count)
        return one_pass(jnp.int32(passes), jax.lax.fori_loop(0, passes, one_pass, start), rest)

    def flat_step(s, carry):  # no client waits for another one's longer passes
        e, place = s // jnp.maximum(count, 1), s % jnp.maximum(count, 1)
        k_order, k_steps = streams.epoch(key, e)
        return step(draw(k_order), k_steps, place, carry)

    return jax.lax.fori_loop(0, total, flat_step, start)


def _in_fresh_order(examples):
    """The default `Stepping`: each pass uses every example once, in a new random order."""
    rows, size, of_step = examples.rows, examples.plan.batch_size, examples.of_step
    positions = jnp.where(rows < 0, -1, jnp.arange(rows.shape[0], dtype=rows.dtype))

    def draw(key):
        order = _pad(shuffle(key, positions), examples.padded.size)
        if isinstance(of_step, int):
            return lambda s: jax.lax.dynamic_slice(order, (s * size,), (size,))
        order, place = _pad(order, len(order) + size), jnp.arange(size)
        return lambda s: jnp.where(place < of_step, order[s * of_step + place], -1)

    def gradient(objective, free, batch, key):
        return jax.value_and_grad(objective, has_aux=True)(free, batch, key)

    return Stepping(draw, gradient)


def _batches_of_a_pass(examples, steps):
    """The number of batches of a pass; a Python int if the plan has equal steps (no masking)."""
    if steps is None:
        return examples.steps
    equal = examples.plan.equal_steps and isinstance(examples.steps, int)
    return (min if equal else jnp.minimum)(examples.steps, steps)


def _batches_with(references, examples):
    """A function (positions [B] among the rows, -1: padding; key of the step) -> batch."""
    federation, rows, plan = examples.federation, examples.rows, examples.plan
    table = None if callable(references) else references
    if callable(references) and plan.augment is None:
        table = _map_examples(references, examples)

    def batch_at(positions, key):
        batch = fetch(federation, jnp.where(positions < 0, -1, rows[positions]), plan, key)
        if references is None:
            return batch
        beside = references(batch) if table is None else tree.take(table, positions)
        return batch._replace(references=beside)

    return batch_at


def _map_examples(fn, examples):
    """The outputs of fn for each example, in batches of the original order: [longest * B, ...]."""
    shape = jax.eval_shape(lambda s: fn(examples.batch(s)), 0)
    empty = jax.tree.map(lambda a: jnp.zeros((examples.longest, *a.shape), a.dtype), shape)
    table = jax.lax.fori_loop(
        0, examples.batches, lambda s, t: tree.put(t, s, fn(examples.batch(s))), empty
    )
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), table)


def _make_update(loss, fixed, optimizer, plan, gradient):
    """A function (carry, batch, key) -> carry that makes one step.

    carry: the trained leaves, the statistics, the optimizer's state and the sum of losses.
    """

    of_batch = gradient if plan.accumulate == 1 else partial(_accumulated, plan, gradient)

    def update(carry, batch, key):
        free, stats, moments, total = carry

        def objective(free, batch, key):
            return loss(Weights(tree.join(free, fixed), stats), batch, key)

        (value, out), grads = of_batch(objective, free, batch, key)
        stats = tree.typed_like(out.stats, stats)
        updates, moments = optimizer.update(optim.clip(grads, plan.clip), moments, free)
        return optax.apply_updates(free, updates), stats, moments, total + jnp.float32(value)

    return update


def _accumulated(plan, gradient, objective, free, batch, key):
    """The value and gradient of a batch from those of its parts, one after another.

    The weight of a part is its share of the labels that count: the denominator is the whole
    batch's. Running statistics are those of the last part.
    """
    count = plan.objective.num_labels or (lambda y: jnp.ones(len(y)))
    labels = jnp.sum(batch.mask * count(batch.y))

    def one(total, entry):
        part, key = entry
        share = jnp.sum(part.mask * count(part.y)) / jnp.maximum(labels, 1.0)
        (value, out), grads = gradient(objective, free, part, key)
        return tree.add(total, (value, grads), share), out.stats

    parts = jax.tree.map(lambda a: a.reshape(plan.accumulate, -1, *a.shape[1:]), batch)
    nothing = jnp.float32(0), tree.zeros(free)
    keys = jax.random.split(key, plan.accumulate)
    (value, grads), stats = jax.lax.scan(one, nothing, (parts, keys))
    return (value, Weights((), tree.take(stats, -1))), grads


def mean(examples: Examples, fn: Callable[[Batch], PyTree], when: Array | bool = True) -> PyTree:
    """The mean of fn over the examples.

    fn: Batch -> tree, the mean over the examples of the batch that are not padding.
    when: a flag []; if it is false, nothing is computed and the mean is 0. (Under `vmap`, `cond`
    would compute both of its branches.)
    """

    def step(s, total):
        batch = examples.batch(s)
        return tree.add(total, fn(batch), jnp.sum(batch.mask))

    nothing = tree.zeros(jax.eval_shape(lambda s: fn(examples.batch(s)), 0))
    count = examples.batches if when is True else jnp.where(when, examples.batches, 0)
    total = jax.lax.fori_loop(0, count, step, nothing)
    return optax.tree.scale(1 / jnp.maximum(examples.size, 1), total)


def outputs(examples: Examples, fn: Callable[[Batch], PyTree]) -> tuple[PyTree, Array]:
    """The outputs of fn for each example, in the order of the rows [N, ...], and a mask [N].

    fn: Batch -> arrays [B, ...]. The mask is 0 for padding.
    """
    rows = examples.rows
    of_rows = jax.tree.map(lambda a: a[: rows.shape[0]], _map_examples(fn, examples))
    return of_rows, (rows >= 0).astype(jnp.float32)


def draw(examples: Examples, key: Array, size: int) -> Batch:
    """A random batch, drawn without replacement; the same in every call with the same key."""
    rows = _pad(shuffle(streams.drawing(key), examples.rows), size)[:size]
    return fetch(examples.federation, rows, examples.plan)


def shuffle(key: Array, rows: Array) -> Array:
    """The rows [N] in random order, with padding (-1) last."""
    noise = jax.random.bits(key, rows.shape, jnp.uint32) >> 1
    return jax.lax.sort((jnp.where(rows < 0, jnp.uint32(1 << 31), noise), rows), num_keys=1)[1]


def _pad(rows, length):
    return jnp.pad(rows, (0, max(0, length - rows.shape[0])), constant_values=-1)
