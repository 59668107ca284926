"""FedOpt: FedAdam, FedYogi, FedAdagrad (Reddi et al., ICLR 2021, arXiv:2003.00295).

  send    w_t
  local   as FedAvg
  server  Delta_t = sum_i n_i/n w_i - w_t;  m_t = beta1 m_{t-1} + (1 - beta1) Delta_t
          adam     v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2
          yogi     v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2)
          adagrad  v_t = v_{t-1} + Delta_t^2
          w_{t+1} = w_t + server_lr m_t / (sqrt(v_t) + tau)                        (Alg. 2)

m_{-1} = 0 and v_{-1} = tau^2, without the bias correction of optax and PyTorch: with beta1 = 0.9
and updates far below tau, the first step is a twentieth of server_lr Delta_t / tau. Adagrad has
beta1 = 0, as in the paper's experiments. The paper's mean is uniform. Running statistics are
averaged.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import tree
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import BelowOne, Positive, checked, log_uniform
from fedjax_lab.types import Exchange, Method, State, Task, Weights

RANGES = {"server_lr": log_uniform(1e-3, 1.0), "tau": log_uniform(1e-5, 0.1)}


def with_server_optimizer(method: Method, optimizer: optax.GradientTransformation) -> Method:
    """Replaces the mean on the server by a step of the optimizer along (mean - w_t).

    method: a method of one exchange whose server takes the mean of the models.
    """
    (exchange,) = method.round

    def init(key, num_clients):
        w, private = method.init(key, num_clients)
        return State((w, optimizer.init(w.params)), private)

    def step(server, uploads, cohort):
        w_t, moments = server
        mean = exchange.aggregate(w_t, uploads, cohort)
        gradient = optax.tree.sub(w_t.params, mean.params)  # -Delta_t: optax descends
        updates, moments = optimizer.update(gradient, moments, w_t.params)
        params = optax.apply_updates(w_t.params, updates)  # Alg. 2
        return Weights(params, mean.stats), moments

    newcomer = method.newcomer
    assert newcomer is not None  # FedAvg has one
    return method._replace(
        init=init,
        round=(Exchange(lambda server, id: exchange.send(server[0], id), exchange.local, step),),
        newcomer=lambda state: newcomer(state._replace(server=state.server[0])),
    )


@checked("method")
def fedopt(
    task: Task,
    *,
    server_optimizer: Literal["adam", "yogi", "adagrad"] = "adam",
    server_lr: float = 0.01,
    beta1: BelowOne = 0.9,
    beta2: BelowOne = 0.99,
    tau: Positive[float] = 1e-3,
) -> Method:
    """server_optimizer: adam, yogi or adagrad.

    server_lr: the learning rate of the server optimizer.
    beta1: decay of the first moment, below 1; adagrad ignores it.
    beta2: decay of the second moment, below 1; adagrad ignores it.
    tau: the degree of adaptivity; steps along updates far below it are plain momentum.
    """
    rules = {
        "adam": lambda v, square: beta2 * v + (1 - beta2) * square,
        "yogi": lambda v, square: v - (1 - beta2) * square * jnp.sign(v - square),
        "adagrad": lambda v, square: v + square,
    }
    decay = 0.0 if server_optimizer == "adagrad" else beta1
    optimizer = adaptive(rules[server_optimizer], server_lr, decay, tau)
    return with_server_optimizer(fedavg(task), optimizer)


def adaptive(rule: Callable, server_lr, beta1, tau) -> optax.GradientTransformation:
    """The paper's server optimizer. rule: (v_{t-1}, the squared gradient) -> v_t."""

    def init(params):
        return tree.zeros(params), jax.tree.map(lambda a: jnp.full_like(a, tau**2), params)

    def update(gradient, moments, params=None):
        m, v = moments
        m = jax.tree.map(lambda a, g: beta1 * a + (1 - beta1) * g, m, gradient)
        v = jax.tree.map(lambda a, g: rule(a, g**2), v, gradient)
        step = jax.tree.map(lambda a, b: -server_lr * a / (jnp.sqrt(b) + tau), m, v)
        return step, (m, v)

    return optax.GradientTransformation(init, update)
