"""FedBABU (Oh, Kim, Yun, ICLR 2022, arXiv:2106.06042): the head keeps its first weights.

  send    phi_t, the body
  local   phi_i <- SGD on F_i(phi, h) from phi_t; the head h is never trained
  server  phi_{t+1} = sum_i n_i/n phi_i

All clients have the same first head, so that it does not have to be sent. Before a client is
scored, it fine-tunes the model on its own data; the result is not kept. The global test set is
scored with the body and the first head. The paper's mean is also by size. The model without its
head is sent each way.
"""

from typing import Literal

from fedjax_lab import losses, tree
from fedjax_lab.methods.fedper import head, partly_private
from fedjax_lab.ranges import checked, choice
from fedjax_lab.simulation.client_work import everything
from fedjax_lab.types import Method, Task

RANGES = {"tune_epochs": choice(1, 2, 5), "tuned": choice("all", "body", "head")}


@checked("method")
def fedbabu(
    task: Task,
    *,
    head_layers: int = 1,
    tune_epochs: int = 5,
    tuned: Literal["all", "body", "head"] = "all",
) -> Method:
    """head_layers: the head is this number of last dense layers, with all layers after them.

    tune_epochs: passes over the client's data before it is scored; 0: no fine-tuning.
    tuned: the part of the model that these passes train: all, body or head.
    """
    risk = losses.risk(task)
    in_head = tree.within(head(task, head_layers))

    def in_body(name):
        return not in_head(name)

    def train(w, work):
        return work.train(w, risk, only=in_body)

    def tune(body, client, work):
        w, only = tree.join(body, client.private), {"body": in_body, "head": in_head}
        w = work.train(w, risk, only=only.get(tuned, everything), epochs=tune_epochs)
        private, shared = tree.split(in_head, w)
        return shared, private

    def newcomer(state):
        return state.server, tree.take(state.private, 0)

    method = partly_private(task, in_head, train)
    return method._replace(tune=tune, newcomer=newcomer)
