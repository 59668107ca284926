"""A small federation for fast checks: clients of different sizes hold points of four clusters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import losses, optim
from fedjax_lab.experiment.federation import make_rows
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Federation, Plan, Rows, Task

C, N, K, D = 8, 37, 4, 6  # clients, examples of the largest client, classes, features
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
    """A task with an MLP with batch normalization, and embeddings of the labels."""
    made = make_task(nets.mlp(K, width=16, norm=True), (D,), K)
    return made._replace(labels=lambda: jnp.eye(K, 32))
