"""FedGen (Zhu, Hong, Zhou, ICML 2021, arXiv:2105.10056): data-free knowledge distillation.

  send    w_t, the generator G, the shares p of the classes
  local   w_i <- SGD on F_i(w) + alpha CE(w; z, y),  z = G(y, eps),  y ~ p         (eq. 4)
  server  w_{t+1} = sum_i n_i/n w_i
          G <- Adam on CE(sum_i n_i/n g_i; z, y) + diversity D(z, eps)             (eq. 3)

G makes features z, the input of the head, from a class and uniform noise eps; it has one hidden
layer, without the BatchNorm of the authors' code. The logits g_i of the clients are averaged; their
heads are linear, so that this is the head of w_{t+1}. D = exp(-mean |z_j - z_k| (eps_j - eps_k)^2)
is the diversity loss of the code. The weight alpha is the code's, where it decreases by 2 % a
round; a further term of the code, KL to the predictions of generated features, is not in the
paper's algorithm. The defaults are the code's for MNIST; PFLlib has alpha=1 and server_lr=5e-3.
The first round, in which G is not trained, has no z. p counts the examples of the last round's
participants; for it, a client sends its K counts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, optim, streams, tree, wire
from fedjax_lab.methods import _heads
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Batch, Exchange, Method, PyTree, State, Task, Weights

RANGES = {
    "alpha": log_uniform(0.1, 30.0),
    "server_lr": log_uniform(1e-4, 1e-2),
    "server_steps": choice(50, 200, 1000),
}
BATCH = 32  # generated features in a step of the server


class Server(NamedTuple):
    """The server's state; a message has its first three parts."""

    w: Weights
    G: PyTree
    p: Array  # [K], 0 before the first round
    moments: Any  # of Adam


@checked("method")
def fedgen(
    task: Task,
    *,
    alpha: float = 10.0,
    diversity: float = 1.0,
    server_lr: float = 3e-4,
    server_steps: int = 50,
    noise: Positive[int] = 32,
    hidden: Positive[int] = 256,
) -> Method:
    """alpha: weight of the loss of generated features; 0 is FedAvg.

    diversity: weight of D. server_lr, server_steps: learning rate and steps of G in a round.
    noise, hidden: numbers of entries of eps and of the hidden layer of G.
    """
    adam, K = optim.adam(server_lr), task.num_classes

    def init(key, num_clients):
        w = task.init(key)
        D = w.params[task.head]["kernel"].shape[0]
        G = first_generator(streams.extra(key), K + noise, hidden, D)
        return State(Server(w, G, jnp.zeros(K), adam.init(G)), ())

    def local(message, client, work):
        w_t, G, p = message

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            made, _ = generated(G, p, noise, streams.extra(key), len(batch.mask))
            of_made = losses.cross_entropy(_heads.logits(w.params["head"], made.x), made)
            known = jnp.any(p > 0)
            return losses.cross_entropy(out.logits, batch) + alpha * known * of_made, out  # eq. 4

        return (work.train(w_t, loss), client.label_count), ()

    def step(server, uploads, cohort):
        w, counts = uploads
        w, p = tree.mix(cohort.weight, w), shares(jnp.sum(counts, 0))
        loss = partial(generator_loss, w.params["head"], p, diversity, noise)
        loss = partial(loss_of_step, loss, cohort.key[0])
        G, moments = optim.minimize(adam, loss, (server.G, server.moments), server_steps)
        return Server(w, G, p, moments)

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(lambda server, id: tuple(server[:3]), local, step, updates=updates),),
        predict=lambda message, client, x: task.apply(message[0], x).logits,
        newcomer=lambda state: (tuple(state.server[:3]), ()),
    )


def shares(counts: Array) -> Array:
    """Returns the share of each class in the counts [K]; all are 0 if there are no examples."""
    return counts / jnp.maximum(jnp.sum(counts), 1)


def first_generator(key: Array, inputs: int, hidden: int, D: int) -> PyTree:
    """Returns the first G, with `hidden` entries of its hidden layer, for D features."""
    keys = jax.random.split(key, 4)
    return {
        "hidden": first_affine(keys[0], keys[1], inputs, hidden),
        "out": first_affine(keys[2], keys[3], hidden, D),
    }


def generated(G: PyTree, p: Array, noise: int, key: Array, count: int) -> tuple[Batch, Array]:
    """Returns a batch of generated features and their classes, and the noise they are made from."""
    k_y, k_eps = jax.random.split(key)
    y = jax.random.categorical(k_y, jnp.log(p), shape=(count,))
    eps = jax.random.uniform(k_eps, (count, noise))
    given = jnp.concatenate([eps, jax.nn.one_hot(y, len(p))], 1)
    z = affine(G["out"], jax.nn.relu(affine(G["hidden"], given)))
    return Batch(z, y, jnp.ones(count)), eps


def generator_loss(
    head: PyTree, p: Array, diversity: float, noise: int, G: PyTree, key: Array
) -> Array:
    """Returns the loss of the generator on one random batch."""
    made, eps = generated(G, p, noise, key, BATCH)
    apart = jnp.mean(jnp.abs(made.x[:, None] - made.x), -1)  # [B, B]
    far = jnp.mean((eps[:, None] - eps) ** 2, -1)
    D = jnp.exp(-jnp.mean(apart * far))
    return losses.cross_entropy(_heads.logits(head, made.x), made) + diversity * D  # eq. 3


def loss_of_step(loss: Callable[[PyTree, Array], Array], key: Array, G: PyTree, s: Array) -> Array:
    """Returns the loss of G and a key for step s of the server's training with this key."""
    return loss(G, jax.random.fold_in(key, s))


def updates(message, id, upload):
    """Marks the model as an update of w_t, and the counts as none."""
    w, counts = upload
    return wire.model_references(message[0], w), wire.kept(counts)
