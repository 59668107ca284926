"""CCVR (Luo et al., NeurIPS 2021, arXiv:2106.05001): the classifier is retrained after training.

  1  train      FedAvg
  2  calibrate  one round of all clients, with features z of the model w
     send       w
     local      N_ck, mu_ck, Sigma_ck: number, mean and covariance of the z of class c
     server     mu_c = sum_k N_ck/N_c mu_ck
                Sigma_c = 1/(N_c - 1) (sum_k (N_ck - 1) Sigma_ck
                                       + sum_k N_ck mu_ck mu_ck' - N_c mu_c mu_c')
                SGD on the head of w, on as many z ~ N(mu_c, Sigma_c) of each class

Stage 2 is the last round of the run; no upload is lost in it. Each step of the server takes all
virtual features, with a momentum of 0.9. A class without examples has no virtual features. Once in
a run, each client sends K (D^2 + D + 1) numbers for K classes and D features. The server holds the
uploads of all clients in memory at once; more than 4 GiB are rejected.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, optim, sampling, wire
from fedjax_lab.methods._sizes import check_uploads
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.methods.fedgh import with_trained_head
from fedjax_lab.methods.fedproto import sums_by_class
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import (
    Array,
    Batch,
    Client,
    Exchange,
    Stage,
    Stages,
    State,
    Task,
    Weights,
    Work,
)

RANGES = {"server_lr": log_uniform(1e-3, 1.0), "server_steps": choice(30, 100, 300)}

einsum = partial(jnp.einsum, precision="highest")


class Moments(NamedTuple):
    """Moments of the features of each class, for a client, or with a leading axis for a cohort."""

    N: Array  # [K] the number of examples
    mu: Array  # [K, D]
    Sigma: Array  # [K, D, D]


@checked("method")
def ccvr(
    task: Task, *, virtual: Positive[int] = 200, server_lr: float = 0.1, server_steps: int = 100
) -> Stages:
    """virtual: the number of virtual features of each class.

    server_lr: the learning rate at which the server trains the head.
    server_steps: the number of steps in which the server trains the head.
    """
    losses.check_classes(task)
    plain = fedavg(task)

    def init(key, num_clients):
        state = plain.init(key, num_clients)
        D, K = state.server.params[task.head]["kernel"].shape
        check_uploads("ccvr", num_clients, 4 * K * (D * D + D + 1))
        return state

    def local(w, client, work):
        return moments_of(task, w, client, work), client.private

    def aggregate(w, moments, cohort):
        total = together(moments)
        z = virtual_features(cohort.key[0], total, virtual)  # [K, virtual, D]
        return calibrated(w, z, total.N > 0, server_lr, server_steps)

    def updates(w, id, moments):
        return wire.kept(moments)

    exchange = Exchange(send, local, aggregate, updates=updates)
    calibration = plain._replace(init=None, round=(exchange,), sample=sampling.all_clients)

    def start(key, num_clients, last, facts):
        return State(last.server, ())

    def stages(rounds):
        train = Stage("train", plain._replace(init=init), rounds - 1)
        return train, Stage("calibrate", calibration, 1, start=start, reliable=True)

    return stages


def moments_of(task: Task, w: Weights, client: Client, work: Work) -> Moments:
    """Returns the moments of one client's features."""
    N, K = client.label_count, task.num_classes

    def features(batch):
        return task.apply(w, batch.x).features

    def scatter(batch):  # sums by class of (z - mu_c)(z - mu_c)', divided by the number of examples
        away = features(batch) - mu[batch.y]
        member = jax.nn.one_hot(batch.y, K) * batch.mask[:, None]  # [B, K]
        return einsum("bk,bd,be->kde", member / jnp.maximum(jnp.sum(batch.mask), 1), away, away)

    mu = work.mean(lambda batch: sums_by_class(features(batch), batch, K))
    mu = mu * (client.n / jnp.maximum(N, 1))[:, None]
    return Moments(N, mu, work.mean(scatter) * (client.n / jnp.maximum(N - 1, 1))[:, None, None])


def together(moments: Moments) -> Moments:
    """Returns the moments of all examples, from those of each client, leaves [M, ...].

    The sum over mu_ck mu_ck' is computed around mu_c, which is equivalent and loses less precision
    by cancellation.
    """
    N = jnp.sum(moments.N, 0)  # [K]
    mu = einsum("mk,mkd->kd", moments.N, moments.mu) / jnp.maximum(N, 1)[:, None]
    away = moments.mu - mu
    between = einsum("mk,mkd,mke->kde", moments.N, away, away)
    within = einsum("mk,mkde->kde", jnp.maximum(moments.N - 1, 0), moments.Sigma)
    return Moments(N, mu, (within + between) / jnp.maximum(N - 1, 1)[:, None, None])


def virtual_features(key: Array, moments: Moments, count: int) -> Array:
    """Draws n = `count` virtual features of each class, z = mu + Sigma^1/2 e: [K, n, D].

    Sigma^1/2 is the symmetric root, because a covariance of few examples has no Cholesky factor.
    """
    lam, V = jnp.linalg.eigh(moments.Sigma)
    root = jnp.matmul(V * jnp.sqrt(jnp.maximum(lam, 0))[:, None], V.mT, precision="highest")
    e = jax.random.normal(key, (len(lam), count, lam.shape[1]))
    return moments.mu[:, None] + jnp.matmul(e, root, precision="highest")


def calibrated(w: Weights, z: Array, there: Array, lr: float, steps: int) -> Weights:
    """Returns w with its head trained on virtual features.

    z: [K, n, D] the features.
    there: [K] bool, the classes that have examples.
    """
    K, count, D = z.shape
    y = jnp.repeat(jnp.arange(K), count)
    batch = Batch(z.reshape(K * count, D), y, there[y].astype(jnp.float32))
    return with_trained_head(w, batch, optim.sgd(lr, 0.9), steps)
