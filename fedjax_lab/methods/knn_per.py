"""kNN-Per (Marfoq et al., ICML 2022, arXiv:2111.09360): personalization by nearest neighbors.

  send    w_t
  local   as FedAvg
  server  as FedAvg

Before a client is scored, it stores (z_j, y_j) for each of its training examples, where z_j are the
features by w_t. It predicts lam p(y | x) + (1 - lam) softmax(w_t(x)), where p(y | x) is
proportional to the sum of exp(-||z - z_j|| / scale) over those of the k nearest z_j with y_j = y.

In the paper each client chooses its lam on validation examples: `weight=validation` takes the lam
of 0, 0.1, ..., 1 with the least loss. The authors' code uses the squared distance over D instead of
the distance. The stored features are not kept after scoring. New clients are scored in the same
way; the global test set is scored with w_t.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses
from fedjax_lab.errors import check_choice
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, Share, checked, choice, uniform
from fedjax_lab.types import Array, Method, Output, Task

RANGES = {"weight": uniform(0.0, 1.0), "neighbors": choice(5, 10, 20)}

GRID = 11  # the number of weights from which `weight=validation` chooses


class Store(NamedTuple):
    """The features and labels of a client's N examples."""

    z: Array  # [N, D]
    y: Array  # [N]
    mask: Array  # [N] 0 for padding
    lam: Array  # []


@checked("method")
def knn_per(
    task: Task,
    *,
    weight: Share | Literal["validation"] = 0.5,
    neighbors: Positive[int] = 10,
    scale: Positive[float] = 1.0,
) -> Method:
    """weight: the weight lam of the neighbors in a prediction; 0 is FedAvg. With validation, each
    client chooses its own weight.

    neighbors: k, the number of nearest examples that are used.
    scale: the distance over which the weight of a neighbor falls to 1/e.
    """
    if chooses := isinstance(weight, str):
        check_choice("method.weight", weight, ("validation",))
    losses.check_classes(task)

    def mixed(out, store):
        by_neighbors = log_nearest(out.features, store, neighbors, scale, task.num_classes)
        by_model = jax.nn.log_softmax(out.logits)
        lam = jnp.any(store.mask > 0) * store.lam
        return jnp.logaddexp(jnp.log(lam) + by_neighbors, jnp.log1p(-lam) + by_model)

    def tune(w, client, work):
        (z, y), mask = work.outputs(lambda batch: (task.apply(w, batch.x).features, batch.y))
        store = Store(z, y, mask, jnp.float32(0 if chooses else weight))
        return w, best(store, w, work) if chooses else store

    def best(store, w, work):
        """Returns the store with the best lam on validation examples; ties go to the lowest lam."""
        grid = jnp.linspace(0, 1, GRID)

        def loss(batch):
            out = task.apply(w, batch.x)
            each = jax.vmap(lambda lam: mixed(out, store._replace(lam=lam)))(grid)
            return jax.vmap(losses.cross_entropy, (0, None))(each, batch)

        return store._replace(lam=grid[jnp.argmin(work.mean(loss, rows="validation"))])

    def predict(w, client, x):
        out: Output = task.apply(w, x)
        return mixed(out, client.private) if isinstance(client.private, Store) else out.logits

    return fedavg(task)._replace(tune=tune, predict=predict, validation=chooses)


def log_nearest(h: Array, store: Store, k: int, scale: float, num_classes: int) -> Array:
    """Returns log p(y | x) [B, classes] of the features h [B, D].

    For a class without neighbors, p is the smallest positive number of the type, so that losses
    stay finite. With an empty store this holds for all classes.
    """
    products = jnp.matmul(h, store.z.T, precision="highest")  # [B, N]
    squared = jnp.sum(h * h, 1)[:, None] + jnp.sum(store.z * store.z, 1) - 2 * products
    near = -jnp.sqrt(jnp.maximum(squared, 0)) / scale
    near, places = jax.lax.top_k(jnp.where(store.mask > 0, near, -jnp.inf), min(k, len(store.y)))
    total = jax.nn.logsumexp(near, 1, keepdims=True)  # [B, 1]
    near = jnp.where(jnp.isfinite(total), near - total, -jnp.inf)
    member = jax.nn.one_hot(store.y[places], num_classes, dtype=bool)  # [B, k, classes]
    of_class = jax.nn.logsumexp(jnp.where(member, near[:, :, None], -jnp.inf), 1)
    return jnp.maximum(of_class, jnp.log(jnp.finfo(h.dtype).tiny))
