"""FedBN (Li et al., ICLR 2021, arXiv:2102.07623).

  send    w_t without its BatchNorm layers
  local   SGD on F_i from (w_t, own BatchNorm layers)
  server  as FedAvg over every layer except BatchNorm

Scale, shift and running statistics all stay on the client. The authors average uniformly.
"""

from fedjax_lab import tree
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.types import Method, Task


def fedbn(task: Task) -> Method:
    """FedPer whose private part is the BatchNorm layers, found by module type."""
    return partly_private(task, tree.within(task.batch_norms))
