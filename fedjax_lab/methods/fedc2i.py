"""FedC2I (arXiv:2410.03315): mixes models by the influence of each client and of each class.

  send    all models (theta_i, phi_i), i = 1 .. M, as they were last uploaded
  local   on one batch of at most 32, with theta^-i, phi^-i the means of all models but i's (eq. 4):
          l_m^-i     = loss of (theta^-i, phi_m)
          l_m^-i,-c  = loss of (theta_m, phi_m with the row of class c from phi^-i)       (eq. 9)
          lambda_m^i, Lambda_m^i,c: l^gamma, normalized over i                            (eq. 5)
          theta_m <- sum_i lambda_m^i theta_i                                             (eq. 6)
          phi_m,c <- sum_i Lambda_m^i,c phi_i,c, the bias with its row                   (eq. 10)
          SGD on F_m from there
  server  keeps the models apart

The sum in eq. 10 has phi_m,c in the paper, a misprint for phi_i,c. Losses are measured in
evaluation mode; running statistics are mixed like the body. A client that does not take part keeps
its model. Clients are scored with the model that they uploaded last. The settings `body` and `head`
give the ablations of Table 3: lambda alone is head=local, Lambda/l is body=local, and Lambda/g is
body=mean.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.models.task import split_head
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Batch, Client, Exchange, Method, State, Task, Weights

RANGES = {"gamma": log_uniform(0.5, 10.0)}

BATCH = 32  # examples on which the influence is measured


class Server(NamedTuple):
    """The server's state: the clients' last models."""

    models: Weights  # leaves [M, ...]
    n: Array  # [M] the clients' numbers of examples; 0 before their first upload


@checked("method")
def fedc2i(
    task: Task,
    *,
    gamma: float = 5.0,
    body: Literal["influence", "local", "mean"] = "influence",
    head: Literal["influence", "local", "mean", "lambda"] = "influence",
) -> Method:
    """gamma: sharpness of both weights, lambda and Lambda; 0: uniform weights.

    body: how bodies are mixed: influence (by lambda), local (not at all), mean (as in FedAvg).
    head: how heads are mixed: influence (by Lambda), local, mean, lambda (like the body).
    """
    risk = losses.risk(task)

    def init(key, num_clients):
        if num_clients < 2:
            raise BadInput("fedc2i needs at least two clients: it measures their mutual influence")
        models = tree.repeat(task.init(key), num_clients)
        uniform = jnp.full((num_clients, num_clients), 1 / num_clients)
        return State(Server(models, jnp.zeros(num_clients)), uniform)

    def local(server, client, work):
        start, by_client = mixed(task, server, client, work.draw(BATCH), gamma, body, head)
        return work.train(start, risk), by_client

    def aggregate(server, w, cohort):
        return Server(tree.put(server.models, cohort.id, w), server.n.at[cohort.id].set(cohort.n))

    def predict(w, client, x):
        return task.apply(w, x).logits

    def updates(server, id, w):
        return wire.model_references(tree.take(server.models, id), w)

    return Method(
        init=init,
        round=(
            Exchange(lambda server, id: server, local, aggregate, updates=updates, alike=False),
        ),
        predict=predict,
        newcomer=None,
        sample=sampling.by_size,
        scored=lambda server, id: tree.take(server.models, id),
        record=lambda state: {"influence": state.private},
    )


def mixed(
    task: Task, server: Server, client: Client, batch: Batch, gamma: float, body: str, head: str
) -> tuple[Weights, Array]:
    """Returns the model that a client starts from, and lambda [M]; settings as in `fedc2i`."""
    models, last = server.models, tree.take(server.models, client.id)
    by_client = sharpen(gamma, client_losses(task, models, last, batch))  # [M]
    total = jnp.sum(server.n)
    mean = jnp.where(total > 0, server.n / jnp.maximum(total, 1), 1 / len(server.n))
    weights = {"influence": by_client, "lambda": by_client, "mean": mean}
    bodies, heads = split_head(task, models)
    last_body, last_head = split_head(task, last)
    theta = last_body if body == "local" else tree.mix(weights[body], bodies)  # eq. 6
    if head == "influence":
        by_class = sharpen(gamma, class_losses(task, heads, last, batch))  # [M, C]
        phi = jax.tree.map(lambda a: mix_classes(by_class, a), heads)
    else:
        phi = last_head if head == "local" else tree.mix(weights[head], heads)
    return tree.join(theta, phi), by_client


def client_losses(task: Task, models: Weights, last: Weights, batch: Batch) -> Array:
    """Returns l^-i [M], the loss of the mean body of all but i with the client's own head."""
    bodies, _ = split_head(task, models)
    _, head = split_head(task, last)
    summed = jax.tree.map(lambda a: jnp.sum(a, 0), bodies)

    def without(theta_i):
        theta = optax.tree.scale(1 / (M - 1), optax.tree.sub(summed, theta_i))  # eq. 4
        return task.loss(task.apply(tree.join(theta, head), batch.x).logits, batch)

    M = len(models.params["head"]["kernel"])
    return jax.lax.map(without, bodies)


def class_losses(task: Task, heads: Weights, last: Weights, batch: Batch) -> Array:
    """Returns l^-i,-c [M, C] in closed form, from one forward pass of the client's last model."""
    losses.check_classes(task)
    out = task.apply(last, batch.x)
    z, rows = out.logits, heads.params["head"]  # [B, C]
    M, _, C = rows["kernel"].shape
    full = jax.lax.Precision.HIGHEST
    Z = jnp.einsum("bd,mdc->bmc", out.features, rows["kernel"], precision=full)
    Z = Z + rows.get("bias", 0.0)
    A = (jnp.sum(Z, 1, keepdims=True) - Z) / (M - 1)  # [B, M, C], the logit of class c without i
    others = jnp.where(jnp.eye(C, dtype=bool), -jnp.inf, z[:, None, :])  # [B, C, C]
    E = jax.nn.logsumexp(others, axis=-1)[:, None, :]  # [B, 1, C], over all classes but c
    true = jnp.take_along_axis(z, batch.y[:, None], 1)[:, :, None]  # [B, 1, 1]
    is_true = jax.nn.one_hot(batch.y, C, dtype=bool)[:, None, :]
    loss = jnp.logaddexp(E, A) - jnp.where(is_true, A, true)  # eq. 9
    return losses.masked_mean(loss, batch.mask)


def sharpen(gamma: float, loss: Array) -> Array:
    """Returns l^gamma divided by its sum over clients, the first axis."""
    return jax.nn.softmax(gamma * jnp.log(loss + 1e-12), axis=0)  # eq. 5


def mix_classes(weight: Array, rows: Array) -> Array:
    """Returns the mean of rows [M, ..., C] over clients, with a weight [M, C] for each class."""
    wide = weight.reshape(weight.shape[0], *(1,) * (rows.ndim - 2), weight.shape[1])
    return jnp.sum(wide * rows, 0)  # eq. 10
