"""FedALA (Zhang et al., AAAI 2023, arXiv:2212.01197): adaptive local aggregation.

  send    Theta
  local   W_i <- clip(W_i - eta grad_W F_i(Theta~), 0, 1),  Theta~ = Theta_i + (Theta - Theta_i) W_i
          Theta_i <- SGD on F_i from Theta~
  server  Theta <- sum_i n_i/n Theta_i

W_i has a weight for each parameter of the last `layers` layers; the other layers start from Theta.
All weights start at 1. W_i is learned on a random share of the client's data: in one pass per
round, and in `first_passes` passes in the client's second round, where the paper continues until
the losses vary little. In its first round a client starts from Theta. Before it is scored, a client
learns W_i for the Theta that it receives, and then predicts with Theta~. Running statistics are
those of Theta.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods._personal import with_personal_models
from fedjax_lab.ranges import PositiveShare, checked, choice, log_uniform
from fedjax_lab.types import Array, Method, PyTree, Task, Weights, Work

RANGES = {"layers": choice(1, 2, 3), "eta": log_uniform(0.01, 10.0)}


@checked("method")
def fedala(
    task: Task,
    *,
    layers: int = 1,
    eta: float = 1.0,
    share: PositiveShare = 0.8,
    first_passes: int = 10,
) -> Method:
    """layers: the number of last layers that are adapted; 0 is FedAvg.

    eta: the learning rate of W_i. share: the share of the client's data that W_i is learned from.
    first_passes: passes over that share in the second round that the client takes part in.
    """
    if not 0 <= layers <= len(task.layers):
        raise BadInput(f"config.method.layers must be from 0 to {len(task.layers)}, got {layers}")
    risk = losses.risk(task)
    top = tree.within(task.layers[len(task.layers) - layers :])

    def start(w):
        last = tree.split(top, w)[0].params
        return last, jax.tree.map(jnp.ones_like, last), jnp.int32(0)

    def adapt(w, private, work):
        """Returns Theta~ and W_i."""
        last, W, rounds = private
        upper, lower = (part.params for part in tree.split(top, w))

        def mixed(W):
            step = jax.tree.map(jnp.multiply, optax.tree.sub(upper, last), W)
            return w._replace(params=tree.join(tree.add(last, step), lower))

        if layers:
            passes = jnp.where(rounds == 0, 0, jnp.where(rounds == 1, first_passes, 1))
            W = learn(work, lambda W, *at: risk(mixed(W), *at), W, eta, share, passes)
        return mixed(W), W

    def local(w_t, client, work):
        *_, rounds = client.private
        w, W = adapt(w_t, client.private, work)
        w = work.train(w, risk)
        return w, (tree.split(top, w)[0].params, W, rounds + 1)

    def tune(w_t, client, work):
        return adapt(w_t, client.private, work)[0], client.private

    method = with_personal_models(task, local, start, model=lambda w, private: w)
    return method._replace(tune=tune, join=None)


def learn(work: Work, risk: Callable, W: PyTree, eta: float, share: float, passes: Array) -> PyTree:
    """Returns W_i after SGD on risk(W, batch, key), with a random share of each batch."""

    def loss(weights, batch, key):
        drawn = jax.random.bernoulli(streams.extra(key), share, batch.mask.shape)
        part = batch._replace(mask=batch.mask * drawn)
        value, out = risk(weights.params, part, key)
        return value, out._replace(stats={})

    def clipped(g, W):
        return jax.tree.map(lambda a, b: jnp.clip(a - eta * b, 0, 1) - a, W, g)

    return work.train(
        Weights(W, {}), loss, optimizer=optax.stateless(clipped), epochs=passes
    ).params
