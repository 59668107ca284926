"""FedAH (Zhou et al., 2024, arXiv:2412.01295): an aggregated head.

  send    b_t, the body;  h_t, the head
  local   W_i <- clip(W_i - eta grad_W F_i(b_t, h), 0, 1),  h = h_i + (h_t - h_i) W_i
          h_i <- SGD on F_i from h, with b_t fixed
          b_i <- SGD on F_i from b_t, with h_i fixed
  server  (b_{t+1}, h_{t+1}) = sum_i n_i/n (b_i, h_i)

This is FedRep whose head starts from a mixture of the client's own head and the global one, with a
weight for each entry as in FedALA. W_i starts at 1 and stays on the client, as does h_i; it is
learned in one pass of a round. FL-bench's code is followed where the paper is brief; but a client
predicts with the body that it receives and its last h_i, as in FedRep, whereas FL-bench mixes h_i
and h_t anew before it scores.
"""

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.methods import _heads
from fedjax_lab.methods._personal import with_personal_models
from fedjax_lab.methods.fedala import learn
from fedjax_lab.ranges import checked, choice, log_uniform
from fedjax_lab.types import Method, Task

RANGES = {"eta": log_uniform(0.01, 10.0), "head_epochs": choice(1, 2, 5)}


@checked("method")
def fedah(task: Task, *, eta: float = 1.0, head_epochs: int = 1) -> Method:
    """eta: the learning rate of W_i. head_epochs: passes of a round that train the head."""
    in_head, risk = tree.within((task.head,)), losses.risk(task)

    def start(w):
        return w.params["head"], jax.tree.map(jnp.ones_like, w.params["head"])

    def local(w_t, client, work):
        h_i, W_i = client.private
        h_t = w_t.params["head"]

        def mixed(W):
            return _heads.with_head(w_t, jax.tree.map(lambda a, b, c: a + (b - a) * c, h_i, h_t, W))

        W_i = learn(work, lambda W, *at: risk(mixed(W), *at), W_i, eta, 1.0, 1)
        w = work.train(mixed(W_i), risk, only=in_head, epochs=head_epochs)
        w = work.train(w, risk, only=lambda name: not in_head(name))
        return w, (w.params["head"], W_i)

    return with_personal_models(
        task, local, start, model=lambda w, private: _heads.with_head(w, private[0])
    )
