"""DSA-IGN's index: the losses of the network, and the stages that train it and compute the index.

z, u = DSA-IGN(D), D~ its reconstruction of D;  L the embedding of the label's name
L_div   = 1/B sum_j log sum_{k != j} exp cos(u_j, u_k)
L_sim   = 1/B sum_j (1 - cos(z_j, L_j))
L_orth  = mean of |Z U^T|, all B x B products (the paper gives no normalization)
L_recon = mean of (D~ - D)^2
beta^f_i = mean of u over the client's examples

global      each client uploads one batch of 128 pairs (D, L), and the server trains on them
federated   FedAvg on these losses: a tenth of the clients per round, 10 local epochs each
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, tree
from fedjax_lab.methods.fedavg import aggregate as average
from fedjax_lab.papers.client2vec.index import (
    BATCH,
    Index,
    Server,
    describe,
    label_table,
    nothing,
    put,
    stage,
)
from fedjax_lab.papers.client2vec.network import Network
from fedjax_lab.types import (
    Array,
    Batch,
    Client,
    Exchange,
    PyTree,
    Stage,
    State,
    Task,
    Weights,
    Work,
)

STRATEGIES = ("global", "federated")
LOCAL_EPOCHS, SHARE = 10, 0.1
ADAM = optim.adam(1e-3)  # the paper names no optimizer

REDUCTIONS = {  # of the products in L_orth: (their sum, their rows, their columns) -> a number
    "mean": lambda total, rows, columns: total / jnp.maximum(rows, 1) / columns,
    "sum": lambda total, rows, columns: total,
    "batchmean": lambda total, rows, columns: total / jnp.maximum(rows, 1),
}


class Training(NamedTuple):
    """Settings of the training of DSA-IGN; `client2vec` explains them."""

    strategy: str  # one of STRATEGIES
    epochs: int
    weights: dict[str, float]  # of the four losses
    reduce: Callable  # one of REDUCTIONS
    normalize: bool
    pooled: bool
    positions: bool
    decoder: str


def stages(task: Task, training: Training) -> tuple[Stage, ...]:
    """Returns the stages that train DSA-IGN and then compute the index of every client with it."""
    T = label_table(task)
    network = Network(training.positions, training.decoder)
    loss = partial(total_loss, network, training, T)
    upload = Exchange(send_psi, describe(partial(mean_u, network), T), put)
    last = stage(task, "describe", 1, upload, sampling.all_clients, reliable=True)
    first = partial(first_state, network, training, T.shape[1])
    if training.strategy == "federated":
        train = Exchange(send_psi, partial(local_epochs, loss), mean_of_models, updates=from_sent)
        return stage(task, "index", training.epochs, train, tenth, first), last
    collect = Exchange(nothing, one_batch, keep_batches)
    idle = Exchange(nothing, silence, partial(epoch, loss, training.pooled))
    return (
        stage(task, "collect", 1, collect, sampling.all_clients, first, reliable=True),
        stage(task, "index", training.epochs, idle, somebody, reliable=True),
        last,
    )


def first_state(
    network: Network, training: Training, E: int, key: Array, num_clients: int
) -> State:
    """Returns the first state: random weights of DSA-IGN, empty batches and an empty index."""
    psi = network.init(jax.random.fold_in(key, 1), jnp.zeros((1, E)))
    x, y = jnp.zeros((num_clients, BATCH, E)), jnp.zeros((num_clients, BATCH), jnp.int32)
    batches = Batch(x, y, jnp.zeros(y.shape)) if training.strategy == "global" else ()
    index = Index(*jnp.zeros((2, num_clients, E)))
    return State(
        Server(
            key=key,
            psi=psi,
            moments=ADAM.init(psi),
            epoch=jnp.int32(0),
            batches=batches,
            index=index,
        ),
        (),
    )


# The losses.


def total_loss(
    network: Network, training: Training, T: Array, psi: PyTree, batch: Batch, key: Array
) -> Array:
    """Returns the weighted sum of the four losses, in training mode (with dropout)."""
    outputs: Any = network.apply(psi, batch.x, train=True, rngs={"dropout": key})
    z, u, made = outputs
    parts = index_losses(z, u, made, batch, T[batch.y], training.reduce, training.normalize)
    return jnp.asarray(sum(training.weights[name] * value for name, value in parts.items()))


def index_losses(
    z: Array,
    u: Array,
    made: Array,
    batch: Batch,
    L: Array,
    reduce: Callable = REDUCTIONS["mean"],
    normalize: bool = False,
) -> dict[str, Array]:
    """Returns L_div, L_sim, L_orth and L_recon by name, for a batch of embeddings D.

    z, u: [B, E] the outputs of the network.
    made: [B, E] D~, the reconstruction of D.
    batch: the embeddings D.
    L: [B, E] the embeddings of the labels' names.
    reduce: one of REDUCTIONS, for L_orth.
    normalize: whether L_orth takes unit vectors.
    """
    mask, B = batch.mask, jnp.sum(batch.mask)
    other = mask[None] * (1 - jnp.eye(len(mask)))
    unit_u = losses.unit(u)
    exp = jnp.sum(jnp.exp(unit_u @ unit_u.T) * other, 1)
    log = jnp.log(jnp.where(exp > 0, exp, 1))  # 0 for a single example
    z_o, u_o = (losses.unit(z), unit_u) if normalize else (z, u)
    products = jnp.abs(z_o @ u_o.T) * mask[:, None] * mask
    return {
        "div": losses.masked_mean(log, mask),
        "sim": losses.masked_mean(1 - losses.cosine(z, L), mask),
        "orth": reduce(jnp.sum(products), B, jnp.maximum(B, 1)),
        "recon": losses.masked_mean(jnp.mean((made - batch.x) ** 2, 1), mask),
    }


def mean_u(network: Network, psi: PyTree, batch: Batch) -> Array:
    """Returns the mean of u over a batch."""
    outputs: Any = network.apply(psi, batch.x)
    return losses.masked_mean(outputs[1], batch.mask)


# Global: the server trains on one batch of each client.


def one_batch(message, client: Client, work: Work) -> tuple[Batch, tuple]:
    """The `local` that uploads a batch."""
    return work.draw(BATCH), ()


def keep_batches(server: Server, uploads: Batch, cohort: Client) -> Server:
    """The `aggregate` that stores the uploaded batches."""
    return server._replace(batches=tree.put(server.batches, cohort.id, uploads))


def epoch(loss: Callable, pooled: bool, server: Server, uploads: tuple, cohort: Client) -> Server:
    """The `aggregate` that trains for one epoch of Adam, over the batches in random order.

    Batches without examples are skipped.
    """
    key = jax.random.fold_in(server.key, 2)
    k_order, k_steps = jax.random.split(jax.random.fold_in(key, server.epoch))
    batches = reordered(k_order, server.batches, pooled)

    def step(before, now):
        psi, moments = before
        i, batch = now
        g = jax.grad(loss)(psi, batch, jax.random.fold_in(k_steps, i))
        updates, moments = ADAM.update(g, moments, psi)
        after = optax.apply_updates(psi, updates), moments
        return tree.where(jnp.sum(batch.mask) > 0, after, before), ()

    steps = jnp.arange(len(batches.y)), batches
    (psi, moments), _ = jax.lax.scan(step, (server.psi, server.moments), steps)
    return server._replace(psi=psi, moments=moments, epoch=server.epoch + 1)


def reordered(key: Array, batches: Batch, pooled: bool) -> Batch:
    """Shuffles the clients' batches [C, B, ...]; pooled: also shuffles examples across batches."""
    if not pooled:
        return tree.take(batches, jax.random.permutation(key, len(batches.y)))
    order = jax.random.permutation(key, batches.y.size)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[order].reshape(a.shape), batches)


