"""FedProto (Tan et al., AAAI 2022, arXiv:2105.00243).

  send    the global prototypes C_c, one vector a class
  local   w_i <- SGD on F_i(w) + lam mean_b |h_b - C_{y_b}|^2 / D,  h = features    (eq. 7)
          C_i,c = mean of h over the client's examples of class c                   (eq. 3)
  server  C_c = mean of C_i,c over the participants that have class c               (eq. 6)

Models never leave the clients. The term is that of the authors' code, a mean over batch and
features; the paper's is a distance of prototypes, summed over classes. Prototypes come from a clean
pass after training; the server's mean is unweighted. A class that no participant of the last round
has is without a prototype and pulls nobody.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree
from fedjax_lab.errors import BadInput, check_choice
from fedjax_lab.methods.fedper import head
from fedjax_lab.types import Exchange, Method, State, Task


def fedproto(
    task: Task, *, lam: float = 1.0, prediction: str = "classifier", head_layers: int = 1
) -> Method:
    """lam: weight of the prototype term; 0 is Local with a cohort.

    head_layers: h is what the head_layers-th last dense layer is given (2 of three in the authors'
    code).

    prediction: classifier, or prototype: the nearest of the global prototypes of the client's
    classes.
    """
    check_choice("method.prediction", prediction, ("classifier", "prototype"))
    K, layer = task.num_classes, "head" if head_layers == 1 else head(task, head_layers)[0]

    def init(key, num_clients):
        w = task.init(key)
        D = tree.at(w.params, layer)["kernel"].shape[0]
        return State((jnp.zeros((K, D)), jnp.zeros(K)), tree.repeat(w, num_clients))

    def apply(w, x, key=None, mask=None):
        if head_layers == 1:
            return task.apply(w, x, key, mask)
        return task.apply_at(layer, w, x, None, key, mask)

    if head_layers > 1:
        key = jax.random.key(0)
        h = jax.eval_shape(lambda: apply(task.init(key), task.noise(key, 1)).features)
        if h.ndim != 2:
            raise BadInput(
                f"config.method.head_layers={head_layers}: {layer} sees more than a vector"
            )

    def local(message, client, work):
        C, known = message  # [K, D], [K]

        def loss(w, batch, key):
            out = apply(w, batch.x, key, batch.mask)
            distance = jnp.mean((out.features - C[batch.y]) ** 2, -1) * known[batch.y]
            pull = losses.masked_mean(distance, batch.mask)
            return losses.cross_entropy(out.logits, batch) + lam * pull, out.stats  # eq. 7

        w = work.train(client.private, loss)

        def by_class(batch):
            member = jax.nn.one_hot(batch.y, K) * batch.mask[:, None]  # [B, K]
            h = apply(w, batch.x).features
            return tree.mix(member.T / jnp.maximum(jnp.sum(batch.mask), 1), h)  # [K, D]

        share = client.label_count / client.n  # [K]
        C_i = work.mean(by_class) / jnp.where(share > 0, share, 1)[:, None]  # eq. 3
        return (C_i, (share > 0).astype(jnp.float32)), w

    def aggregate(server, uploads, cohort):
        C_i, has = uploads  # [M, K, D], [M, K]
        count = jnp.sum(has, 0)  # [K]
        C = jnp.sum(has[..., None] * C_i, 0) / jnp.maximum(count, 1)[:, None]  # eq. 6
        return C, (count > 0).astype(jnp.float32)

    def predict(message, client, x):
        out = apply(client.private, x)
        if prediction == "classifier":
            return out.logits
        C, known = message
        far = jnp.sum((out.features[:, None] - C) ** 2, -1)  # [B, K]
        return jnp.where(known * client.label_count > 0, -far, -jnp.inf)

    exchange = Exchange(lambda server, id: server, local, aggregate)
    return Method(init, (exchange,), predict, None, sampling.by_size)
