"""CCVR (Luo et al., NeurIPS 2021, arXiv:2106.05001): the classifier is trained again at the end.

  1  train      FedAvg
  2  calibrate  one round of all clients, with features z of the model w
     send       w
     local      N_ck, mu_ck, Sigma_ck: number, mean and covariance of the z of class c
     server     mu_c = sum_k N_ck/N_c mu_ck
                Sigma_c = 1/(N_c - 1) (sum_k (N_ck - 1) Sigma_ck
                                       + sum_k N_ck mu_ck mu_ck' - N_c mu_c mu_c')
                SGD on the head of w, on as many z ~ N(mu_c, Sigma_c) of each class

The round of stage 2 is the last one of the run; no upload is lost in it. Each step of the server
sees all virtual features, with a momentum of 0.9. A class without examples has none. A client sends
D^2 numbers of each class.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, wire
from fedjax_lab.errors import check_positive
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedproto import sums_by_class
from fedjax_lab.ranges import choice, log_uniform
from fedjax_lab.types import Array, Batch, Exchange, Method, Stage, Stages, State, Task, Weights

RANGES = {"server_lr": log_uniform(1e-3, 1.0), "server_steps": choice(30, 100, 300)}


class Moments(NamedTuple):
    """Of the features of each class: of a client, or with a leading axis of a cohort."""

    N: Array  # [K] how many there are
    mu: Array  # [K, D]
    Sigma: Array  # [K, D, D]


def ccvr(
    task: Task, *, virtual: int = 200, server_lr: float = 0.1, server_steps: int = 100
) -> Stages:
    """virtual: how many features are drawn of each class.

    server_lr: the learning rate at which the server trains the head.
    server_steps: how many steps that training has.
    """
    check_positive("method.virtual", virtual)
    method = fedavg(task)

    def aggregate(w, moments, cohort):
        total = together(moments)
        z = virtual_features(cohort.key[0], total, virtual)  # [K, virtual, D]
        return calibrated(w, z, total.N > 0, server_lr, server_steps)

    exchange = Exchange(
        send=lambda w, id: w,
        local=lambda w, client, work: (moments_of(task, w, client, work), client.private),
        aggregate=aggregate,
        updates=lambda w, id, moments: wire.kept(moments),
        draws=True,
    )
    calibration: Method = method._replace(init=None, round=(exchange,), sample=sampling.all_clients)

    def start(key, num_clients, last, facts):
        return State(last.server, ())

    def stages(rounds):
        return (
            Stage("train", method, rounds - 1),
            Stage("calibrate", calibration, 1, start=start, reliable=True),
        )

    return stages


def moments_of(task: Task, w: Weights, client, work) -> Moments:
    """Those of one client."""
    N, K = client.label_count, task.num_classes

    def features(batch):
        return task.apply(w, batch.x).features

    def mean(fn, count):  # from the mean over examples to that over `count` of each class
        of_all = work.mean(fn)
        return of_all * (client.n / jnp.maximum(count, 1)).reshape(K, *(1,) * (of_all.ndim - 1))

    mu = mean(lambda batch: sums_by_class(features(batch), batch, K), N)
    return Moments(N, mu, mean(lambda batch: scatter(features(batch), batch, mu), N - 1))


def scatter(z: Array, batch: Batch, mu: Array) -> Array:
    """Sum by class of (z - mu_c)(z - mu_c)', over the number of examples: [K, D, D]."""
    away = z - mu[batch.y]
    member = jax.nn.one_hot(batch.y, len(mu)) * batch.mask[:, None]  # [B, K]
    share = member / jnp.maximum(jnp.sum(batch.mask), 1)
    full = jax.lax.Precision.HIGHEST
    return jnp.einsum("bk,bd,be->kde", share, away, away, precision=full)


def together(moments: Moments) -> Moments:
    """The moments of everybody's examples, from those of each client, leaves [M, ...].

    The sum over mu_ck mu_ck' is taken around mu_c, which is the same and cancels out less.
    """
    N = jnp.sum(moments.N, 0)  # [K]
    full = jax.lax.Precision.HIGHEST
    mu = jnp.einsum("mk,mkd->kd", moments.N, moments.mu, precision=full)
    mu = mu / jnp.maximum(N, 1)[:, None]
    away = moments.mu - mu
    between = jnp.einsum("mk,mkd,mke->kde", moments.N, away, away, precision=full)
    others = jnp.maximum(moments.N - 1, 0)
    within = jnp.einsum("mk,mkde->kde", others, moments.Sigma, precision=full)
    return Moments(N, mu, (within + between) / jnp.maximum(N - 1, 1)[:, None, None])


def virtual_features(key: Array, moments: Moments, count: int) -> Array:
    """So many of each class, z = mu + Sigma^1/2 e: [K, n, D].

    The root is the symmetric one: a covariance of few examples has no Cholesky factor.
    """
    lam, V = jnp.linalg.eigh(moments.Sigma)
    full = jax.lax.Precision.HIGHEST
    root = jnp.matmul(V * jnp.sqrt(jnp.maximum(lam, 0))[:, None], V.mT, precision=full)
    e = jax.random.normal(key, (len(lam), count, lam.shape[1]))
    return moments.mu[:, None] + jnp.matmul(e, root, precision=full)


def calibrated(w: Weights, z: Array, there: Array, lr: float, steps: int) -> Weights:
    """w with its head trained on features z [K, n, D] of the classes that are there [K]."""
    K, count, _ = z.shape
    x, y = z.reshape(K * count, -1), jnp.repeat(jnp.arange(K), count)
    batch = Batch(x, y, jnp.repeat(there.astype(jnp.float32), count))
    optimizer = optim.sgd(lr, 0.9)

    def loss(head):
        return losses.cross_entropy(x @ head["kernel"] + head.get("bias", 0.0), batch)

    def step(_, carry):
        head, moments = carry
        updates, moments = optimizer.update(jax.grad(loss)(head), moments, head)
        return optax.apply_updates(head, updates), moments

    head = w.params["head"]
    head, _ = jax.lax.fori_loop(0, steps, step, (head, optimizer.init(head)))
    return w._replace(params={**w.params, "head": head})
