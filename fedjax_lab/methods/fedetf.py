"""FedETF (Li et al., ICCV 2023, arXiv:2303.10058): a fixed simplex classifier, the same for all.

  send    w_t
  local   SGD on CE(beta V^T z + gamma log n_i, y),  z = p / ||p||, the projected features p
  server  as FedAvg

V is an equiangular tight frame: K vectors of length 1 with all cosines -1 / (K - 1). Here it has K
dimensions, as for LeNet in the authors' code, and the model's head is the projection; elsewhere the
authors project to as many dimensions as there are features. beta is learned; n_i counts the
client's examples by class, and predictions leave it out. The paper's second stage, in which a
client tunes projection and V in turn, is left out. With a first beta of 10 the digit domains are
not learned: beta is trained away before the features are.
"""

import math

import jax.numpy as jnp

from fedjax_lab import losses
from fedjax_lab.errors import check_positive
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import choice, uniform
from fedjax_lab.types import Array, Method, State, Task, Weights

RANGES = {"gamma": uniform(0.0, 1.0), "scale": choice(1.0, 5.0, 10.0)}


def fedetf(task: Task, *, gamma: float = 1.0, scale: float = 1.0) -> Method:
    """gamma: weight of the classes' counts, 0 is plain cross-entropy; scale: what the
    scale beta of the logits starts from.
    """
    check_positive("method.scale", scale)

    def init(key, num_clients):
        w = task.init(key)
        etf = {"scale": jnp.float32(scale)}
        return State(w._replace(params={**w.params, "etf": etf}), ())

    def classified(w: Weights, p: Array) -> Array:
        """beta V^T z [B, K] of the projected features p [B, K]."""
        return w.params["etf"]["scale"] * simplex(losses.unit(p))

    def local(w_t, client, work):
        prior = gamma * jnp.log(jnp.maximum(client.label_count, 1e-8))  # [K]

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            return losses.cross_entropy(classified(w, out.logits) + prior, batch), out

        return work.train(w_t, loss), client.private

    def predict(w, client, x):
        return classified(w, task.apply(w, x).logits)

    return fedavg(task, local)._replace(init=init, predict=predict)


def simplex(z: Array) -> Array:
    """V^T z of each row of z [B, K]: V = sqrt(K / (K - 1)) (I - 1/K) has columns of length 1."""
    K = z.shape[-1]
    return math.sqrt(K / (K - 1)) * (z - jnp.mean(z, -1, keepdims=True))
