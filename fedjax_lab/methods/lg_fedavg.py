"""LG-FedAvg (Liang et al., 2020, arXiv:2001.01523): a private body, a shared head.

  send    the head
  local   (l_i, h_i) <- SGD on F_i from (l_i, h_t)
  server  h_{t+1} = sum_i n_i/n h_i

The authors start from a trained FedAvg model: `pretrain_rounds` of full averaging come first and
count as rounds. A client then starts from the averaged body. Each part keeps the running statistics
of its layers. The authors average uniformly.
"""

import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.methods.fedavg import aggregate, fedavg
from fedjax_lab.methods.fedper import head, partly_private
from fedjax_lab.types import Exchange, Method, State, Task


def lg_fedavg(task: Task, *, head_layers: int = 1, pretrain_rounds: int = 0) -> Method:
    """head_layers: how many of the last dense layers, with what follows them, are the head.

    With pretrain_rounds > 0 the messages of every round hold the whole model and are counted so.
    """
    in_head = tree.within(head(task, head_layers))

    def in_body(name):
        return not in_head(name)

    if pretrain_rounds == 0:
        return partly_private(task, in_body)
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        body, _ = tree.split(in_body, w)
        return State(
            (w, jnp.int32(0)), (tree.repeat(body, num_clients), jnp.zeros(num_clients, bool))
        )

    def own(message, client):
        """The client's model: its own body once it has trained one after the first rounds."""
        (w, _), (body, has_own) = message, client.private
        averaged, shared = tree.split(in_body, w)
        return tree.join(tree.where(has_own, body, averaged), shared)

    def local(message, client, work):
        w = work.train(own(message, client), risk)
        return w, (tree.split(in_body, w)[0], message[1] >= pretrain_rounds)

    def step(server, uploads, cohort):
        (w, t), mean = server, aggregate(None, uploads, cohort)
        (old_body, _), (body, shared) = tree.split(in_body, w), tree.split(in_body, mean)
        return tree.join(tree.where(t < pretrain_rounds, body, old_body), shared), t + 1

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(lambda server, id: server, local, step),),
        predict=lambda message, client, x: task.apply(own(message, client), x).logits,
        newcomer=None,
    )
