"""FedOpt: FedAdam, FedYogi, FedAdagrad (Reddi et al., ICLR 2021, arXiv:2003.00295).

  send    w_t
  local   as FedAvg
  server  Delta_t = sum_i n_i/n w_i - w_t;  w_{t+1} = w_t + ServerOpt(Delta_t)     (Alg. 1)

The server optimizers are those of optax. Adam's moments start at 0 and Yogi's at 1e-6, both with
bias correction; the paper's second moments start at tau^2 and have no bias correction. Adagrad
divides by sqrt(tau^2 + sum Delta^2), to which the paper adds tau, and has no betas. The paper's
mean is uniform. Running statistics are averaged.
"""

import optax

from fedjax_lab import tree
from fedjax_lab.errors import check_below_one, check_choice, check_positive
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.ranges import log_uniform
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
        gradient = tree.sub(w_t.params, mean.params)  # -Delta_t: optax descends
        updates, moments = optimizer.update(gradient, moments, w_t.params)
        params = optax.apply_updates(w_t.params, updates)  # Alg. 1
        return Weights(params, mean.stats), moments

    newcomer = method.newcomer
    assert newcomer is not None  # FedAvg has one
    return method._replace(
        init=init,
        round=(Exchange(lambda server, id: exchange.send(server[0], id), exchange.local, step),),
        newcomer=lambda state: newcomer(state._replace(server=state.server[0])),
    )


def fedopt(
    task: Task,
    *,
    server_optimizer: str = "adam",
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> Method:
    """server_optimizer: adam, yogi or adagrad.

    server_lr: the learning rate of the server optimizer.
    beta1: decay of the first moment, below 1; adagrad ignores it.
    beta2: decay of the second moment, below 1; adagrad ignores it.
    tau: the degree of adaptivity, the epsilon of the server optimizer.
    """
    rules = {
        "adam": lambda: optax.adam(server_lr, beta1, beta2, tau),
        "yogi": lambda: optax.yogi(server_lr, beta1, beta2, tau),
        "adagrad": lambda: optax.adagrad(server_lr, tau**2, eps=0.0),
    }
    check_positive("method.tau", tau)
    check_below_one("method.beta1", beta1)
    check_below_one("method.beta2", beta2)
    check_choice("method.server_optimizer", server_optimizer, rules)
    return with_server_optimizer(fedavg(task), rules[server_optimizer]())
