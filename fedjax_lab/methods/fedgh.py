"""FedGH (Yi et al., ACM MM 2023, arXiv:2303.13137): the server trains the head on prototypes.

  send    phi, the global head
  local   (body_i, phi_i) <- SGD on F_i from (body_i, phi)
          v_ic = mean of the features over the client's examples of class c
  server  phi <- phi - server_lr grad mean CE(phi; v_ic, c), server_steps times

Bodies stay on the clients, which start from the same one. Features are taken in evaluation mode
after the training. The paper's server goes through the v_ic one after the other; here every step is
on all of them, so that their order does not matter.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import tree, wire
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.methods.fedproto import prototypes
from fedjax_lab.ranges import choice, log_uniform
from fedjax_lab.types import Array, Exchange, Method, Task

RANGES = {"server_lr": log_uniform(0.01, 1.0), "server_steps": choice(1, 5, 10, 20)}


def fedgh(task: Task, *, server_lr: float = 0.1, server_steps: int = 10) -> Method:
    """server_lr: the learning rate at which the server trains the head.

    server_steps: how many steps it makes in a round; 0 leaves the first head as it is.
    """
    in_head, K = tree.within(("head",)), task.num_classes
    method = partly_private(task, lambda name: not in_head(name))
    (plain,) = method.round

    def local(phi, client, work):
        trained, body = plain.local(phi, client, work)
        w = tree.join(trained, body)
        return prototypes(lambda x: task.apply(w, x).features, K, client, work), body

    def step(phi, uploads, cohort):
        v, has = uploads  # [M, K, D], [M, K]
        count, classes = jnp.maximum(jnp.sum(has), 1), jnp.broadcast_to(jnp.arange(K), has.shape)

        def loss(head) -> Array:
            logits = jnp.dot(v, head["kernel"], precision="highest") + head.get("bias", 0.0)
            ce = optax.softmax_cross_entropy_with_integer_labels(logits, classes)
            return jnp.sum(has * ce) / count

        def descend(_, head):
            return tree.add(head, jax.grad(loss)(head), -server_lr)

        head = jax.lax.fori_loop(0, server_steps, descend, phi.params["head"])
        return phi._replace(params={**phi.params, "head": head})

    def updates(phi, id, upload):
        v, has = upload
        return wire.itself(v), wire.kept(has)

    return method._replace(round=(Exchange(plain.send, local, step, updates=updates),))
