"""Table 2's naive indices in the place of DSA-IGN's.

feature_average   beta^f_i = mean of D, the embeddings of the client's examples
class_prototypes  the mean of D of each class side by side, 0 of a class that the client lacks
local_weights     the last layer after the client's last training: it changes in every round
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling
from fedjax_lab.errors import BadInput
from fedjax_lab.methods._client_index import (
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
    """The stage in which all clients describe themselves by a mean of their embeddings."""
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
    return (stage("describe", 1, upload, sampling.all_clients, init, reliable=True),)


def size(task: Task, kind: str) -> int:
    """How many numbers beta^f has."""
    K, E = label_table(task).shape
    return K * E if kind == "class_prototypes" else E


def sums_by_class(batch: Batch, num_classes: int) -> Array:
    """The sum of x by class [K, E], over the number of all examples of the batch."""
    of_class = jax.nn.one_hot(batch.y, num_classes)[:, :, None] * batch.x[:, None]  # [B, K, E]
    return losses.masked_mean(of_class, batch.mask)


def class_means(sums: Array, client: Client) -> Array:
    """The mean of each class, one after another [K E], from `sums_by_class` of all examples."""
    share = jnp.maximum(client.label_count, 1) / client.n  # the sum over an absent one is 0
    return (sums / share[:, None]).ravel()


def head(weights: PyTree) -> Array:
    """The last layer of the first model in a tree, as one vector."""
    models = jax.tree.leaves(weights, is_leaf=lambda a: isinstance(a, Weights))
    model = next((w for w in models if isinstance(w, Weights)), None)
    layer = (model.params.get("head") or {}) if model else {}
    if getattr(layer.get("kernel"), "ndim", 0) != 2:
        raise BadInput("config.method.index=local_weights needs a base with one model for all")
    return jnp.concatenate([layer[name].ravel() for name in ("kernel", "bias") if name in layer])
