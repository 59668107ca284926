"""Central training: one model on the union of all clients' data, the usual upper bound.

w <- SGD on F, the risk over everybody's examples; `epochs` passes a round
"""

from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.types import Method, Task


def central(task: Task) -> Method:
    """FedAvg of a single client that holds everything."""
    return fedavg(task)._replace(pooled=True)
