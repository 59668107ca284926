"""The local work of a client: order of examples, steps, frozen parts, means and draws."""

from functools import partial

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from inputs import complaint

from fedjax_lab import losses, optim, sampling, tree
from fedjax_lab.engine import parallel
from fedjax_lab.experiment import joint
from fedjax_lab.experiment.config import resolve
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.simulation.client_work import fetch, make_work, num_batches, shuffle
from fedjax_lab.types import Weights

KEY = jax.random.key(1)


ROWS = toys.FEDERATION.train[2]
REAL = int(jnp.sum(ROWS >= 0))
PLAN = toys.PLAN._replace(optimizer=optim.sgd(0.1))
NUMBERED = toys.FEDERATION._replace(x=jnp.arange(600, dtype=jnp.float32)[:, None])
in_head = tree.within(("head",))


def work(plan=PLAN, rows=ROWS, federation=toys.FEDERATION):
    return make_work(federation, rows, plan, KEY)[0]


def test_shuffle_keeps_the_rows_and_puts_padding_last():
    """Each of four rows comes first about as often, over 4,000 keys (chi-square, p > 1e-4)."""
    mixed = np.asarray(shuffle(KEY, ROWS))
    assert sorted(mixed) == sorted(np.asarray(ROWS))
    assert (mixed[:REAL] >= 0).all() and (mixed[REAL:] == -1).all()
    assert not np.array_equal(mixed, ROWS)
    keys = jax.random.split(KEY, 4000)
    first = jax.vmap(lambda k: shuffle(k, jnp.array([7, 8, 9, 10, -1, -1])))(keys)[:, 0]
    counts = np.bincount(np.asarray(first) - 7, minlength=4)
    assert ((counts - 1000) ** 2 / 1000).sum() < 21.1


