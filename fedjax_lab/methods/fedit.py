"""FedIT (Zhang et al., 2023, arXiv:2305.05644): FedAvg of low-rank adapters (LoRA).

  send    A_t, B_t
  local   (A_i, B_i) <- SGD on F_i from (A_t, B_t)
  server  A_{t+1} = sum_i n_i/n A_i,  B_{t+1} = sum_i n_i/n B_i      (L5)

The mean of the factors is not the mean of the updates: A_{t+1} B_{t+1} differs from
sum_i n_i/n A_i B_i. Other weights that are trained, such as a head, are averaged too. The method is
FedAvg of a model with adapters (config.adapter.name=lora), so that `fedprox`, `scaffold` and other
methods are also methods for adapters.
"""

from fedjax_lab.methods import _factors as factors
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task


@checked("method")
def fedit(task: Task) -> Method:
    """FedAvg, for a model with adapters."""
    factors.adapters_of(task)
    return fedavg(task)  # L5
