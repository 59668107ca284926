"""FedFed (Yang et al., NeurIPS 2023, arXiv:2310.05077): shares the features that classify.

  1  distill  rounds of FedAvg for a classifier f and a variational autoencoder q
     send     f, q
     local    Adam on 2 CE(f(x_p), y) + 0.4 CE(f(x), y) + penalty mean x_s^2 + kl KL(z || N(0, I))
              x_s = x - q(x), performance-sensitive;  x_p = x_s + noise N(0, I)
     server   mean by size
  2  share    one round of all clients
     send     q
     local    x_p and y of `rows` random examples, with q(x) of the mean of z
     server   keeps all rows
  3  train    FedAvg for config.run.rounds rounds, from new weights
     once     the rows of all clients to every client
     local    SGD on F_i(w) + weight CE(w(x_p), y), with a shared row for each own one

The paper bounds the norm of x_s; as in the authors' code (visitworld123/FedFed) the bound is a
penalty, whose weight there is 50, because a factor for early epochs counts the epochs of a round.
The other weights are the code's, whose KL is divided by 3 more. There each client shares every
example, with noise of two strengths; a batch has as many rows of each as of the client, and the
loss is the mean over all of them. As there, classes of the shared rows are drawn equally often, and
batch normalization takes the rows of both losses together. Left out are the code's passes on
mixtures of images before each epoch of stage 1, and its factors for clients with few examples or
classes. q has dense layers, instead of convolutions and a sigmoid. The noise is in units of the
model's inputs, and nothing is clipped: no privacy is guaranteed. A client with fewer examples sends
padding, whose bytes count too.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, optim, sampling, streams, tree, wire
from fedjax_lab.methods._sizes import check_uploads
from fedjax_lab.methods._stages import go_on
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import Positive, checked, choice, log_uniform, uniform
from fedjax_lab.types import (
    Array,
    Batch,
    Client,
    Exchange,
    Output,
    PyTree,
    Stage,
    Stages,
    State,
    Task,
    Weights,
    Work,
)

RANGES = {
    "weight": log_uniform(0.1, 3.0),
    "noise": uniform(0.05, 0.4),
    "penalty": log_uniform(1.0, 100.0),
    "rows": choice(50, 100, 200),
}
HIDDEN, LATENT = 256, 32  # sizes of the layers of q and of z


class Server(NamedTuple):
    """The server's state."""

    w: Weights  # in stages 1 and 2 with the parameters {f, q}
    rows: Batch  # leaves [C, rows, ...], empty before stage 2
    key: Array  # of the first weights of stage 3


@checked("method")
def fedfed(
    task: Task,
    *,
    weight: float = 1.0,
    noise: float = 0.2,
    penalty: float = 50.0,
    kl: float = 0.005,
    rows: Positive[int] = 100,
    distill_rounds: Positive[int] = 15,
    distill_lr: Positive[float] = 1e-3,
) -> Stages:
    """weight: weight of the loss of shared rows in stage 3; with 0 this stage is FedAvg if
        the model has no batch normalization.

    noise: standard deviation of the noise in x_p.
    penalty: weight of the mean square of x_s. kl: weight of the KL, averaged over z.
    rows: the number of examples of which each client shares x_p.
    distill_rounds: the rounds of stage 1. distill_lr: learning rate of stage 1.
    """
    losses.check_classes(task)
    loss = partial(distillation, task, noise, penalty, kl)

    def distill(w, client, work):
        return work.train(w, loss, optimizer=optim.adam(distill_lr)), ()

    plain = fedavg(task)._replace(init=None, newcomer=lambda state: (state.server.w, ()))
    of_both = plain._replace(
        predict=lambda w, client, x: task.apply(classifier(w), x).logits,
        scored=lambda server, id: server.w,
    )
    first = of_both._replace(init=partial(first_state, task, rows), round=(averaging(distill),))
    sharing = Exchange(send_q, partial(share, rows, noise), keep_rows, wire.all_kept)
    once = of_both._replace(round=(sharing,), sample=sampling.all_clients)
    last = plain._replace(round=(averaging(partial(train, task, weight)),))

    def stages(rounds):
        return (
            Stage("distill", first, distill_rounds),
            Stage("share", once, 1, start=go_on, reliable=True),
            Stage("train", last, rounds, start=partial(start_again, task), frozen=rows_of_all),
        )

    return stages


def first_state(task: Task, rows: int, key: Array, num_clients: int) -> State:
    """The `init` of stage 1."""
    D, w = math.prod(task.input_shape), task.init(key)
    check_uploads("fedfed", num_clients, 4 * rows * (D + 2))
    both = w._replace(params={"f": w.params, "q": first_autoencoder(streams.extra(key), D)})
    x, y = jnp.zeros((rows, *task.input_shape)), jnp.zeros(rows, jnp.int32)
    return State(Server(both, tree.repeat(Batch(x, y, jnp.zeros(rows)), num_clients), key), ())


def start_again(task: Task, key, num_clients, last, facts):
    """The `start` of stage 3, with the first weights of FedAvg."""
    return State(last.server._replace(w=task.init(last.server.key)), ())


def send_q(server, id):
    """Sends the autoencoder."""
    return server.w.params["q"]


