"""FedBN (Li et al., ICLR 2021, arXiv:2102.07623).

  send    w_t without its normalisation layers
  local   SGD on F_i from (w_t, own normalisation layers)
  server  as FedAvg over every layer except normalisation   (Alg. 1)

Scale, shift and running statistics all stay on the client.
"""

from fedjax_lab.methods.fedper import fedper
from fedjax_lab.types import Method, Task


def fedbn(task: Task) -> Method:
    """FedPer whose private part is the normalisation layers, found by module type."""

    def is_norm(name):
        path = name.split("/", 1)[1]  # without 'params' or 'stats'
        return any(path.startswith(layer + "/") for layer in task.norm_layers)

    return fedper(task, is_norm)
