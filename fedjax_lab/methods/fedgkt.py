"""FedGKT (He, Annavaram, Avestimehr, NeurIPS 2020, arXiv:2007.14513): group knowledge transfer.

  send    z_s, the logits of the server's model W for each example of the client
  local   w_i <- SGD on CE(z_w; y) + alpha KL(z_s, z_w) from w_i
          upload the features h_i, the logits z_i and the labels y of all examples
  server  W <- Adam on CE(W(h); y) + alpha KL(z_i, W(h)) over the h of all clients

KL(z, z') = T^2 KL(softmax(z / T) || softmax(z' / T)). The client's net is the extractor of h, the
input of its head, and W is a perceptron on h; in the paper h are feature maps, and W is a ResNet.
A client predicts with W(h), and `global` is the mean over clients. The client gets W and computes
z_s itself, with the numbers that the server would send, as its extractor has not changed since its
upload. Counted are the bytes of z_s and of the rows that a client has. With fewer participants than
clients z_s is that of the newest W, and with augmentation that of the augmented examples. The first
round has no z_s. Features and z_s are those of evaluation mode. The server keeps Adam's moments and
draws its batches at random, as many as server_epochs passes have. The defaults, and Adam, are those
of the authors' commands, which leave the server's KL out. No transform changes an upload.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab import losses, optim, sampling, streams, tree, wire
from fedjax_lab.methods.fml import divergence
from fedjax_lab.models import layers, nets
from fedjax_lab.models.task import make_task
from fedjax_lab.ranges import Positive, Within, checked, choice, log_uniform, uniform
from fedjax_lab.types import (
    Array,
    Batch,
    Client,
    Exchange,
    Federation,
    Method,
    State,
    Task,
    Weights,
)

RANGES = {
    "alpha": log_uniform(0.1, 10.0),
    "temperature": uniform(1.0, 5.0),
    "server_lr": log_uniform(1e-4, 1e-2),
    "server_epochs": choice(1, 5, 20),
}
BATCH = 64  # examples in a step of the server


class Server(NamedTuple):
    """The server's state; a message has its first two parts."""

    W: Weights
    trained: Array  # [] 0 before the first training
    moments: Any  # of Adam


class Upload(NamedTuple):
    """A client's features, logits and labels of its examples; N is the largest client's number."""

    h: Array  # [N, D]
    z: Array  # [N, K]
    y: Array  # [N]
    mask: Array  # [N] which of them the client has


@checked("method")
def fedgkt(
    task: Task,
    *,
    alpha: float = 1.0,
    temperature: Positive[float] = 3.0,
    server_lr: float = 1e-3,
    server_epochs: int = 20,
    server_width: Positive[int] = 256,
    server_depth: Annotated[int, Within(0, layers.MOST_LAYERS)] = 2,
) -> Method:
    """alpha: weight of the divergences; with 0 the clients' nets learn as in Local.

    temperature: T. server_lr, server_epochs: learning rate and passes of the server in a round.
    server_width, server_depth: width and number of the hidden layers of W.
    """
    adam, both = optim.adam(server_lr), partial(distilled, temperature)
    net = server_net(task, server_width, server_depth)

    def init(key, num_clients):
        W = net.init(streams.extra(key))
        first = Server(W, jnp.float32(0), adam.init(W.params))
        return State(first, tree.repeat(task.init(key), num_clients))

    def local(message, client, work):
        (W, trained), v = message, client.private

        def teacher(batch):
            return net.apply(W, known(task, v, batch)[0]).logits

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            return both(alpha * trained, out.logits, batch), out

        w = work.train(v, loss, references=teacher)
        rows, mask = work.outputs(partial(known, task, w))
        return Upload(*rows, mask), w

    def predict(message, client, x):
        h = losses.pooled(task.apply(client.private, x).features)
        return net.apply(message[0], h).logits

    aggregate = partial(learned, net, adam, partial(both, alpha), server_epochs)
    exchange = Exchange(lambda server, id: server[:2], local, aggregate, wire.all_kept, alike=False)
    method = Method(init, (exchange,), predict, newcomer=None, sample=sampling.by_size)
    return method.having(absent=partial(absent, net))


def server_net(task: Task, width: int, depth: int) -> Task:
    """Returns the server's perceptron on the features of a task."""
    shape = (1, *task.input_shape)

    def features():
        return losses.pooled(task.apply(task.init(jax.random.key(0)), jnp.zeros(shape)).features)

    D = jax.eval_shape(features).shape[1]
    return make_task(nets.mlp(task.num_classes, width=width, depth=depth), (D,), task.num_classes)


def known(task: Task, w: Weights, batch: Batch) -> tuple[Array, Array, Array]:
    """Returns the features [B, D], the logits [B, K] and the labels [B] of a batch."""
    out = task.apply(w, batch.x)
    return losses.pooled(out.features), out.logits, batch.y


def learned(
    net: Task,
    optimizer: optax.GradientTransformation,
    loss_of: Callable[[Array, Batch], Array],
    epochs: int,
    server: Server,
    uploads: Upload,
    cohort: Client,
) -> Server:
    """Returns the server after its training on all uploads [M]; loss_of: (logits, batch) -> []."""
    in_order = tree.take(uploads, jnp.argsort(cohort.id))
    h, z, y, mask = (a.reshape(-1, *a.shape[2:]) for a in in_order)
    held = jnp.cumsum(mask.astype(jnp.int32))

    def loss(params, s):
        places = drawn(jax.random.fold_in(cohort.key[0], s), held)
        batch = Batch(h[places], y[places], jnp.ones(BATCH), z[places])
        return loss_of(net.apply(server.W._replace(params=params), batch.x).logits, batch)

    steps = epochs * -(-held[-1] // BATCH)
    start = server.W.params, server.moments
    params, moments = optim.minimize(optimizer, loss, start, steps)
    return Server(server.W._replace(params=params), jnp.float32(1), moments)


def distilled(T: float, alpha: Array | float, logits: Array, batch: Batch) -> Array:
    """Returns CE + alpha KL of logits [B, K]; the references of the batch are the teacher's."""
    apart = divergence(batch.references / T, logits / T, batch.mask)
    return losses.cross_entropy(logits, batch) + alpha * T**2 * apart


def drawn(key: Array, held: Array) -> Array:
    """Returns the places of a random batch; held: [R], the number of existing rows up to each."""
    number = jax.random.randint(key, (BATCH,), 0, jnp.maximum(held[-1], 1))
    return jnp.searchsorted(held, number + 1)


def absent(net: Task, federation: Federation) -> np.ndarray:
    """Returns the bytes of uploads and of messages that clients do not need, [C, 2].

    Of each client's rows in an upload some are padding, and the logits that it needs of a message
    are those of its own rows.
    """
    held = np.asarray(federation.train.count, np.float64)  # [C]
    padding, (D,), K = federation.train.longest - held, net.input_shape, net.num_classes
    message = tree.num_bytes(jax.eval_shape(net.init, jax.random.key(0))) + 4
    up = 4 * (held + padding + padding * (D + K + 1))
    return np.stack([up, message - 4 * K * held], 1)
