"""D-PSGD (Lian et al., NeurIPS 2017, arXiv:1705.09056): decentralized SGD over a graph.

  local   y_i <- SGD on F_i from x_i
  mix     x_i <- sum_j W_ij x_j + y_i - x_i        (Alg. 1), over the neighbors j and i itself

In the paper y_i - x_i is one gradient step, which is config.local.steps=1; here it is local
training, as in FedAvg. The clients train while they mix, so that x_i is the mean of models before
the step. Running statistics are mixed after training. There is no server: it stands for the
network, and sends each client its new x_i. On the network itself a client receives the model of
each neighbor instead. W has Metropolis weights.
"""

import optax

from fedjax_lab import tree
from fedjax_lab.methods._graph import Degree, Graph, over_graph
from fedjax_lab.ranges import checked
from fedjax_lab.types import Method, Task, Weights


@checked("method")
def d_psgd(task: Task, *, graph: Graph = "ring", degree: Degree = 4) -> Method:
    """graph: ring, torus, random (nearly regular) or complete.

    degree: the number of neighbors in a random graph, an even number.
    """

    def combine(W, x, y):
        mixed, moves = tree.mix(W, x.params), optax.tree.sub(y.params, x.params)
        return Weights(tree.add(mixed, moves), tree.mix(W, y.stats))  # Alg. 1

    return over_graph(task, graph, degree, combine, "d_psgd")
