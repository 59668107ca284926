"""DFedAvgM (Sun, Li, Wang, IEEE TPAMI 2023, arXiv:2104.11375): decentralized FedAvg over a graph.

  local   z_i <- SGD with momentum on F_i from x_i
  mix     x_i <- sum_j W_ij z_j                    (Alg. 1), over the neighbors j and i itself

The momentum is that of config.local, and starts afresh in each round. The quantized version of the
paper is config.compression. On the complete graph all W_ij are 1/C, and the method is FedAvg of all
clients with equal shares. There is no server: it stands for the network, and sends each client its
new x_i. On the network itself a client receives the model of each neighbor instead. W has
Metropolis weights.
"""

from fedjax_lab import tree
from fedjax_lab.methods._graph import Degree, Graph, over_graph
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task


@checked("method")
def dfedavgm(task: Task, *, graph: Graph = "ring", degree: Degree = 4) -> Method:
    """graph: ring, torus, random (nearly regular) or complete.

    degree: the number of neighbors in a random graph, an even number.
    """

    def combine(W, x, z):
        return tree.mix(W, z)  # Alg. 1

    return over_graph(task, graph, degree, combine, "dfedavgm")
