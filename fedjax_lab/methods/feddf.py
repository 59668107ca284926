"""FedDF (Lin, Kong, Stich, Jaggi, NeurIPS 2020, arXiv:2006.07242): ensemble distillation.

send    w_t
local   w_i <- SGD on F_i from w_t
server  w <- sum_i n_i/n w_i, then server_steps steps of Adam on public examples x (Alg. 1):
        KL(softmax(mean_i z_i(x)) || softmax(z_w(x))),  z = the logits

The public examples (config.partition.public) are used without their labels. The teachers are the
models of the round, whose logits are computed once. All logits are those of evaluation mode, so
that running statistics stay those of the mean. The learning rate follows a cosine to 0, as in the
authors' code, which also stops early on validation examples and leaves out teachers that only
guess; here the number of steps is fixed, and all models teach. Without the early stopping, the
authors' server_lr=1e-3 made the digit domains worse: 31 instead of 45 % with 1e-4.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import optim, sampling, tree
from fedjax_lab.methods import fedavg as averaging
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Exchange, Method, Task

RANGES = {"server_lr": log_uniform(1e-5, 1e-2), "server_steps": choice(50, 200, 1000)}


@checked("method")
def feddf(
    task: Task,
    *,
    server_steps: int = 200,
    server_lr: float = 1e-4,
    server_batch: Positive[int] = 128,
) -> Method:
    """server_steps: the steps of the distillation; 0 is FedAvg.

    server_lr: the first learning rate of the distillation.
    server_batch: the number of public examples in each step.
    """
    method, _ = fedavg(task), task.num_classes
    (plain,) = method.round
    optimizer = optax.adam(optax.cosine_decay_schedule(server_lr, max(server_steps, 1)))

    def aggregate(w_t, w, cohort):
        mean = averaging.aggregate(w_t, w, cohort)
        if not server_steps:
            return mean
        public, key = cohort.public, cohort.key[0]
        z = public.outputs(lambda batch: teach(task, w, cohort.arrived, batch.x))  # [P, K]

        def loss(params, s):
            places = jax.random.randint(jax.random.fold_in(key, s), (server_batch,), 0, public.size)
            logits = task.apply(mean._replace(params=params), public.batch(places).x).logits
            return divergence(z[places], logits)  # Alg. 1

        start = mean.params, optimizer.init(mean.params)
        params, _ = optim.minimize(optimizer, loss, start, server_steps)
        return mean._replace(params=params)

    exchange = Exchange(plain.send, plain.local, aggregate, updates=plain.updates)
    return method._replace(round=(exchange,))


def teach(task: Task, w, arrived, x):
    """The mean of the logits of the models [M] that have arrived, [B, K]."""
    z = jax.vmap(lambda w_i: task.apply(w_i, x).logits)(w)  # [M, B, K]
    return tree.mix(sampling.equal_shares(arrived), z)


def divergence(z, logits):
    """The mean over examples of KL(softmax(z) || softmax(logits)); both [B, K]."""
    p, q = (jax.nn.log_softmax(a) for a in (z, logits))
    return jnp.mean(optax.losses.kl_divergence_with_log_targets(q, p))
