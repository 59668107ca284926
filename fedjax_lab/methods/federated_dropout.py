"""Federated Dropout (Caldas et al. 2018, arXiv:1812.07210): random parts of a model.

  send    the weights of W_t in the client's part m_i
  local   w_i <- SGD on F_i from m_i W_t, whose hidden layers have ceil(rho_i n) random channels
  server  W_{t+1} = sum_i m_i w_i / sum_i m_i, entry by entry; W_t where nobody has the entry

rho_i is the client's capacity (config.partition.capacity). The channels are drawn anew for each
client in each round. The paper also compresses messages, which is a transform here. A client is
scored with a part of its size, and a new client with the whole model.
"""

from typing import Literal

import jax

from fedjax_lab.methods._submodels import Rule, submodel_fedavg
from fedjax_lab.models.parts import number
from fedjax_lab.ranges import checked
from fedjax_lab.types import Array, Method, Task


def drawn(rho: Array, key: Array, id: Array, i: int, n: int) -> Array:
    """Random units of group i."""
    key = jax.random.fold_in(jax.random.fold_in(key, id), i)
    return jax.random.permutation(key, n) < number(rho, n)


RULE = Rule(drawn, lambda key: jax.random.fold_in(key, 3), lambda key: jax.random.fold_in(key, 0))


@checked("method")
def federated_dropout(
    task: Task,
    *,
    weights: Literal["uniform", "size"] = "uniform",
    scaler: bool = False,
    masked_loss: bool = False,
) -> Method:
    """weights: of the clients that have an entry, in its mean: uniform, or size.

    scaler, masked_loss: as in `heterofl`.
    """
    return submodel_fedavg(task, RULE, weights=weights, scaler=scaler, masked_loss=masked_loss)
