"""FedIIR (Guo et al., ICML 2023): aligns classifier gradients across clients.

  send    w_t
  local   G_b, the gradient of CE for the head (W, b), of each batch at w_t in evaluation mode
  server  g <- ema g + (1 - ema) mean of G_b over all batches of all participants,  g_0 = 0
  send    w_t, g
  local   w_i <- SGD on F_i(w) + penalty ||G_b(w) - g||^2, with gradients through G_b
  server  w_{t+1} = 1/M sum_i w_i

The squared norm is the sum over all entries of W and b. All batches have the same weight in g, also
shorter ones; g is not corrected for its start at zero. Running statistics are averaged by size. The
paper's gamma is called `penalty`, as in the authors' code. w_t is sent, and counted, twice per
round, although a client could keep it.
proceedings.mlr.press/v202/guo23b.html
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models.task import check_bias
from fedjax_lab.ranges import Share, checked, choice, log_uniform
from fedjax_lab.types import Array, Batch, Client, Exchange, Method, Output, State, Task, Weights

RANGES = {"ema": choice(0.1, 0.5, 0.95), "penalty": log_uniform(5e-4, 1e-2)}


class Server(NamedTuple):
    """The server's state: the model, and the running mean of the gradients of its head."""

    w: Weights
    g: dict[str, Array]  # kernel [D, K], bias [K]


@checked("method")
def fediir(task: Task, *, ema: Share = 0.95, penalty: float = 1e-3) -> Method:
    """ema: decay of the running mean g, in [0, 1].

    penalty: weight of the alignment; 0 is FedAvg with a uniform mean.
    """
    check_bias(task, "fediir")
    losses.check_classes(task)

    def init(key, num_clients):
        w = task.init(key)
        return State(Server(w, tree.zeros(tree.at(w.params, task.head))), ())

    def measure(w_t, client, work):
        mean = work.mean(partial(gradient_and_one, task, w_t))
        return optax.tree.scale(client.n, mean), client.private

    def local(server, client, work):
        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            gap = tree.sq_norm(optax.tree.sub(head_gradient(out, batch), server.g))
            return losses.cross_entropy(out.logits, batch) + penalty * gap, out

        return work.train(server.w, loss), client.private

    return fedavg(task)._replace(
        init=init,
        round=(
            Exchange(
                lambda server, id: server.w, measure, partial(follow, ema), updates=sum_references
            ),
            Exchange(lambda server, id: server, local, aggregate, updates=model_references),
        ),
        predict=lambda server, client, x: task.apply(server.w, x).logits,
        sample=sampling.equal,
    )


def sum_references(w_t: Weights, id: Array, upload: tuple[dict, Array]) -> tuple:
    """Marks the sums of gradients of the first exchange as updates, and its counts as none."""
    total, count = upload
    return wire.itself(total), wire.kept(count)


def model_references(server: Server, id: Array, w: Weights) -> Weights:
    """Marks the upload of the second exchange as an update of the model that was sent."""
    return wire.model_references(server.w, w)


def gradient_and_one(task: Task, w_t: Weights, batch: Batch) -> tuple[dict, Array]:
    """Returns G_b and 1, divided by the batch's examples, by which `Work.mean` weighs a batch."""
    once = 1 / jnp.maximum(jnp.sum(batch.mask), 1)
    return optax.tree.scale(once, head_gradient(task.apply(w_t, batch.x), batch)), once


def follow(ema: float, server: Server, uploads: tuple[dict, Array], cohort: Client) -> Server:
    """Moves g toward the mean of all G_b; uploads: the sums of G_b and the numbers of batches."""
    total, count = jax.tree.map(lambda a: jnp.sum(a, 0), uploads)
    mean = optax.tree.scale(1 / jnp.maximum(count, 1), total)
    return server._replace(g=tree.add(optax.tree.scale(ema, server.g), mean, 1 - ema))


def aggregate(server: Server, w: Weights, cohort: Client) -> Server:
    """Takes the uniform mean of the models; running statistics are averaged by size."""
    params = tree.mix(cohort.weight, w.params)
    stats = tree.mix(cohort.n / jnp.sum(cohort.n), w.stats)
    return server._replace(w=Weights(params, stats))


def head_gradient(out: Output, batch: Batch) -> dict[str, Array]:
    """Returns the gradient of the cross-entropy for W [D, K] and b [K] in closed form."""
    error = jax.nn.softmax(out.logits) - jax.nn.one_hot(batch.y, out.logits.shape[-1])
    error = error * batch.mask[:, None] / jnp.maximum(jnp.sum(batch.mask), 1)  # [B, K]
    return {"kernel": out.features.T @ error, "bias": jnp.sum(error, 0)}
