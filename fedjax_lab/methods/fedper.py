"""FedPer (Arivazhagan et al., 2019, arXiv:1912.00818): a shared base, a private rest.

send    w_S^t
local   (w_S,i, w_P,i) <- SGD on F_i from (w_S^t, w_P,i)
server  w_S^{t+1} = sum_i n_i/n w_S,i          only the shared part is averaged
"""

from collections.abc import Callable

from fedjax_lab import losses, sampling, tree
from fedjax_lab.methods.fedavg import aggregate, send
from fedjax_lab.types import Exchange, Method, State, Task


def is_head(name: str) -> bool:
    """The last layer of every classifier."""
    return name.startswith("params/head/")


def fedper(task: Task, private: Callable[[str], bool] = is_head) -> Method:
    """`private` says by its name ('params/head/kernel') which leaf stays on the client."""
    risk = losses.risk(task)

    def init(key, num_clients):
        mine, shared = tree.split(private, task.init(key))
        return State(shared, tree.repeat(mine, num_clients))

    def local(shared, client, work):
        w = work.train(tree.join(shared, client.private), risk)
        mine, shared = tree.split(private, w)
        return shared, mine

    def predict(shared, client, x):
        return task.apply(tree.join(shared, client.private), x).logits

    return Method(init, (Exchange(send, local, aggregate),), predict, None, sampling.by_size)
