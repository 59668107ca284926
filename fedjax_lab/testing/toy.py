"""A small federation for fast checks: clients of different sizes hold points of four clusters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import losses, optim
from fedjax_lab.experiment.federation import make_rows
from fedjax_lab.experiment.registry import make_method
from fedjax_lab.models import nets
from fedjax_lab.models.adapters import A, B
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation.needs import Unmet
from fedjax_lab.types import (
    Adapters,
    Array,
    Federation,
    Method,
    Plan,
    Rows,
    Stages,
    Task,
)

C, N, K, D = 8, 37, 4, 6  # clients, examples of the largest client, classes, features
P = 200  # public examples
ADAPTED = "Dense_0"  # the layer that has low-rank factors in an adapted task
RANK, SCALE = 3, 0.5  # of these factors
PLAN = Plan(
    rounds=6,
    cohort=5,
    batch_size=8,
    epochs=2,
    optimizer=optim.sgd(0.05, 0.9, 1e-4),
    objective=losses.classification(K),
)


def as_rows(table) -> Rows:
    """The `Rows` of a table [C, N] that is padded with -1."""
    (of_seed,) = make_rows([[row[row >= 0] for row in np.asarray(table)]])
    return jax.tree.map(jnp.asarray, of_seed)


def make_federation(seed: int = 0) -> Federation:
    """Makes a federation of 400 training and 200 test examples; clients hold 10 to 37 of them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, 600)
    x = (rng.normal(size=(K, D)) * 2)[y] + rng.normal(size=(600, D))
    sizes = rng.permutation(np.linspace(10, N, C).astype(int))
    train = np.full((C, N), -1)
    for row, n in zip(train, sizes, strict=True):
        row[:n] = rng.choice(400, n, replace=False)
    test = 400 + np.stack([rng.choice(200, 20, replace=False) for _ in range(C)])
    public = rng.integers(0, K, P)
    return Federation(
        jnp.asarray(x, jnp.float32),
        jnp.asarray(y, jnp.int32),
        jnp.zeros(600, jnp.int32),
        jnp.float32(0),
        jnp.float32(1),
        train=as_rows(train),
        validation=None,
        test=as_rows(test),
        global_test=jnp.arange(400, 600),
        unseen=None,
        public=(
            jnp.asarray(2 * rng.normal(size=(P, D)), jnp.float32),
            jnp.asarray(public, jnp.int32),
        ),
    )


def with_validation(federation: Federation) -> Federation:
    """The federation with a fifth of each client's training rows as validation rows."""
    train = np.asarray(federation.train)
    held_out = np.arange(train.shape[1]) < (train >= 0).sum(1, keepdims=True) // 5
    kept, validation = (np.where(side, train, -1) for side in (~held_out, held_out))
    return federation._replace(train=as_rows(kept), validation=as_rows(validation))


@functools.cache
def toy_federation() -> Federation:
    """The federation that all checks use."""
    return make_federation()


@functools.cache
def toy_task() -> Task:
    """A task with an MLP with batch normalization, and embeddings of the toy federation."""
    made = make_task(nets.mlp(K, width=16, norm=True), (D,), K)
    return made._replace(embeddings=lambda: toy_embeddings(toy_federation()))


def toy_embeddings(federation: Federation) -> Embeddings:
    """Embeddings of a toy federation: its examples, padded with 0 to 32 numbers."""
    x = np.asarray(federation.x)
    return Embeddings(np.pad(x, ((0, 0), (0, 32 - D))), np.eye(K, 32, dtype=x.dtype))


def adapted(task: Task) -> Task:
    """The task with low-rank factors of the layer `ADAPTED`, whose kernel is frozen; needs no qwix.

    task: its model is an MLP.
    """
    return _with_factors(task, task.init(jax.random.key(0)).params[ADAPTED]["kernel"])


def _with_factors(task: Task, kernel: Array) -> Task:
    """The task with factors of this kernel, which is frozen, in the layer `ADAPTED`."""

    def init(key):
        w = task.init(key)
        d, f = kernel.shape
        a = jax.random.uniform(key, (d, RANK), minval=-(d**-0.5), maxval=d**-0.5)
        factors = {"kernel" + A: a, "kernel" + B: jnp.zeros((RANK, f))}
        layer = {"bias": w.params[ADAPTED]["bias"], **factors}
        return w._replace(params={**w.params, ADAPTED: layer})

    def whole(w):
        layer = w.params[ADAPTED]
        update = SCALE * layer["kernel" + A] @ layer["kernel" + B]
        merged = {"bias": layer["bias"], "kernel": kernel + update}
        return w._replace(params={**w.params, ADAPTED: merged})

    def changed(changes):
        return _with_factors(task, kernel + changes.get(f"{ADAPTED}/kernel", 0))

    return task._replace(
        init=init,
        apply=lambda w, *args, **options: task.apply(whole(w), *args, **options),
        apply_at=lambda layer, w, *args, **options: task.apply_at(
            layer, whole(w), *args, **options
        ),
        adapters=Adapters(SCALE, changed, {}),
    )


def needs_adapters(name: str) -> bool:
    """Whether the method with this name refuses a task without low-rank factors."""
    try:
        make_method(name, toy_task())
    except Unmet as error:
        return error.need == "adapters"
    return False


def toy_method(name: str, task: Task | None = None, **settings) -> Method | Stages:
    """The method for the toy task; for that task with factors if it refuses one without them.

    task: replaces the toy task.
    """
    task = task or toy_task()
    try:
        return make_method(name, task, **settings)
    except Unmet as error:
        if error.need != "adapters":
            raise
        return make_method(name, adapted(task), **settings)
