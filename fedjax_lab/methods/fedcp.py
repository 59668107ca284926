"""FedCP (Zhang et al., KDD 2023, arXiv:2307.01217): a conditional policy separates features.

  send    w_t: the body f, the head g, the policy
  local   (f_i, g_i, policy) <- SGD on CE(g_i (r h) + g (s h), y) + lam MMD(h, f(x)),  h = f_i(x)
          (r, s) = softmax(relu(norm(W (h v_i / ||v_i||))) + noise),  v_i = sum_k of the rows of g_i
          upload f_i, the policy and (g_i + g) / 2
  server  w_{t+1} = sum_i n_i/n of the uploads

r h and s h are products by entry; r + s = 1 for each feature. g_i starts as a copy of the first g
and stays on the client; v_i is that of g_i before the training. The noise, of a Gumbel softmax, is
only added in training; the authors' code adds it in evaluations too. MMD is the squared maximum
mean discrepancy with the code's four Gaussian kernels. A client predicts with its own g_i and the
parts that it receives; a new client has g_i = g. The authors' command has lam=5 with small steps
without momentum; with larger steps the features collapse. The policy has D 2 D numbers, for D
features.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, streams, tree
from fedjax_lab.methods import _heads
from fedjax_lab.methods.fedavg import aggregate, fedavg, send
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Exchange, Method, PyTree, State, Task, Weights

RANGES = {"lam": log_uniform(0.01, 10.0)}
WIDTHS = 10.0, 15.0, 20.0, 50.0  # variances of the Gaussian kernels of MMD


@checked("method")
def fedcp(task: Task, *, lam: float = 0.1) -> Method:
    """lam: weight of MMD between the features of the client's body and of the shared one."""
    losses.check_classes(task)

    def init(key, num_clients):
        w = task.init(key)
        policy = first_policy(streams.extra(key), w.params[task.head]["kernel"].shape[0])
        server = w._replace(params={**w.params, "policy": policy})
        return State(server, tree.repeat(w.params["head"], num_clients))

    def local(w_t, client, work):
        g, v = w_t.params["head"], direction(client.private)

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            logits = separated(w, out.features, g, v, streams.extra(key))
            shared = task.apply(w_t, batch.x, key, batch.mask).features
            apart = discrepancy(out.features, shared, batch.mask)
            return losses.cross_entropy(logits, batch) + lam * apart, out

        w = work.train(_heads.with_head(w_t, client.private), loss)
        g_i = w.params["head"]
        half = optax.tree.scale(0.5, tree.add(g_i, g))
        return _heads.with_head(w, half), g_i

    def predict(w, client, x):
        personal = _heads.with_head(w, client.private)
        h = task.apply(w, x).features
        return separated(personal, h, w.params["head"], direction(client.private))

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, aggregate),),
        predict=predict,
        newcomer=lambda state: (state.server, state.server.params["head"]),
    )


def first_policy(key: Array, D: int) -> PyTree:
    """Returns the first policy for D features."""
    k_kernel, k_bias = jax.random.split(key)
    W = first_affine(k_kernel, k_bias, D, 2 * D)
    return {"W": W, "norm": _heads.first_norm(2 * D)}


def direction(g_i: PyTree) -> Array:
    """Returns v_i / ||v_i|| [D]."""
    return losses.unit(jnp.sum(g_i["kernel"], -1))


def selected(policy: PyTree, context: Array, key: Array | None = None) -> Array:
    """Returns r [B, D]; there is noise only with a key. context: [B, D]."""
    a = jax.nn.relu(_heads.normalized(policy["norm"], affine(policy["W"], context)))
    for_r, for_s = jnp.split(a, 2, -1)
    noise = 0.0 if key is None else jax.random.logistic(key, for_r.shape)  # of two Gumbel draws
    return jax.nn.sigmoid(for_r - for_s + noise)


def separated(w: Weights, h: Array, g: PyTree, v: Array, key: Array | None = None) -> Array:
    """Returns the logits g_i (r h) + g (s h) of features h [B, D], by the client's model w."""
    r = selected(w.params["policy"], h * v, key)
    return _heads.logits(w.params["head"], r * h) + _heads.logits(g, (1 - r) * h)


def discrepancy(a: Array, b: Array, mask: Array) -> Array:
    """Returns the squared maximum mean discrepancy of the rows of a and b [B, D], mask [B]."""
    rows = jnp.concatenate([a, b])
    signs = jnp.concatenate([mask, -mask]) / jnp.maximum(jnp.sum(mask), 1)
    squared = jnp.sum((rows[:, None] - rows) ** 2, -1)
    return signs @ sum(jnp.exp(-squared / (2 * width)) for width in WIDTHS) @ signs
