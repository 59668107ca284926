"""FedBN (Li et al., ICLR 2021, arXiv:2102.07623).

  send    w_t without its BatchNorm layers
  local   SGD on F_i from (w_t, own BatchNorm layers)
  server  as FedAvg over every layer except BatchNorm

Scale, shift and running statistics all stay on the client. The authors' mean is uniform.
"""

from fedjax_lab import tree
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task


@checked("method")
def fedbn(task: Task) -> Method:
    """FedPer with the BatchNorm layers as the private part; they are recognized by module type."""
    return partly_private(task, tree.within(task.batch_norms))
