"""Client2Vec's index of a client: the stages that find it before federated learning begins.

z, u = DSA-IGN(D), D~ its reconstruction of D;  L the embedding of the label's name
L_div   = 1/B sum_j log sum_{k != j} exp cos(u_j, u_k)
L_sim   = 1/B sum_j (1 - cos(z_j, L_j))
L_orth  = mean of |Z U^T|, all B x B products (the paper gives no normalisation)
L_recon = mean of (D~ - D)^2
beta^f_i = mean of u over the client's examples;  beta^l_i = mean of L

global      each client uploads one batch of 128 pairs (D, L), and the server trains on them
federated   FedAvg on those losses: a tenth of the clients a round, 10 local epochs each
"""

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab import losses, optim, sampling, tree
from fedjax_lab.errors import BadInput, check_choice, check_positive
from fedjax_lab.methods.fedavg import aggregate as average
from fedjax_lab.models.dsa_ign import Network
from fedjax_lab.types import (
    Array,
    Batch,
    Exchange,
    Method,
    PyTree,
    Stage,
    State,
    Task,
    View,
    Weights,
)

BATCH, LOCAL_EPOCHS, SHARE = 128, 10, 0.1
LR = 1e-3  # of Adam; the paper names no optimiser

NAIVE = ("feature_average", "class_prototypes", "local_weights")  # Table 2
INDICES = ("global", "federated", *NAIVE)
REDUCTIONS = {  # of the products in L_orth, from their sum and how many rows and columns they have
    "mean": lambda total, rows, columns: total / jnp.maximum(rows, 1) / columns,
    "sum": lambda total, rows, columns: total,
    "batchmean": lambda total, rows, columns: total / jnp.maximum(rows, 1),
}


class Settings(NamedTuple):
    """How DSA-IGN is trained; `client2vec` explains each."""

    epochs: int
    weights: dict[str, float]  # of the four losses
    reduce: Callable  # one of REDUCTIONS
    normalize: bool
    pooled: bool
    positions: bool
    decoder: str


class Index(NamedTuple):
    """Of all clients."""

    feature: Array  # beta^f [C, F]
    label: Array  # beta^l [C, E]


class Server(NamedTuple):
    """What the server knows in these stages. `key` is the run's for first weights: the base method
    starts where it would without an index.
    """

    key: Array
    psi: PyTree  # DSA-IGN
    moments: PyTree  # of Adam on psi
    epoch: Array
    batches: Batch  # [C, 128, ...] each: what the clients have uploaded
    index: Index


def check(settings: Settings) -> None:
    """BadInput says what is wrong with the settings of DSA-IGN's training."""
    check_positive("method.index_epochs", settings.epochs)
    check_choice("method.index_decoder", settings.decoder, ("linear", "mlp"))


def reduction(name: str) -> Callable:
    """The one of this name."""
    check_choice("method.orth_reduction", name, REDUCTIONS)
    return REDUCTIONS[name]


def find(task: Task, kind: str, settings: Settings) -> tuple[Stage, ...]:
    """The stages that end with the index of this kind in the server's state."""
    return of_data(task, kind) if kind in NAIVE else learned(task, kind, settings)


def size(task: Task, method: Method, kind: str, workdir: str) -> int:
    """F, how many numbers beta^f has."""
    if workdir:
        return kept(workdir)[0]["feature"].shape[-1]
    if kind == "local_weights":
        return jax.eval_shape(lambda: head(method.init(jax.random.key(0), 2).server)).size
    return _feature_size(task, kind)


def _feature_size(task, kind):
    K, E = label_table(task).shape
    return K * E if kind == "class_prototypes" else E


def kept(workdir: str) -> list[dict[str, np.ndarray]]:
    """The indices that a run has kept in its workdir, one for each lane of seeds."""
    files = sorted(Path(workdir).expanduser().glob("stages/train-*.npz"))
    names = {*Index._fields, "label_count"}
    try:
        found = [dict(np.load(file)) for file in files]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"config.method.index_of={workdir} cannot be read: {error}") from error
    if not found or any(names - facts.keys() for facts in found):
        raise BadInput(f"config.method.index_of={workdir} holds no index; name a client2vec run")
    return found


def load(workdir: str, label_count: np.ndarray) -> dict[str, np.ndarray]:
    """The one of them that is of clients with these labels [C, K]."""
    for facts in kept(workdir):
        counts = facts["label_count"]
        for seed in range(len(counts)) if counts.ndim == 3 else [()]:
            if np.array_equal(counts[seed], label_count):
                return {name: fact[seed] for name, fact in facts.items()}
    raise BadInput(
        f"config.method.index_of={workdir} holds an index of other clients; name a run with this"
        " partition and these seeds"
    )


