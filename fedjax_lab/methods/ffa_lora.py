"""FFA-LoRA (Sun et al., ICLR 2024, arXiv:2403.12313): A keeps its random initial value.

  send    B_t, the random key of A_0
  local   B_i <- SGD on F_i(A_0, B) from B_t; A_0 is never trained
  server  B_{t+1} = sum_i n_i/n B_i      (L6)

The mean is exact: A_0 sum_i n_i/n B_i = sum_i n_i/n A_0 B_i. Because the update is linear in B,
noise for privacy (config.privacy) is not squared. Instead of A_0 the server sends the key from
which a client draws it, 8 bytes. Other weights that are trained, such as a head, are averaged too.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_lab import losses, streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods import _factors as factors
from fedjax_lab.methods.fedavg import fedavg, send
from fedjax_lab.ranges import checked
from fedjax_lab.types import Exchange, Method, State, Task


@checked("method")
def ffa_lora(task: Task, *, a_init: Literal["uniform", "orthogonal"] = "uniform") -> Method:
    """a_init: how A_0 is drawn: uniform, as in other methods, or orthogonal, with columns of norm 1
    that are orthogonal to each other.
    """
    if factors.adapters_of(task).given:
        raise BadInput(
            "method ffa_lora draws its own A and cannot start from given adapters; use fedit"
        )
    risk = losses.risk(task)
    shapes = jax.eval_shape(task.init, jax.random.key(0))

    def whole(rest, key):
        w = factors.fresh(tree.zeros(shapes), key)
        if a_init == "orthogonal":
            w = factors.each(orthogonal, w)
        return tree.join(rest, tree.split(factors.is_a, w)[0])

    def init(key, num_clients):
        _, rest = tree.split(factors.is_a, task.init(key))
        return State((rest, streams.extra(key)), ())

    def local(message, client, work):
        w = work.train(whole(*message), risk, only=lambda name: not factors.is_a(name))
        _, rest = tree.split(factors.is_a, w)
        return rest, client.private

    def aggregate(server, uploads, cohort):
        return tree.mix(cohort.weight, uploads), server[1]  # L6

    method = fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, aggregate, updates=factors.updates),),
        predict=lambda message, client, x: task.apply(whole(*message), x).logits,
    )
    return method.having(model=lambda message, private: whole(*message))


def orthogonal(pair: factors.Pair) -> factors.Pair:
    """The factors with columns of a random A made orthogonal, of norm 1."""
    inputs, rank = pair.A.shape[-2:]
    if rank > inputs:
        raise BadInput(
            f"config.method.a_init=orthogonal needs config.adapter.rank up to the {inputs} inputs"
            f" of each adapted layer, got {rank}"
        )
    return pair._replace(A=jnp.linalg.qr(pair.A)[0])
