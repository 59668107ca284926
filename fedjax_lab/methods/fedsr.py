"""FedSR (Nguyen et al., NeurIPS 2022): stochastic features with small norms, alike across clients.

  send    w_t, encoder and classifier
  local   z = mu(x) + sigma(x) xi, xi ~ N(0, I), sigma = softplus(s(x))
          SGD on CE(z) + l2r R_2 + cmi R_c
          R_2 = mean ||z||;  R_c = mean KL( N(c mu, (c sigma)^2) || N(r_mu[y], r_sigma[y]^2) )
  server  as FedAvg; r_mu, r_sigma and c stay with the client
  predict mean of softmax over 20 draws of z, with the same xi for all examples and clients

mu is the input of the model's head, and s is a second layer like the dense layer before it (if
there is none, a dense layer on mu). R_2 is that of the authors' code; with l2r_power=2 the norm is
squared. Running statistics are averaged as well.
proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, streams, tree
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Method, Output, Task, Weights

RANGES = {"l2r": log_uniform(1e-3, 0.1), "cmi": log_uniform(1e-4, 1e-2)}

SAMPLES = 20  # draws of z for a prediction


class Representation(NamedTuple):
    """The distributions of the features of a batch."""

    mu: Array  # [B, D]
    sigma: Array  # [B, D]
    stats: dict


@checked("method")
def fedsr(
    task: Task, *, l2r: float = 0.01, cmi: float = 1e-3, l2r_power: Literal[1, 2] = 1
) -> Method:
    """l2r: weight of R_2. cmi: weight of R_c. l2r_power: the power of ||z|| in R_2, 1 or 2."""
    layer = task.dense[-2] if len(task.dense) > 1 else task.head
    _ = task.head

    def loss(w, batch, key):
        mu, sigma, stats = represent(task, layer, w, batch.x, key, batch.mask)
        z = mu + sigma * jax.random.normal(streams.extra(key), mu.shape)
        logits = classify(task, w, batch.x, z)
        R_2 = losses.masked_mean(length(z) if l2r_power == 1 else jnp.sum(z * z, -1), batch.mask)
        R_c = losses.masked_mean(divergence(mu, sigma, w.params["prior"], batch.y), batch.mask)
        value = losses.cross_entropy(logits, batch) + l2r * R_2 + cmi * R_c
        return value, Output(logits, z, stats)

    def private(name):
        return name.startswith("params/prior/")

    stochastic = task._replace(
        init=partial(first_weights, task, layer), apply=partial(expect, task, layer)
    )
    method = partly_private(stochastic, private, lambda w, work: work.train(w, loss))
    return method._replace(newcomer=lambda state: (state.server, tree.take(state.private, 0)))


def first_weights(task: Task, layer: str, key: Array) -> Weights:
    """Returns the first weights of all parts.

    net is the task's model; spread is the layer s; prior is r_mu, r_sigma before softplus, and
    log c.
    """
    net = task.init(key)
    k_kernel, k_bias = jax.random.split(streams.extra(key))
    n, D = tree.at(net.params, layer)["kernel"].shape[-2:]  # layers of a loop are stacked
    D = n if layer == "head" else D
    spread = first_affine(k_kernel, k_bias, n, D)
    classes = (task.num_classes, D)
    prior = {"mu": jnp.zeros(classes), "sigma": jnp.ones(classes), "log_c": jnp.float32(0)}
    return Weights({"net": net.params, "spread": spread, "prior": prior}, net.stats)


def represent(
    task: Task,
    layer: str,
    w: Weights,
    x: Array,
    key: Array | None = None,
    mask: Array | None = None,
) -> Representation:
    """Returns mu and sigma of a batch x [B, ...]; a key means training mode."""
    net = Weights(w.params["net"], w.stats)
    before = task.apply_at(layer, net, x, None, key, mask)
    mu = before.features
    if layer != "head":
        mu = task.apply_at(layer, net, x, before.features, key, mask).features
    s = affine(w.params["spread"], before.features)
    return Representation(mu, jax.nn.softplus(s), before.stats)


def classify(task: Task, w: Weights, x: Array, z: Array) -> Array:
    """Returns the head's logits [B, K] of z [B, D]."""
    return task.apply_at("head", Weights(w.params["net"], w.stats), x, z).logits


def expect(task: Task, layer: str, w: Weights, x: Array) -> Output:
    """Returns the mean prediction over draws of z."""
    mu, sigma, stats = represent(task, layer, w, x)
    xi = jax.random.normal(jax.random.key(0), (SAMPLES, *mu.shape[1:]))
    p = jax.vmap(lambda xi: jax.nn.softmax(classify(task, w, x, mu + sigma * xi)))(xi)
    return Output(jnp.log(jnp.mean(p, 0) + 1e-30), mu, stats)


def length(z: Array) -> Array:
    """Returns the norms [B] of the rows of z [B, D], with a finite gradient at 0."""
    return jnp.sqrt(jnp.maximum(jnp.sum(z * z, -1), 1e-24))


def divergence(mu: Array, sigma: Array, prior: dict, y: Array) -> Array:
    """Returns KL( N(c mu, (c sigma)^2) || r(.|y) ) [B], summed over dimensions, from [B, D]."""
    c = jnp.exp(prior["log_c"])
    r_mu, r_sigma = prior["mu"][y], jax.nn.softplus(prior["sigma"])[y]
    ratio = ((c * sigma) ** 2 + (c * mu - r_mu) ** 2) / (2 * r_sigma**2)
    return jnp.sum(jnp.log(r_sigma) - jnp.log(c * sigma) + ratio - 0.5, -1)
