"""FedProto (Tan et al., AAAI 2022, arXiv:2105.00243).

  send    the global prototypes C_c, one vector per class
  local   w_i <- SGD on F_i(w) + lam mean_b |h_b - C_{y_b}|^2 / D,  h = features    (eq. 7)
          C_i,c = mean of h over the client's examples of class c                   (eq. 3)
  server  C_c = mean of C_i,c over the participants that have class c               (eq. 6)

Models never leave the clients. The prototype term is that of the authors' code, a mean over batch
and features; the paper's term is a distance of prototypes, summed over classes. Prototypes are
computed after training, in evaluation mode; the server's mean is unweighted. A class that no
participant of the last round has gets no prototype and no prototype term.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedavg import send
from fedjax_lab.methods.fedper import head
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Batch, Client, Exchange, Method, State, Task, Work

RANGES = {"lam": log_uniform(0.1, 10.0)}


@checked("method")
def fedproto(
    task: Task,
    *,
    lam: float = 1.0,
    prediction: Literal["classifier", "prototype"] = "classifier",
    head_layers: int = 1,
) -> Method:
    """lam: weight of the prototype term; with 0 it is Local, but with sampled clients.

    prediction: how clients predict: classifier, by the model's logits; prototype, by the nearest
    global prototype among those of the client's classes.

    head_layers: h is the input of the head_layers-th last dense layer (the authors' code takes the
    second last of three).
    """
    K, layer = task.num_classes, task.head if head_layers == 1 else head(task, head_layers)[0]
    apply = task.apply if head_layers == 1 else partial(task.apply_at, layer)
    if head_layers > 1:
        check_vector(task, apply, f"config.method.head_layers={head_layers}: {layer}")

    def init(key, num_clients):
        w = task.init(key)
        D = tree.at(w.params, layer)["kernel"].shape[0]
        return State((jnp.zeros((K, D)), jnp.zeros(K)), tree.repeat(w, num_clients))

    def local(message, client, work):
        C, exists = message  # [K, D], [K]

        def loss(w, batch, key):
            out = apply(w, batch.x, key=key, mask=batch.mask)
            distance = jnp.mean((out.features - C[batch.y]) ** 2, -1) * exists[batch.y]
            pull = losses.masked_mean(distance, batch.mask)
            return losses.cross_entropy(out.logits, batch) + lam * pull, out  # eq. 7

        w = work.train(client.private, loss)
        return prototypes(lambda x: apply(w, x).features, K, client, work), w

    def predict(message, client, x):
        out = apply(client.private, x)
        return out.logits if prediction == "classifier" else nearest(message, client, out.features)

    exchange = Exchange(send, local, aggregate, updates=updates)
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )


def check_vector(task: Task, apply, culprit: str) -> None:
    """Raises BadInput unless the features that `apply` returns are one vector per example."""
    x = jnp.zeros((1, *task.input_shape))
    features = jax.eval_shape(lambda key: apply(task.init(key), x).features, jax.random.key(0))
    if features.ndim != 2:
        raise BadInput(f"{culprit} must get a vector as its input; choose another head_layers")


def prototypes(
    features: Callable[[Array], Array], K: int, client: Client, work: Work
) -> tuple[Array, Array]:
    """Returns a client's mean features by class [K, D], and which classes it has [K]."""
    share = client.label_count / client.n  # [K]
    sums = work.mean(lambda batch: sums_by_class(features(batch.x), batch, K))
    C_i = sums / jnp.where(share > 0, share, 1)[:, None]  # eq. 3
    return C_i, (share > 0).astype(jnp.float32)


def sums_by_class(h: Array, batch: Batch, num_classes: int) -> Array:
    """Returns the sum of features h [B, D] by class, divided by the number of examples: [K, D]."""
    member = jax.nn.one_hot(batch.y, num_classes) * batch.mask[:, None]  # [B, K]
    return tree.mix(member.T / jnp.maximum(jnp.sum(batch.mask), 1), h)


def aggregate(server, uploads, cohort):
    """Computes the new global prototypes, and which classes have one."""
    C_i, has = uploads  # [M, K, D], [M, K]
    count = jnp.sum(has, 0)  # [K]
    C = jnp.sum(has[..., None] * C_i, 0) / jnp.maximum(count, 1)[:, None]  # eq. 6
    return C, (count > 0).astype(jnp.float32)


def updates(message, id, upload):
    """Marks the prototypes as updates, and the flags of those that exist as none."""
    C_i, has = upload
    return wire.itself(C_i), wire.kept(has)


def nearest(message, client: Client, h: Array) -> Array:
    """Returns logits [B, K]: minus the squared distances to prototypes of the client's classes."""
    C, exists = message
    distance = jnp.sum((h[:, None] - C) ** 2, -1)  # [B, K]
    return jnp.where(exists * client.label_count > 0, -distance, -jnp.inf)