def steps_of(plan, **options):
    """Counts the steps: each step adds 1 to a parameter whose gradient is -1."""

    def loss(w, batch, key):
        return -w.params["count"], w

    start = Weights({"count": jnp.float32(0)}, {})
    return float(work(plan).train(start, loss, optimizer=optax.sgd(1.0), **options).params["count"])


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_number_of_steps_depends_on_the_examples_of_the_client(batch_size):
    plan = PLAN._replace(batch_size=batch_size)
    batches = -(-REAL // batch_size)
    assert int(num_batches(REAL, batch_size)) == batches
    assert steps_of(plan) == 2 * batches
    assert steps_of(plan, epochs=3) == 3 * batches
    assert steps_of(plan, epochs=1, steps=2) == min(2, batches)


@pytest.mark.slow
def test_a_fixed_number_of_steps_continues_over_passes():
    """So many steps as two passes have are these passes; others are cut off, or a third begins."""
    of_plan = PLAN._replace(batch_size=7)
    batches, w = -(-REAL // 7), toys.TASK.init(KEY)
    risk = losses.risk(toys.TASK)
    for steps in (1, 2 * batches, 2 * batches + 3):
        assert steps_of(of_plan._replace(steps=steps)) == steps
        client, trainings = make_work(toys.FEDERATION, ROWS, of_plan._replace(steps=steps), KEY)
        fixed = client.train(w, risk)
        passes, rest = divmod(steps, batches)
        assert trainings[0].examples == passes * REAL + min(REAL, 7 * rest)
        assert client.steps == steps
    one_more = of_plan._replace(steps=2 * batches)
    trained = [work(plan).train(w, risk) for plan in (of_plan, one_more)]
    jax.tree.map(np.testing.assert_array_equal, *trained)
    assert steps_of(one_more, epochs=1) == batches  # a method's own passes stay
    assert not np.array_equal(jax.tree.leaves(fixed)[0], jax.tree.leaves(trained[0])[0])


def test_accumulated_parts_are_one_batch():
    """Also where the parts have unlike numbers of labels: the denominator is the batch's."""
    w, parts = toys.TASK.init(KEY), PLAN._replace(batch_size=8, accumulate=4)
    risk = losses.risk(toys.TASK)
    whole, accumulated = (
        work(plan).train(w, risk) for plan in (parts._replace(accumulate=1), parts)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), whole, accumulated)


def test_an_epoch_sees_every_example_once_in_a_new_order():
    """The gradient records the rows that the batches of two epochs fetch."""

    def loss(w, batch, key):
        seen = jnp.zeros(600).at[batch.x[:, 0].astype(int)].add(batch.mask)
        total = jnp.sum(batch.mask * (1 + jnp.arange(8)) * batch.x[:, 0])
        return -jnp.sum(w.params["seen"] * seen) - w.params["order"] * total, w

    def trained(epochs):
        client, one = work(federation=NUMBERED), optax.sgd(1.0)
        return client.train(start, loss, epochs=epochs, optimizer=one).params

    start = Weights({"seen": jnp.zeros(600), "order": jnp.float32(0)}, {})
    once, twice = trained(1), trained(2)
    expected = np.zeros(600)
    expected[np.asarray(ROWS[ROWS >= 0])] = 1
    np.testing.assert_array_equal(once["seen"], expected)
    np.testing.assert_array_equal(twice["seen"], 2 * expected)
    assert float(twice["order"]) != 2 * float(once["order"])


def test_equal_steps_only_drop_the_masking():
    """If all rows are real, static and dynamic numbers of steps give the same weights."""
    rows = jnp.arange(24)
    risk, w = losses.risk(toys.NORM), toys.NORM.init(KEY)
    a = work(PLAN._replace(equal_steps=True), rows).train(w, risk)
    toys.same(a, work(PLAN, rows).train(w, risk))
    stats, first = a.stats["BatchNorm_0"], w.stats["BatchNorm_0"]  # of the training mode
    assert float(jnp.abs(stats["mean"]).max()) > 0.01
    assert not np.allclose(stats["var"], first["var"])


def test_every_step_has_a_different_key():
    """Each step adds a random number. A second step and a second epoch add different numbers."""

    def loss(w, batch, key):
        return -w.params["sum"] * jax.random.uniform(key), w

    start, tx = Weights({"sum": jnp.float32(0)}, {}), optax.sgd(1.0)

    def total(**options):
        return float(work().train(start, loss, optimizer=tx, **options).params["sum"])

    one, two, again = total(epochs=1, steps=1), total(epochs=1, steps=2), total(epochs=2, steps=1)
    assert 0 < one < 1
    assert len({round(one, 6), round(two - one, 6), round(again - one, 6)}) == 3


@pytest.mark.slow
def test_frozen_parts_do_not_move_even_with_momentum_and_decay():
    """Two trainings of a round shuffle differently."""
    risk, w, tx = losses.risk(toys.TASK), toys.TASK.init(KEY), optim.sgd(0.1, 0.9, 0.1)
    client = work()
    a, b = (client.train(w, risk, only=in_head, optimizer=tx) for _ in range(2))
    toys.same(a.params["Dense_0"], w.params["Dense_0"])
    assert float(tree.sq_norm(optax.tree.sub(a.params["head"], w.params["head"]))) > 0
    assert float(tree.sq_norm(optax.tree.sub(a.params, b.params))) > 0
    again = work().train(w, risk, only=in_head, optimizer=tx)
    toys.same(a, again)
    new = work().train(w, risk, only=lambda name: not in_head(name), optimizer=tx)
    toys.same(new.params["head"], w.params["head"])


def brighter(key, x):
    return x + jax.random.uniform(key, x.shape)


@pytest.mark.parametrize(
    "changes, options",
    [
        pytest.param({}, {}, marks=pytest.mark.exhaustive),
        pytest.param({"batch_size": 64}, {}, marks=pytest.mark.exhaustive),
        ({"equal_steps": True}, {}),
        ({"augment": brighter}, {}),
        ({}, {"steps": 2}),
    ],
)
def test_references_stay_aligned_with_their_examples(changes, options):
    """They are computed in one pass over the batches, or with augmentation in each step."""
    plan = PLAN._replace(**changes)
    examples = len(ROWS) if plan.equal_steps else REAL
    batches, computed, mismatches = -(-examples // plan.batch_size), [], []

    def references(batch):
        jax.debug.callback(lambda: computed.append(1))
        return {"double": 2 * batch.x, "label": batch.y}

    def loss(w, batch, key):
        double, label = batch.references["double"], batch.references["label"]
        off = jnp.sum(jnp.abs(double - 2 * batch.x), 1) + (label != batch.y)
        jax.debug.callback(lambda a: mismatches.append(float(a)), jnp.sum(batch.mask * off))
        return 0.0 * w.params["a"], w

    start, client = Weights({"a": jnp.float32(0)}, {}), work(plan)
    client.train(start, loss, epochs=3, references=references, **options)
    client.train(start, loss, epochs=1, references=references)
    jax.effects_barrier()
    assert len(computed) == (4 if plan.augment else 2) * batches
    assert mismatches == [0.0] * (3 * options.get("steps", batches) + batches)


def test_mean_weighs_examples_not_batches():
    """It is zero if its condition is false."""
    real = np.asarray(ROWS[ROWS >= 0])

    def mean(**when):
        return work().mean(lambda b: {"x": losses.masked_mean(b.x[:, 0], b.mask)}, **when)

    run, expected = jax.jit(lambda when: mean(when=when)), jax.jit(mean)()
    x = np.asarray(toys.FEDERATION.x)[real, 0]
    np.testing.assert_allclose(expected["x"], x.mean(), rtol=1e-5)
    toys.same(run(True), expected)
    toys.same(run(False), tree.zeros(expected))


def test_outputs_are_in_the_order_of_the_rows():
    """This includes the last, short batch; the mask is 0 where there is no example."""
    x, y = (np.asarray(a) for a in toys.FEDERATION[:2])
    (double, label), mask = work().outputs(lambda batch: (2 * batch.x, batch.y))
    assert mask.tolist() == [1.0] * REAL + [0.0] * (len(ROWS) - REAL)
    np.testing.assert_array_equal(double[:REAL], 2 * x[ROWS[:REAL]])
    np.testing.assert_array_equal(label[:REAL], y[ROWS[:REAL]])
    assert double.shape == (len(ROWS), toys.D)


def test_validation_rows_are_used_only_on_request():
    """There are more of them than training rows, also in plans without masked training steps."""

    def first(batch):
        return losses.masked_mean(batch.x[:, 0], batch.mask)

    few, more = jnp.arange(5), jnp.concatenate([jnp.arange(100, 119), jnp.full(9, -1)])
    x = np.asarray(toys.FEDERATION.x)[:, 0]
    for plan in (PLAN, PLAN._replace(equal_steps=True)):
        both, _ = make_work(toys.FEDERATION, few, plan, KEY, validation=more)
        for rows, part in (("train", x[:5]), ("validation", x[100:119])):
            np.testing.assert_allclose(both.mean(first, rows=rows), part.mean(), rtol=1e-5)
            column, mask = both.outputs(lambda batch: batch.x[:, 0], rows=rows)
            np.testing.assert_array_equal(column[: len(part)], part)
            assert mask.sum() == len(part)
        np.testing.assert_array_equal(both.mean(first), both.mean(first, rows="train"))
    said = complaint(work().mean, lambda batch: 0.0, rows="validation")
    assert "no rows 'validation', but train; " in said and "Method(validation=True)" in said
    assert "no rows 'test'" in complaint(work().outputs, lambda batch: batch.y, rows="test")


def test_draw_is_without_replacement():
    rows = jnp.arange(30)
    drawn = work(rows=rows, federation=NUMBERED).draw(12)
    assert len(set(np.asarray(drawn.x[:, 0]).tolist())) == 12 and drawn.mask.all()
    assert float(work(rows=rows[:5], federation=NUMBERED).draw(12).mask.sum()) == 5


def test_only_training_sees_augmented_images():
    """Each step draws anew on raw pixels before normalization; `mean` and `draw` do not augment."""
    federation = toys.FEDERATION._replace(
        x=jnp.full((600, 1), 51, jnp.uint8), center=jnp.float32(51), scale=jnp.float32(2)
    )

    def augment(key, x):
        return x + jnp.round(100 * jax.random.uniform(key, (len(x), 1)))

    plan = toys.PLAN._replace(augment=augment, optimizer=optax.sgd(1.0))
    work, _ = make_work(federation, federation.train[0], plan, KEY)
    assert float(work.mean(lambda batch: jnp.sum(jnp.abs(batch.x)))) == 0
    assert float(jnp.sum(jnp.abs(work.draw(4).x))) == 0
    seen = []

    def loss(w, batch, key):
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), batch.x)
        return 0.0 * w.params["a"], w

    work.train(Weights({"a": jnp.float32(0)}, {}), loss, epochs=1)
    jax.effects_barrier()
    seen = np.stack(seen)
    assert 0 <= seen.min() and seen.max() <= 200 and len(np.unique(seen)) > 20
    assert not np.array_equal(seen[0], seen[1])