def similarity(index: Index, n: Array, parts: tuple[str, ...]) -> Array:
    """S(i, A) [C] of all clients i to a set A; n [C]: N_j of those in A, 0 of others."""
    share = n / jnp.maximum(jnp.sum(n), 1)
    units = [losses.unit(getattr(index, part)) for part in parts]
    full = jax.lax.Precision.HIGHEST
    return sum(jnp.matmul(b, tree.mix(share, b), precision=full) for b in units) / len(units)


def learned(task: Task, strategy: str, settings: Settings) -> tuple[Stage, ...]:
    """Trains DSA-IGN, `global` or `federated`, and then finds every client's index."""
    T = label_table(task)
    E = T.shape[1]
    net, adam = Network(settings.positions, settings.decoder), optim.adam(LR)

    def loss(psi, batch, key):
        z, u, made = net.apply(psi, batch.x, train=True, rngs={"dropout": key})
        parts = index_losses(z, u, made, batch, T[batch.y], settings.reduce, settings.normalize)
        return sum(settings.weights[name] * value for name, value in parts.items())

    def init(key, num_clients):
        psi = net.init(jax.random.fold_in(key, 1), jnp.zeros((1, E)))
        x, y = jnp.zeros((num_clients, BATCH, E)), jnp.zeros((num_clients, BATCH), jnp.int32)
        index = Index(*jnp.zeros((2, num_clients, E)))
        batches = Batch(x, y, jnp.zeros(y.shape)) if strategy == "global" else ()
        return State(Server(key, psi, adam.init(psi), jnp.int32(0), batches, index), ())

    def collect(message, client, work):
        return work.draw(BATCH), ()

    def keep(server, uploads, cohort):
        return server._replace(batches=tree.put(server.batches, cohort.id, uploads))

    def epoch(server, split):
        key = jax.random.fold_in(server.key, 2)
        k_order, k_steps = jax.random.split(jax.random.fold_in(key, server.epoch))
        batches = reordered(k_order, server.batches, settings.pooled)

        def step(carry, now):
            psi, moments = carry
            i, batch = now[0], split(now[1])
            g = jax.grad(loss)(psi, batch, jax.random.fold_in(k_steps, i))
            updates, after = adam.update(g, moments, psi)
            after = optax.apply_updates(psi, updates), after
            return tree.where(jnp.sum(batch.mask) > 0, after, carry), ()

        steps = jnp.arange(len(batches.y)), batches
        (psi, moments), _ = jax.lax.scan(step, (server.psi, server.moments), steps)
        return server._replace(psi=psi, moments=moments, epoch=server.epoch + 1)

    def local_epochs(psi, client, work):
        def value(w, batch, key):
            return loss(w.params, batch, key), w.stats

        w = work.train(Weights(psi, {}), value, epochs=LOCAL_EPOCHS, optimizer=adam)
        return w.params, ()

    def mean_of_models(server, psi, cohort):
        return server._replace(psi=average(None, psi, cohort))

    def feature(psi, batch):
        return losses.masked_mean(net.apply(psi, batch.x)[1], batch.mask)

    if strategy == "global":
        upload = Exchange(nothing, collect, keep)
        train = Exchange(nothing, silence, unchanged, alone=epoch)
        training = (
            _stage("collect", 1, upload, sampling.everyone, init),
            _stage("index", settings.epochs, train, somebody),
        )
    else:
        train = Exchange(send_psi, local_epochs, mean_of_models)
        training = (_stage("index", settings.epochs, train, tenth, init),)
    upload = Exchange(send_psi, describe(feature, T), put)
    return *training, _stage("describe", 1, upload, sampling.everyone)


def of_data(task: Task, kind: str) -> tuple[Stage, ...]:
    """Table 2's naive indices: `feature_average`, beta^f the mean of D; or `class_prototypes`, the
    mean of each class side by side, 0 of an absent one.
    """
    T = label_table(task)
    K, E = T.shape

    def init(key, num_clients):
        feature = jnp.zeros((num_clients, _feature_size(task, kind)))
        index = Index(feature, jnp.zeros((num_clients, E)))
        return State(Server(key, (), (), jnp.int32(0), (), index), ())

    def feature(_, batch):
        if kind == "feature_average":
            return losses.masked_mean(batch.x, batch.mask)
        of_class = jax.nn.one_hot(batch.y, K)[:, :, None] * batch.x[:, None]  # [B, K, E]
        return losses.masked_mean(of_class, batch.mask)

    find = describe(feature, T)

    def local(message, client, work):
        index, private = find(message, client, work)
        if kind == "class_prototypes":
            share = jnp.maximum(client.label_count, 1) / client.n  # the sum over an absent one is 0
            index = index._replace(feature=(index.feature / share[:, None]).ravel())
        return index, private

    return (_stage("describe", 1, Exchange(nothing, local, put), sampling.everyone, init),)


