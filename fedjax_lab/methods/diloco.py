"""DiLoCo (Douillard et al., 2023, arXiv:2311.08105): many inner steps of AdamW, rare outer ones.

  send    theta
  local   theta_i <- H steps of AdamW on F_i from theta, with the moments of i's last round (Alg. 1)
  server  Delta = theta - sum_i n_i/n theta_i;  m <- outer_momentum m + Delta
          theta <- theta - outer_lr (Delta + outer_momentum m)

H is config.local.steps, and the inner optimizer that of config.local: AdamW in the paper, or any
other with at most two moments. They stay with the worker and are never averaged. In step s of a
worker, counted over all of its rounds, the rate is multiplied by min(1, (s + 1) / (warmup + 1)),
and after the warm-up by half a cosine wave that ends at 0 in step `cosine`. The paper's mean is
uniform, and by size for shards of unequal sizes. Running statistics are averaged.

SparseLoCo (Sarfi et al., 2025, arXiv:2508.15706) is DiLoCo with outer_momentum = 0, outer_lr = 1
and config.compression.name=top_k with error feedback, which does not decay here; its values are
also quantized.
"""

from functools import partial

import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import BelowOne, NotNegative, Positive, checked, log_uniform, uniform
from fedjax_lab.types import Array, Exchange, Method, State, Task, Weights

RANGES = {"outer_lr": log_uniform(0.1, 2.0), "outer_momentum": uniform(0.0, 0.99)}


@checked("method")
def diloco(
    task: Task,
    *,
    outer_lr: Positive[float] = 0.7,
    outer_momentum: BelowOne = 0.9,
    warmup: NotNegative[int] = 0,
    cosine: NotNegative[int] = 0,
) -> Method:
    """outer_lr, outer_momentum: of the server's Nesterov momentum; 1 and 0 take the mean.

    warmup: the number of steps of a worker in which the inner rate rises.
    cosine: the number of all steps of a worker, warm-up included; 0: the rate does not decrease.
    """
    if isinstance(cosine, int) and isinstance(warmup, int) and 0 < cosine <= warmup:
        raise BadInput(f"config.method.cosine={cosine} must be above config.method.warmup={warmup}")
    rate = partial(inner_rate, warmup=warmup, cosine=cosine)

    def init(key, num_clients):
        theta = task.init(key)
        zeros = tree.zeros(theta.params)
        return State((theta, zeros), tree.repeat((jnp.int32(0), (zeros, zeros)), num_clients))

    def local(theta, client, work):
        def loss(both, *batch_and_key):
            return losses.risk(task)(both._replace(params=both.params[0]), *batch_and_key)

        s, moments = client.private
        both = theta._replace(params=(theta.params, tree.zeros(moments)))
        inner = optim.resumed(work.optimizer, s, moments, work.steps, rate)
        (params, last), stats = work.train(both, loss, optimizer=inner)  # Alg. 1
        moments = tree.where(work.steps > 0, last, moments)
        return Weights(params, stats), (s + work.steps, moments)

    def step(server, uploads, cohort):
        (theta, m), mean = server, tree.mix(cohort.weight, uploads)
        delta = optax.tree.sub(theta.params, mean.params)
        m = tree.add(delta, m, outer_momentum)
        rest = tree.add(optax.tree.scale(1 - outer_lr, delta), m, -outer_lr * outer_momentum)
        return Weights(tree.add(mean.params, rest), mean.stats), m

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(lambda server, id: server[0], local, step),),
        newcomer=lambda state: (state.server[0], ()),
    )


def inner_rate(s: Array, warmup: int, cosine: int) -> Array:
    """The factor of the learning rate in step s of a worker."""
    share = jnp.clip((s - warmup) / jnp.maximum(cosine - warmup, 1), 0, 1) * (cosine > 0)
    return jnp.minimum((s + 1) / (warmup + 1), 1) * (1 + jnp.cos(jnp.pi * share)) / 2
