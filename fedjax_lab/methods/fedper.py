"""FedPer (Arivazhagan et al., 2019, arXiv:1912.00818): a shared body, a private head.

  send    w_S^t
  local   (w_S,i, w_P,i) <- SGD on F_i from (w_S^t, w_P,i)
  server  w_S^{t+1} = sum_i n_i/n w_S,i          only the shared part is averaged

Running statistics are shared or private like the layer that they belong to.
"""

from collections.abc import Callable

from fedjax_lab import losses, sampling, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedavg import aggregate, send
from fedjax_lab.ranges import checked
from fedjax_lab.types import Exchange, Method, State, Task


@checked("method")
def fedper(task: Task, *, head_layers: int = 1) -> Method:
    """head_layers: the head is this number of last dense layers, with all layers after them."""
    return partly_private(task, tree.within(head(task, head_layers)))


def head(task: Task, head_layers: int) -> tuple[str, ...]:
    """Returns the layers of the head: from the head_layers-th last dense layer to the end.

    Raises BadInput if the model has too few dense layers, or no layer remains for the body.
    """
    _ = task.head
    if not 1 <= head_layers <= len(task.dense):
        raise BadInput(
            f"config.method.head_layers must be from 1 to {len(task.dense)}, the number of dense"
            f" layers of the model, got {head_layers}"
        )
    layers = task.layers[task.layers.index(task.dense[-head_layers]) :]
    if layers == task.layers:
        raise BadInput(f"config.method.head_layers={head_layers} leaves no layer for the body")
    return layers


def partly_private(task: Task, private: Callable[[str], bool], train=None) -> Method:
    """FedAvg of a part of the model; the other part stays on the client.

    private: the name of a leaf, such as 'params/head/kernel' -> whether it stays on the client.
    train: (w, work) -> w, the local training; None: plain SGD.
    """
    risk = losses.risk(task)
    train = train or (lambda w, work: work.train(w, risk))

    def init(key, num_clients):
        kept, shared = tree.split(private, task.init(key))
        return State(shared, tree.repeat(kept, num_clients))

    def local(shared, client, work):
        w = train(tree.join(shared, client.private), work)
        kept, shared = tree.split(private, w)
        return shared, kept

    def predict(shared, client, x):
        return task.apply(tree.join(shared, client.private), x).logits

    return Method(
        init=init,
        round=(Exchange(send, local, aggregate),),
        predict=predict,
        newcomer=None,
        sample=sampling.by_size,
    )
