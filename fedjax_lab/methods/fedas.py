"""FedAS (Yang, Huang, Ye, CVPR 2024), pages 11986 to 11995 of the proceedings.

  send    b_t, the body
  local   b <- SGD on sum_c mean_{x of class c} mean_d (b(x) - P_ic)^2 from b_t
          (b_i, h_i) <- SGD on F_i from (b, h_i)
          T_i = n_i mean ||grad F||^2 at (b_i, h_i)
  server  b_{t+1} = sum_i T_i b_i / sum_j T_j

P_ic is the mean of the features of class c by the client's last model, whose head h_i stays on the
client; sums over classes are over a batch. The alignment makes `align_epochs` passes with a
learning rate of its own. T_i stands for the trace of the Fisher information; as in the authors'
code its gradients are those of the mean losses of batches, in evaluation mode, and the sum over
batches grows with n_i. A client predicts with its last model, as in the code; the first one is the
first global model.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, optim, tree, wire
from fedjax_lab.methods.fedavg import send
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.methods.fedproto import prototypes
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Array, Batch, Exchange, Method, State, Task

RANGES = {"align_lr": log_uniform(1e-3, 0.1)}


@checked("method")
def fedas(task: Task, *, align_lr: float = 0.01, align_epochs: int = 1) -> Method:
    """align_lr: learning rate of the alignment. align_epochs: its passes in a round; 0: none."""
    in_head, K, risk = tree.within((task.head,)), task.num_classes, losses.risk(task)
    sgd = optim.sgd(align_lr)

    def in_body(name):
        return not in_head(name)

    def init(key, num_clients):
        w = task.init(key)
        return State(tree.split(in_head, w)[1], tree.repeat(w, num_clients))

    def local(b_t, client, work):
        last = client.private
        P, _ = prototypes(lambda x: task.apply(last, x).features, K, client, work)

        def align(w, batch, key):
            out = task.apply(w, batch.x, key, batch.mask)
            return distance(out.features, P, batch), out

        def squared(batch):
            return tree.sq_norm(jax.grad(lambda w: risk(w, batch, None)[0], allow_int=True)(w))

        w = tree.join(b_t, tree.split(in_head, last)[0])
        w = work.train(w, align, epochs=align_epochs, optimizer=sgd, only=in_body)
        w = work.train(w, risk)
        T = client.n * work.mean(squared)
        return (tree.split(in_head, w)[1], T), w

    def step(b_t, uploads, cohort):
        b, T = uploads
        return tree.mix(T / jnp.maximum(jnp.sum(T), 1e-30), b)

    return partly_private(task, in_head)._replace(
        init=init,
        round=(Exchange(send, local, step, updates=updates),),
        predict=lambda nothing, client, x: task.apply(client.private, x).logits,
        scored=lambda server, id: (),
    )


def updates(b_t, id, upload):
    """Marks the body as an update of b_t, and T_i as none."""
    b, T = upload
    return wire.model_references(b_t, b), wire.kept(T)


def distance(h: Array, P: Array, batch: Batch) -> Array:
    """Returns the sum over a batch's classes of the mean squared distances of h [B, D] to P."""
    member = jax.nn.one_hot(batch.y, len(P)) * batch.mask[:, None]  # [B, K]
    each = jnp.mean((h - P[batch.y]) ** 2, -1)
    return jnp.sum(each @ member / jnp.maximum(jnp.sum(member, 0), 1))