@pytest.mark.parametrize(
    "shape, dtype",
    [((4, 5, 3), "uint8"), ((4, 4, 1), "int8"), ((7,), "float32"), ((2, 3, 4, 5), "uint8")],
)
def test_a_flat_pool_gives_the_same_batches_as_the_images(shape, dtype):
    """In NumPy, raw images are augmented and then normalized by channel; no bit differs."""
    images = np.random.default_rng(0).integers(0, 100, (600, *shape)).astype(dtype)
    center, scale = np.random.default_rng(1).normal(size=(2, shape[-1])).astype(np.float32)
    federation = toys.FEDERATION._replace(
        x=jnp.asarray(images.reshape(600, -1)), center=jnp.asarray(center), scale=jnp.asarray(scale)
    )
    plan = toys.PLAN._replace(example_shape=shape, augment=lambda key, x: x[:, ::-1] + 1)
    rows = np.array([3, 599, 0, -1])
    scored = fetch(federation, jnp.asarray(rows), plan)
    assert scored.x.dtype == jnp.float32
    raw = images[rows].astype(np.float32)
    np.testing.assert_array_equal(scored.x, (raw - center) * scale)
    np.testing.assert_array_equal(scored.mask, [1, 1, 1, 0])
    np.testing.assert_array_equal(scored.y, np.asarray(toys.FEDERATION.y)[rows])
    trained = fetch(federation, jnp.asarray(rows), plan, KEY).x
    np.testing.assert_array_equal(trained, (raw[:, ::-1] + 1 - center) * scale)


