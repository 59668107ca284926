"""FedRolex (Alam et al., NeurIPS 2022, arXiv:2212.01548): windows of channels that move.

  send    the weights of W_t in the client's part m_i
  local   w_i <- SGD on F_i from m_i W_t, whose hidden layers have the channels
          (t + j) mod n, j = 0 .. ceil(rho_i n) - 1, of n
  server  W_{t+1} = sum_i m_i w_i / sum_i m_i, entry by entry; W_t where nobody has the entry

rho_i is the client's capacity (config.partition.capacity). The window of a layer moves by one
channel per round, so that each channel is trained equally often. A client is scored with the part
of the next round, and a new client with the whole model.
"""

from typing import Literal

import jax.numpy as jnp

from fedjax_lab.methods._submodels import Rule, submodel_fedavg
from fedjax_lab.models.parts import window
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task

RULE = Rule(
    of_group=lambda rho, t, id, i, n: window(rho, t, n),
    first=lambda key: jnp.int32(0),
    after=lambda t: t + 1,
)


@checked("method")
def fedrolex(
    task: Task,
    *,
    weights: Literal["uniform", "size"] = "uniform",
    scaler: bool = False,
    masked_loss: bool = False,
    static_norm: bool = False,
) -> Method:
    """weights: of the clients that have an entry, in its mean: uniform, or size.

    scaler, masked_loss, static_norm: as in `heterofl`.
    """
    return submodel_fedavg(
        task, RULE, weights=weights, scaler=scaler, masked_loss=masked_loss, static_norm=static_norm
    )