def label_table(task: Task) -> Array:
    """T [K, E], the embeddings of the labels' names. BadInput where the task has none."""
    if task.labels is None:
        raise BadInput("client2vec needs embeddings: name their source by config.embedding.name")
    return task.labels()


def index_losses(
    z: Array,
    u: Array,
    made: Array,
    batch: Batch,
    L: Array,
    reduce: Callable = REDUCTIONS["mean"],
    normalize: bool = False,
) -> dict[str, Array]:
    """L_div, L_sim, L_orth and L_recon of a batch of D; z, u, made, L: [B, E] each."""
    mask, B = batch.mask, jnp.sum(batch.mask)
    other = mask[None] * (1 - jnp.eye(len(mask)))
    unit_u = losses.unit(u)
    exp = jnp.sum(jnp.exp(unit_u @ unit_u.T) * other, 1)
    log = jnp.log(jnp.where(exp > 0, exp, 1))  # of one example: 0
    z_o, u_o = (losses.unit(z), unit_u) if normalize else (z, u)
    products = jnp.abs(z_o @ u_o.T) * mask[:, None] * mask
    return {
        "div": losses.masked_mean(log, mask),
        "sim": losses.masked_mean(1 - losses.cosine(z, L), mask),
        "orth": reduce(jnp.sum(products), B, jnp.maximum(B, 1)),
        "recon": losses.masked_mean(jnp.mean((made - batch.x) ** 2, 1), mask),
    }


def describe(feature, T: Array):
    """The `local` that uploads a client's index; feature: (message, batch) -> mean over it."""

    def local(message, client, work):
        beta_l = tree.mix(client.label_count / client.n, T)
        return Index(work.mean(partial(feature, message)), beta_l), ()

    return local


def put(server: Server, uploads: Index, cohort) -> Server:
    """Keeps the indices that clients have sent."""
    return server._replace(index=tree.put(server.index, cohort.id, uploads))


def reordered(key: Array, batches: Batch, pooled: bool) -> Batch:
    """The clients' batches [C, B, ...] in random order; pooled: their examples are mixed, too."""
    if not pooled:
        return tree.take(batches, jax.random.permutation(key, len(batches.y)))
    order = jax.random.permutation(key, batches.y.size)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[order].reshape(a.shape), batches)


def head(weights: PyTree) -> Array:
    """The last layer of the first model in a tree, as one vector."""
    models = jax.tree.leaves(weights, is_leaf=lambda a: isinstance(a, Weights))
    found = next((w for w in models if isinstance(w, Weights)), None)
    layer = (found.params.get("head") or {}) if found else {}
    if getattr(layer.get("kernel"), "ndim", 0) != 2 or layer.get("bias") is None:
        raise BadInput("config.method.index=local_weights needs a base with one model for all")
    return jnp.concatenate([layer["kernel"].ravel(), layer["bias"]])


def nothing(server, id):
    """Sends nothing."""
    return ()


def send_psi(server, id):
    """Sends DSA-IGN."""
    return server.psi


def silence(message, client, work):
    """A client that does nothing."""
    return (), ()


def unchanged(server, uploads, cohort):
    """A server that learns nothing from an exchange."""
    return server


def somebody(key, server, population, m):
    """One client, for a round that the server spends alone."""
    return jnp.zeros(1, jnp.int32), jnp.ones(1)


def tenth(key, server, population, m):
    """A tenth of all clients, by size."""
    return sampling.by_size(key, server, population, max(1, int(SHARE * len(population.n))))


def _stage(name, rounds, exchange, sample, init=None) -> Stage:
    """One exchange a round on embedded examples; without `init` it goes on with the last state."""
    method = Method(init, (exchange,), None, None, sample)
    go_on = None if init else lambda key, num_clients, last, facts: last
    view = View(embedded=True, batch_size=BATCH)
    return Stage(name, method, rounds, start=go_on, view=view)