def silence(message, client, work):
    """The `local` of a client that does nothing."""
    return (), ()


def somebody(key, server, population, m):
    """Samples one client, for a round in which only the server works."""
    return jnp.zeros(1, jnp.int32), jnp.ones(1)


# Federated.


def send_psi(server, id):
    """The `send` of the parameters of DSA-IGN."""
    return server.psi


def local_epochs(loss: Callable, psi: PyTree, client: Client, work: Work) -> tuple[PyTree, tuple]:
    """The `local` that trains DSA-IGN on the client's own embeddings."""

    def value(w, batch, key):
        return loss(w.params, batch, key), w

    w = work.train(Weights(psi, {}), value, epochs=LOCAL_EPOCHS, optimizer=ADAM)
    return w.params, ()


def from_sent(psi: PyTree, id: Array, upload: PyTree) -> PyTree:
    """The references of the uploads: the parameters that were sent."""
    return psi


def mean_of_models(server: Server, psi: PyTree, cohort: Client) -> Server:
    """The `aggregate` that takes FedAvg's mean of the parameters."""
    return server._replace(psi=average(None, psi, cohort))


def tenth(key, server, population, m):
    """Samples a tenth of all clients; their shares are by size."""
    return sampling.by_size(key, server, population, max(1, int(SHARE * len(population.n))))
