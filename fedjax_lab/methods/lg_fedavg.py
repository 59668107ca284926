"""LG-FedAvg (Liang et al., 2020, arXiv:2001.01523): a private body, a shared head.

  send    h_t, the head
  local   (l_i, h_i) <- SGD on F_i from (l_i, h_t)
  server  h_{t+1} = sum_i n_i/n h_i

The authors start from a model trained by FedAvg: with `pretrain_rounds`, the run begins with this
number of FedAvg rounds, which are part of config.run.rounds. Every client then starts from the
averaged body. Running statistics are shared or private like the layer that they belong to. The
authors' mean is uniform.
"""

from fedjax_lab import tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedper import head, partly_private
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Stage, Stages, State, Task


@checked("method")
def lg_fedavg(task: Task, *, head_layers: int = 1, pretrain_rounds: int = 0) -> Method | Stages:
    """head_layers: the head is this number of last dense layers, with all layers after them.

    pretrain_rounds: the number of first rounds, of config.run.rounds, that average the whole model.
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
