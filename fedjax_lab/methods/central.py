"""Central training: one model on the union of all clients' data, the usual upper bound.

w <- SGD on F, the risk over all clients' examples; config.local.epochs passes per round
"""

from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task


@checked("method")
def central(task: Task) -> Method:
    """FedAvg with a single client that holds all examples."""
    return fedavg(task).having(pooled=True)
