"""FedSA-LoRA (Guo et al., ICLR 2025, arXiv:2410.01463): a shared A, a private B.

  send    A_t
  local   (A_i, B_i) <- SGD on F_i from (A_t, B_i)
  server  A_{t+1} = sum_i n_i/n A_i      (L7)

As in the authors' code, a trained head also stays on the client; so do all weights besides A.
"""

from fedjax_lab.methods import _factors as factors
from fedjax_lab.methods.fedper import partly_private
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task


@checked("method")
def fedsa_lora(task: Task) -> Method:
    """FedAvg of A; everything else that is trained stays on the client."""
    factors.adapters_of(task)
    return partly_private(task, lambda name: not factors.is_a(name))  # L7
