"""FedETF (Li et al., ICCV 2023, arXiv:2303.10058): a fixed simplex classifier for all clients.

  send    w_t
  local   SGD on CE(beta V^T z + gamma log n_i, y),  z = p / ||p||, the projected features p
  server  as FedAvg

V is an equiangular tight frame: K vectors of length 1 with all pairwise cosines -1 / (K - 1). Here
V has K dimensions, as for LeNet in the authors' code, and the model's head is the projection; for
other models the authors project to as many dimensions as there are features. beta is learned. n_i
is the number of the client's examples of each class; predictions do not use it. The paper's second
stage, in which a client tunes projection and V in turn, is not implemented. With an initial beta of
10 the method does not learn the digit domains, because beta shrinks before the features are
learned.
"""

import math

import jax.numpy as jnp

from fedjax_lab import losses
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, checked, choice, uniform
from fedjax_lab.types import Array, Method, State, Task, Weights

RANGES = {"gamma": uniform(0.0, 1.0), "scale": choice(1.0, 5.0, 10.0)}


@checked("method")
def fedetf(task: Task, *, gamma: float = 1.0, scale: Positive[float] = 1.0) -> Method:
    """gamma: weight of the term log n_i; 0 is plain cross-entropy.

    scale: the initial value of beta, the scale of the logits.
    """

    def init(key, num_clients):
        w = task.init(key)
        etf = {"scale": jnp.float32(scale)}
        return State(w._replace(params={**w.params, "etf": etf}), ())

    def classified(w: Weights, p: Array) -> Array:
        """Returns beta V^T z [B, K] of the projected features p [B, K]."""
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
    """Returns V^T z of each row of z [B, K], where V = sqrt(K / (K - 1)) (I - 1/K)."""
    K = z.shape[-1]
    return math.sqrt(K / (K - 1)) * (z - jnp.mean(z, -1, keepdims=True))
