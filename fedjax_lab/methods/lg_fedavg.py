"""LG-FedAvg (Liang et al., 2020, arXiv:2001.01523): a private body, a shared head.

  send    h_t, the head
  local   (l_i, h_i) <- SGD on F_i from (l_i, h_t)
  server  h_{t+1} = sum_i n_i/n h_i

The authors start from a trained FedAvg model: `pretrain_rounds` of full averaging come first and
count as rounds. Every client then starts from the averaged body. Each part keeps the running
statistics of its layers. The authors average uniformly.
"""

from fedjax_lab import tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedper import head, partly_private
from fedjax_lab.types import Method, Stage, Stages, State, Task


def lg_fedavg(task: Task, *, head_layers: int = 1, pretrain_rounds: int = 0) -> Method | Stages:
    """head_layers: how many of the last dense layers, with what follows them, are the head.

    pretrain_rounds: of config.run.rounds, those in which the whole model is averaged.
    """
    in_head = tree.within(head(task, head_layers))
    method = partly_private(task, lambda name: not in_head(name))
    if pretrain_rounds == 0:
        return method

    def start(key, num_clients, last, facts):
        shared, body = tree.split(in_head, last.server)
        return State(shared, tree.repeat(body, num_clients))

    def stages(rounds):
        return (
            Stage("pretrain", fedavg(task), pretrain_rounds),
            Stage("train", method, rounds - pretrain_rounds, start=start),
        )

    return stages
