"""The naive indices of Table 2, which replace DSA-IGN's index.

feature_average   beta^f_i = mean of D, the embeddings of the client's examples
class_prototypes  the mean of D of each class, concatenated; 0 for a class that the client lacks
local_weights     the last layer after the client's last training: it changes in every round
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling
from fedjax_lab.errors import BadInput
from fedjax_lab.papers.client2vec.index import (
    Index,
    Server,
    describe,
    label_table,
    nothing,
    put,
    stage,
)
from fedjax_lab.types import Array, Batch, Client, Exchange, PyTree, Stage, State, Task, Weights

NAIVE = ("feature_average", "class_prototypes", "local_weights")


def stages(task: Task, kind: str) -> tuple[Stage, ...]:
    """Returns the stage that computes the index of all clients as a mean of their embeddings."""
    T = label_table(task)
    K, E = T.shape

    def init(key, num_clients):
        index = Index(jnp.zeros((num_clients, size(task, kind))), jnp.zeros((num_clients, E)))
        return State(
            Server(key=key, psi=(), moments=(), epoch=jnp.int32(0), batches=(), index=index), ()
        )

    average = describe(lambda _, batch: losses.masked_mean(batch.x, batch.mask), T)
    prototypes = describe(lambda _, batch: sums_by_class(batch, K), T)

    def local(message, client, work):
        if kind == "feature_average":
            return average(message, client, work)
        index, private = prototypes(message, client, work)
        return index._replace(feature=class_means(index.feature, client)), private

    upload = Exchange(nothing, local, put)
    return (stage(task, "describe", 1, upload, sampling.all_clients, init, reliable=True),)


def size(task: Task, kind: str) -> int:
    """Returns the length of beta^f."""
    K, E = label_table(task).shape
    return K * E if kind == "class_prototypes" else E


def sums_by_class(batch: Batch, num_classes: int) -> Array:
    """Returns the sum of x by class [K, E], divided by the number of examples of the batch."""
    of_class = jax.nn.one_hot(batch.y, num_classes)[:, :, None] * batch.x[:, None]  # [B, K, E]
    return losses.masked_mean(of_class, batch.mask)


def class_means(sums: Array, client: Client) -> Array:
    """Returns the concatenated class means [K E], from `sums_by_class` of all examples."""
    share = jnp.maximum(client.label_count, 1) / client.n  # the sum of an absent class is 0
    return (sums / share[:, None]).ravel()


def head(weights: PyTree) -> Array:
    """Returns the last layer of the first model in a tree, as one vector."""
    models = jax.tree.leaves(weights, is_leaf=lambda a: isinstance(a, Weights))
    model = next((w for w in models if isinstance(w, Weights)), None)
    layer = (model.params.get("head") or {}) if model else {}
    if getattr(layer.get("kernel"), "ndim", 0) != 2:
        raise BadInput(
            "config.method.index=local_weights needs a config.method.base with one model for all"
            " clients"
        )
    return jnp.concatenate([layer[name].ravel() for name in ("kernel", "bias") if name in layer])
