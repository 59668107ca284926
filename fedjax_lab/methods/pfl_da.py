"""PFL-DA (Shi and Kontar, Technometrics 2023, doi:10.1080/00401706.2022.2157882).

  send    phi, the global head
  local   phi_i <- SGD on F_i(b_i, phi_i) + lam ||phi_i - phi||
          (b_i, phi) <- SGD on F_i(b_i, phi)
  server  phi <- sum_i n_i/n of the trained phi

The body b_i and the head phi_i stay on the client, which predicts with them; phi_i starts as the
first phi. Each line makes config.local.epochs passes. The paper was not at hand: the formulas are
those of PFLlib, in which the norm has no gradient, so that its lam has no effect; here it has one.
"""

import jax.numpy as jnp
import optax

from fedjax_lab import losses, sampling, tree
from fedjax_lab.methods.fedavg import aggregate, send
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Exchange, Method, State, Task

RANGES = {"lam": log_uniform(1e-3, 1.0)}


@checked("method")
def pfl_da(task: Task, *, lam: float = 0.1) -> Method:
    """lam: weight of the distance between the client's head and the global one."""
    in_head, risk = tree.within((task.head,)), losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        return State(tree.split(in_head, w)[0], tree.repeat(w, num_clients))

    def local(phi, client, work):
        def near(w, batch, key):
            value, out = risk(w, batch, key)
            away = optax.tree.sub(tree.split(in_head, w)[0].params, phi.params)
            return value + lam * jnp.sqrt(tree.sq_norm(away) + 1e-12), out

        w = work.train(client.private, near, only=in_head)
        phi_i, b_i = tree.split(in_head, w)
        new_phi, b_i = tree.split(in_head, work.train(tree.join(phi, b_i), risk))
        return new_phi, tree.join(phi_i, b_i)

    return Method(
        init=init,
        round=(Exchange(send, local, aggregate),),
        predict=lambda phi, client, x: task.apply(client.private, x).logits,
        newcomer=None,
        sample=sampling.by_size,
    )
