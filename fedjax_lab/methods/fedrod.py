"""FedRoD (Chen and Chao, ICLR 2022, arXiv:2107.00778).

  send    theta, phi_G
  local   theta, phi_G <- SGD on CE(phi_G h + log n_i, y),  h = theta(x)      balanced softmax
          phi_i <- SGD on CE(sg(phi_G h) + phi_i sg(h), y)                    empirical risk
  server  theta, phi_G = sum_i n_i/n (theta_i, phi_G,i)

n_i is the number of the client's examples of each class, and sg stops gradients; each step
minimizes both losses. phi_i starts as a copy of phi_G and stays on the client. A client predicts
with phi_G h + phi_i h, and a new client, which has no phi_i, with phi_G h.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.methods.fedavg import aggregate, fedavg, send
from fedjax_lab.ranges import checked
from fedjax_lab.types import Exchange, Method, State, Task


@checked("method")
def fedrod(task: Task) -> Method:
    """The generic head is the model's head; the personal head is linear as well."""

    def init(key, num_clients):
        w = task.init(key)
        return State(w, tree.repeat(w.params[task.head], num_clients))

    def personal(phi_i, out):
        """Returns phi_G h + phi_i h."""
        return out.logits + out.features @ phi_i["kernel"] + phi_i.get("bias", 0.0)

    def local(w_t, client, work):
        prior = jnp.log(jnp.maximum(client.label_count, 1e-8))  # [K]

        def loss(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            generic = losses.cross_entropy(out.logits + prior, batch)
            stopped = jax.lax.stop_gradient(out)
            empirical = losses.cross_entropy(personal(w.params["personal"], stopped), batch)
            return generic + empirical, out

        both = w_t._replace(params={**w_t.params, "personal": client.private})
        w = work.train(both, loss)
        shared = {name: layer for name, layer in w.params.items() if name != "personal"}
        return w._replace(params=shared), w.params["personal"]

    def predict(w, client, x):
        return personal(client.private, task.apply(w, x))

    def newcomer(state):
        return state.server, tree.zeros(state.server.params["head"])

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, aggregate),),
        predict=predict,
        newcomer=newcomer,
    )
