"""FedAvgM: FedAvg with server momentum (Hsu et al., 2019, arXiv:1909.06335).

  send    w_t
  local   as FedAvg
  server  Delta = w_t - sum_i n_i/n w_i;  v <- beta v + Delta
          w_{t+1} = w_t - (beta v + Delta), or w_t - v without Nesterov's momentum

The paper writes w - v, but its experiments use Nesterov's accelerated gradient, hence the default.
The momentum has no dampening, and the server has no learning rate. Running statistics are averaged
without momentum.
"""

import optax

from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedopt import with_server_optimizer
from fedjax_lab.ranges import Share, checked, uniform
from fedjax_lab.types import Method, Task

RANGES = {"beta": uniform(0.1, 1.0)}


@checked("method")
def fedavgm(task: Task, *, beta: Share = 0.9, nesterov: bool = True) -> Method:
    """beta: momentum of the server, in [0, 1]; 0 is FedAvg, with 1 the momentum never decays.

    nesterov: whether the momentum is Nesterov's.
    """
    return with_server_optimizer(fedavg(task), optax.sgd(1.0, momentum=beta, nesterov=nesterov))
