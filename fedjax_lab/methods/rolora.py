"""RoLoRA (Chen et al., NeurIPS 2025, arXiv:2502.01755): rounds take turns to train B and A.

  send    A_t, B_t, t
  local   t even:  B_i <- SGD on F_i(A_t, B) from B_t
          t odd:   A_i <- SGD on F_i(A, B_t) from A_t
  server  t even:  B_{t+1} = sum_i n_i/n B_i;   t odd:  A_{t+1} = sum_i n_i/n A_i

In each round all clients have the same other factor, so that the mean is exact as in FFA-LoRA. A
client that has missed a round needs both factors. It uploads only the factor that it trains, but
the bytes are counted from types, which are the same in every round: those of both factors, twice
what is needed if they have the same size. Other weights that are trained, such as a head, are
trained and averaged in every round.
"""

from functools import partial

import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.methods import _factors as factors
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import checked
from fedjax_lab.types import Array, Exchange, Method, State, Task, Weights


@checked("method")
def rolora(task: Task) -> Method:
    """FedAvg of B in even rounds, and of A in odd rounds."""
    factors.adapters_of(task)
    risk = losses.risk(task)

    def local(message, client, work):
        w_t, t = message
        return factors.train(risk, w_t, work, partial(held, w_t, t)), client.private

    method = fedavg(task)._replace(
        init=lambda key, num_clients: State((task.init(key), jnp.int32(0)), ()),
        round=(Exchange(send, local, aggregate, updates=factors.updates),),
        predict=lambda message, client, x: task.apply(message[0], x).logits,
    )
    return method.having(model=lambda message, private: message[0])


def held(w_t: Weights, t: Array, w: Weights) -> Weights:
    """The weights w with the factors of w_t that round t does not train."""
    first, trains_b = factors.pairs(w_t), t % 2 == 0
    new = {
        path: factors.Pair(
            jnp.where(trains_b, first[path].A, pair.A), jnp.where(trains_b, pair.B, first[path].B)
        )
        for path, pair in factors.pairs(w).items()
    }
    return factors.with_pairs(w, new)


def aggregate(server, w, cohort):
    """Averages all weights; those that are not trained are the same for all clients."""
    w_t, t = server
    return held(w_t, t, tree.mix(cohort.weight, w)), t + 1