# 64-bit mode.


@pytest.mark.slow
def test_64_bit_mode_trains_on_the_same_batches():
    """A client with 4 rows, padded to 20, learns from its rows and not from the padding.

    The weights may have 64 bits, too. Shuffles and draws are those of 32-bit mode.
    """
    few = jnp.where(jnp.arange(20) < 4, jnp.arange(20), -1)
    plan = PLAN._replace(batch_size=4)

    @jax.jit
    def trained(w):
        done, trainings = make_work(toys.FEDERATION, few, plan, KEY)
        return done.train(w, losses.risk(toys.TASK)), trainings[0]

    def drawn():
        return [shuffle(KEY, ROWS), *(sampling.without_replacement(KEY, n, 5) for n in (9, 99))]

    w = toys.TASK.init(KEY)
    expected, counted = trained(w)
    with jax.enable_x64(True):
        weights, training = trained(w)
        wide, _ = trained(jax.tree.map(lambda a: a.astype(jnp.float64), w))
        wide_draws = drawn()
    toys.same(wide_draws, drawn())
    toys.close(weights, expected, rtol=1e-5, atol=1e-6)
    assert {a.dtype for a in jax.tree.leaves(wide)} == {np.dtype(np.float64)}
    toys.close(wide, expected, rtol=1e-3, atol=1e-4)
    assert float(training.examples) == float(counted.examples) == 2 * 4
    assert float(training.loss) == pytest.approx(float(counted.loss), rel=1e-5)


