"""HeteroFL (Diao, Ding, Tarokh, ICLR 2021, arXiv:2010.01264): clients train narrower models.

  send    the weights of W_t in the client's part m_i
  local   w_i <- SGD on F_i from m_i W_t, whose hidden layers have the first ceil(rho_i n) channels
  server  W_{t+1} = sum_i m_i w_i / sum_i m_i, entry by entry; W_t where nobody has the entry

rho_i is the client's capacity (config.partition.capacity), which it keeps in all rounds, or one
drawn in each round (`dynamic`). The paper's mean is uniform. Its scaler divides the output of each
hidden layer by rho_i in training, before a normalization. It is off by default here, and so is its
static batch norm (`_static_norm.py`), without which running statistics are averaged like weights,
over the clients that have the channel. A client is scored with its own part, and a new client with
the whole model.
"""

from typing import Literal

from fedjax_lab.methods._submodels import Rule, submodel_fedavg
from fedjax_lab.models.parts import window
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task

RULE = Rule(lambda rho, state, id, i, n: window(rho, 0, n))


@checked("method")
def heterofl(
    task: Task,
    *,
    weights: Literal["uniform", "size"] = "uniform",
    scaler: bool = False,
    masked_loss: bool = False,
    dynamic: bool = False,
    static_norm: bool = False,
) -> Method:
    """weights: of the clients that have an entry, in its mean: uniform, or size.

    scaler: whether outputs of layers are divided by rho in training.
    masked_loss: whether logits of classes that a client lacks are 0 in training; the weights of
    these classes are then averaged over the other clients.
    dynamic: whether a client trains with a random one of the run's capacities in each round; its
    own then only says with which part it is scored, and how many bytes are counted.
    static_norm: whether the clients of a round compute the statistics of BatchNorm after training,
    for each level, instead of keeping running ones in training. They then get the model again.
    """
    return submodel_fedavg(
        task,
        RULE,
        weights=weights,
        static_norm=static_norm,
        scaler=scaler,
        masked_loss=masked_loss,
        dynamic=dynamic,
    )