def share(rows: int, noise: float | Array, q: PyTree, client: Client, work: Work):
    """The `local` of stage 2."""
    batch = work.draw(rows)
    x_p = noisy(batch.x - robust(q, batch.x)[0], noise, streams.extra(work.upload_key()))
    y = jnp.where(batch.mask > 0, batch.y, 0)
    return batch._replace(x=jax.vmap(jnp.multiply)(x_p, batch.mask), y=y), ()


def train(task: Task, weight: float | Array, w: Weights, client: Client, work: Work):
    """The `local` of stage 3."""
    rows = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), work.frozen)
    of_class = by_class(rows, task.num_classes)

    def loss(w, batch, key):
        shared = tree.take(rows, drawn(of_class, len(batch.mask), streams.extra(key)))
        shared = shared._replace(mask=batch.mask)
        of_own, of_shared, out = entropies(task, w, batch, shared, key)
        return of_own + weight * of_shared, out

    return work.train(w, loss), ()


def averaging(local) -> Exchange:
    """Returns the exchange of FedAvg for `Server.w`."""

    def aggregate(server, w, cohort):
        return server._replace(w=tree.mix(cohort.weight, w))

    return Exchange(lambda server, id: server.w, local, aggregate)


def rows_of_all(server):
    """The `frozen` of the last stage: the rows that all clients have shared."""
    return server.rows


def keep_rows(server, rows, cohort):
    """Stores the uploaded rows of each client."""
    return server._replace(rows=tree.put(server.rows, cohort.id, rows))


def classifier(w: Weights) -> Weights:
    """Returns the weights of f."""
    return w._replace(params=w.params["f"])


def first_autoencoder(key: Array, D: int) -> PyTree:
    """Returns the first weights of q for inputs of D numbers."""
    sizes = {"encoder": D, "z": HIDDEN, "decoder": LATENT, "out": HIDDEN}
    outputs = HIDDEN, 2 * LATENT, HIDDEN, D
    keys = jax.random.split(key, (len(sizes), 2))
    each = zip(sizes.items(), outputs, keys, strict=True)
    return {name: first_affine(pair[0], pair[1], inputs, out) for (name, inputs), out, pair in each}


def robust(q: PyTree, x: Array, key: Array | None = None) -> tuple[Array, Array, Array]:
    """Returns q(x) [B, ...], and the mean and the logarithm of the variance of z [B, LATENT].

    key: of the noise in z; None: z is its mean.
    """
    h = jax.nn.relu(affine(q["encoder"], x.reshape(len(x), -1)))
    mu, log_var = jnp.split(affine(q["z"], h), 2, 1)
    z = mu if key is None else mu + jnp.exp(log_var / 2) * jax.random.normal(key, mu.shape)
    made = affine(q["out"], jax.nn.relu(affine(q["decoder"], z)))
    return made.reshape(x.shape), mu, log_var


def noisy(x_s: Array, noise: float | Array, key: Array) -> Array:
    """Returns x_p."""
    return x_s + noise * jax.random.normal(key, x_s.shape)


def entropies(
    task: Task, w: Weights, a: Batch, b: Batch, key: Array
) -> tuple[Array, Array, Output]:
    """Returns the cross-entropies of two batches of the same size, from one pass for both."""
    x, mask = (jnp.concatenate(pair) for pair in ((a.x, b.x), (a.mask, b.mask)))
    out = task.apply(w, x, key, mask)
    of_a, of_b = map(losses.cross_entropy, jnp.split(out.logits, 2), (a, b))
    return of_a, of_b, out


def distillation(
    task: Task, noise: float, penalty: float, kl: float, w: Weights, batch: Batch, key: Array
) -> tuple[Array, Output]:
    """The loss of f and q in stage 1."""
    made, mu, log_var = robust(w.params["q"], batch.x, streams.extra(key))
    x_s = batch.x - made
    x_p = noisy(x_s, noise, streams.extra(key, 2))
    of_p, of_x, out = entropies(task, classifier(w), batch._replace(x=x_p), batch, key)
    square = jnp.mean(x_s**2, tuple(range(1, x_s.ndim)))
    divergence = jnp.mean(mu**2 + jnp.exp(log_var) - 1 - log_var, 1) / 2
    bounds = losses.masked_mean(penalty * square + kl * divergence, batch.mask)
    return 2 * of_p + 0.4 * of_x + bounds, out


def by_class(rows: Batch, K: int) -> tuple[Array, Array]:
    """Returns the places of the rows [R] in the order of their classes, and the classes' sizes."""
    y = jnp.where(rows.mask > 0, rows.y, K)
    return jnp.argsort(y), jnp.bincount(y, length=K)


def drawn(of_class: tuple[Array, Array], count: int, key: Array) -> Array:
    """Returns the places of random rows [count], each class that has rows equally often.

    of_class: the result of `by_class`.
    """
    order, sizes = of_class
    k_class, k_row = jax.random.split(key)
    number = jax.random.randint(k_class, (count,), 0, jnp.sum(sizes > 0))
    c = jnp.argsort(sizes == 0)[number]
    return order[(jnp.cumsum(sizes) - sizes)[c] + jax.random.randint(k_row, (count,), 0, sizes[c])]