def clipped_sgd(w, x, y, largest, clipped):
    """SGD in NumPy that clips gradients before weight decay; `clipped` records which steps do."""

    def gradient_at(w):
        g, longer = naive.clipped_gradient(w, x, y, largest)
        clipped.append(longer)
        return g

    return naive.descend(w, gradient_at)


@pytest.mark.slow
def test_clipped_clients_against_numpy():
    """Some steps are clipped and some are not; momentum and weight decay are as usual."""
    largest, clipped, w = 0.9, [], naive.first_weights()
    method = toys.make("fedavg", toys.TASK)
    state, _ = toys.player(method, plan=naive.FULL._replace(clip=largest))(naive.KEYS, 0, 1)
    ids = naive.cohort(method, 0)
    models = [clipped_sgd(w, *naive.data_of(i), largest, clipped) for i in ids]
    assert len(set(clipped)) == 2
    naive.close(state.server, naive.mean_by_size(ids, models))


@pytest.mark.slow
def test_masked_steps_have_no_effect_with_gradient_clipping():
    """Clients with different numbers of steps run at once, and one by one."""
    plan, method = toys.PLAN._replace(clip=0.3), toys.make("fedavg")
    at_once, _ = toys.player(method, plan=plan)(naive.KEYS, 0, 2)
    one_by_one, _ = toys.player(method, parallel.sequential(), plan)(naive.KEYS, 0, 2)
    toys.close(at_once, one_by_one, rtol=1e-5, atol=1e-6)


def test_clip_is_a_key_of_the_section_local(tmp_path):
    parts = [toys.build(tmp_path, local={"clip": norm}) for norm in (0.0, 0.5)]
    assert [part.simulation.plan.clip for part in parts] == [0.0, 0.5]
    together = joint.join(parts).simulation
    assert [seed.settings for seed in together.seeds] == [{"local.clip": 0.0}, {"local.clip": 0.5}]
    assert together.variant({"local.clip": 0.25})[1]["clip"] == 0.25
    message = complaint(resolve, {"local": {"clip": -1.0}})
    assert "config.local.clip must be at least 0, got -1.0" in message


def one_scan(train, weights):
    return jax.lax.scan(lambda w, _: (train(w), None), weights, None, length=2)[0]


INSIDE = {
    "vmap": lambda train, w: jax.vmap(train)(tree.repeat(w, 2)),
    "scan": one_scan,
    "fori_loop": lambda train, w: jax.lax.fori_loop(0, 2, lambda _, w: train(w), w),
    "cond": lambda train, w: jax.lax.cond(w.params["head"]["bias"][0] > 0, train, train, w),
    "jit": lambda train, w: jax.jit(train)(w),
    "grad": lambda train, w: jax.grad(lambda w: tree.sq_norm(train(w).params))(w),
}


@pytest.mark.parametrize("transformation", INSIDE)
def test_training_inside_a_jax_transformation_is_a_one_line_error(transformation):
    """The simulator itself traces `local` inside vmap and jit, which is no error."""

    def local(weights, client, work):
        def train(w):
            return work.train(w, losses.risk(toys.TASK))

        return INSIDE[transformation](train, weights), client.private

    method = fedavg(toys.TASK, local)
    said = complaint(lambda: toys.player(method)(naive.KEYS, 0, 1))
    assert "\n" not in said and said.startswith("work.train is called inside a jax transformation")
