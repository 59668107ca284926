"""GPFL (Zhang et al., ICCV 2023, arXiv:2308.10279): generic and personalized features.

  send    w_t: the body f, the embeddings E_c of the classes, the valve
  local   (f, E, valve, phi_i) <- SGD on CE(phi_i h_P, y) + CE(cos(h_G, E), y)
              + lam ||h_G - sg(E_y)|| + mu/2 (||E||^2 + ||valve||^2)
          h_P = valve(f(x), p_i),  p_i = sum_c n_ic/n_i E_c;  h_G = valve(f(x), mean_c E_c)
  server  w_{t+1} = sum_i n_i/n w_i

valve(h, c) = relu((1 + gamma(c)) h + beta(c)), where gamma and beta are dense layers with relu and
layer normalization. p_i, mean_c E_c and sg(E_y) are those of the E that the client receives; the
authors' code computes the first two from the client's E before it is replaced. ||h_G - sg(E_y)|| is
a mean over examples as in the paper; the code has the norm of the whole batch. The head phi_i stays
on the client. The defaults are those of the authors' command for small networks; the mean of the
norm is smaller than the code's.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, streams, tree
from fedjax_lab.methods import _heads
from fedjax_lab.methods.fedavg import aggregate, send
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Exchange, Method, PyTree, Task

RANGES = {"lam": log_uniform(1e-4, 1.0), "mu": log_uniform(1e-3, 1.0)}


@checked("method")
def gpfl(task: Task, *, lam: float = 0.01, mu: float = 0.1) -> Method:
    """lam: weight of the distance to the embedding of the class. mu: decay of E and the valve."""
    K, in_head = task.num_classes, tree.within((task.head,))

    def init(key):
        w = task.init(key)
        D = w.params["head"]["kernel"].shape[0]
        return w._replace(params={**w.params, "generic": first_parts(streams.extra(key), K, D)})

    def personal(client, E):
        return client.label_count / client.n @ E

    def local(shared, client, work):
        E_t = shared.params["generic"]["E"]
        p_i, g = personal(client, E_t), jnp.mean(E_t, 0)

        def loss(w, batch, key):
            out, parts = task.apply(w, batch.x, key, batch.mask), w.params["generic"]
            h_P, h_G = (opened(parts, out.features, c) for c in (p_i, g))
            value = losses.cross_entropy(_heads.logits(w.params["head"], h_P), batch)
            cosines = losses.unit(h_G) @ losses.unit(parts["E"]).T  # [B, K]
            value += losses.cross_entropy(cosines, batch)
            away = jnp.sqrt(jnp.sum((h_G - E_t[batch.y]) ** 2, -1) + 1e-12)
            value += lam * losses.masked_mean(away, batch.mask)
            return value + mu / 2 * tree.sq_norm(parts), out

        w = work.train(tree.join(shared, client.private), loss)
        phi_i, shared = tree.split(in_head, w)
        return shared, phi_i

    def predict(shared, client, x):
        parts, w = shared.params["generic"], tree.join(shared, client.private)
        h_P = opened(parts, task.apply(w, x).features, personal(client, parts["E"]))
        return _heads.logits(w.params["head"], h_P)

    method = partly_private(task._replace(init=init), in_head)
    return method._replace(round=(Exchange(send, local, aggregate),), predict=predict)


def first_parts(key: Array, K: int, D: int) -> PyTree:
    """Returns the first E [K, D] and valve."""
    k_E, *keys = jax.random.split(key, 5)
    layers = (first_affine(keys[i], keys[i + 1], D, D) for i in (0, 2))
    gamma, beta = ({"dense": layer, "norm": _heads.first_norm(D)} for layer in layers)
    return {"E": jax.random.normal(k_E, (K, D)), "gamma": gamma, "beta": beta}


def opened(parts: PyTree, h: Array, condition: Array) -> Array:
    """Returns valve(h, c) [B, D] of features h [B, D] and a condition c [D]."""

    def branch(weights):
        return _heads.normalized(weights["norm"], jax.nn.relu(affine(weights["dense"], condition)))

    return jax.nn.relu((1 + branch(parts["gamma"])) * h + branch(parts["beta"]))
