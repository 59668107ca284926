"""FedGH (Yi et al., ACM MM 2023, arXiv:2303.13137): the server trains the head on prototypes.

  send    phi, the global head
  local   (body_i, phi_i) <- SGD on F_i from (body_i, phi)
          v_ic = mean of the features over the client's examples of class c
  server  phi <- phi - server_lr grad mean CE(phi; v_ic, c), server_steps times

Bodies stay on the clients; all start from the same one. Features are computed in evaluation mode
after the training. The paper's server makes a step for each v_ic in turn; here every step uses all
of them, so that their order does not matter. A client receives the head and sends K (D + 1)
numbers, for K classes and D features; no model is sent.
"""

import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, tree, wire
from fedjax_lab.methods import _heads
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.methods.fedproto import prototypes
from fedjax_lab.ranges import checked, choice, log_uniform
from fedjax_lab.types import Batch, Exchange, Method, Task, Weights

RANGES = {"server_lr": log_uniform(0.01, 1.0), "server_steps": choice(1, 5, 10, 20)}


@checked("method")
def fedgh(task: Task, *, server_lr: float = 0.1, server_steps: int = 10) -> Method:
    """server_lr: the learning rate at which the server trains the head.

    server_steps: the steps of the server in a round; with 0 the head keeps its first weights.
    """
    in_head, K = tree.within((task.head,)), task.num_classes
    method = partly_private(task, lambda name: not in_head(name))
    (plain,) = method.round

    def local(phi, client, work):
        trained, body = plain.local(phi, client, work)
        w = tree.join(trained, body)
        return prototypes(lambda x: task.apply(w, x).features, K, client, work), body

    def step(phi, uploads, cohort):
        v, has = uploads  # [M, K, D], [M, K]
        y = jnp.tile(jnp.arange(K), len(v))
        batch = Batch(v.reshape(len(y), -1), y, has.ravel())
        return with_trained_head(phi, batch, optim.sgd(server_lr), server_steps)

    def updates(phi, id, upload):
        v, has = upload
        return wire.itself(v), wire.kept(has)

    return method._replace(round=(Exchange(plain.send, local, step, updates=updates),))


def with_trained_head(
    w: Weights, batch: Batch, optimizer: optax.GradientTransformation, steps: int
) -> Weights:
    """Returns w with its head trained for `steps` steps on all features of a batch, x [B, D]."""

    def loss(head, _):
        return losses.cross_entropy(_heads.logits(head, batch.x), batch)

    head = w.params["head"]
    head, _ = optim.minimize(optimizer, loss, (head, optimizer.init(head)), steps)
    return _heads.with_head(w, head)
