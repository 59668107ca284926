"""Mime (Karimireddy et al., NeurIPS 2021, arXiv:2008.03606): MimeLite with a control variate.

  send    w_t
  local   g_i = grad F_i(w_t)
  server  c = sum_i n_i/n g_i
  send    w_t, c, s_t, the state of a base optimizer
  local   y <- y - eta U(grad F_i(y) - grad F_i(w_t) + c, s_t) from w_t, both on the step's batch
  server  w_{t+1} = sum_i n_i/n y_i;  s_{t+1} = V(c, s_t)                      (Alg. 1)

U, V and g_i are those of MimeLite. The difference of the two gradients is the correction of SVRG;
it needs a second gradient in each step and a second exchange with the same clients. Weight decay is
added to U. A client sends two models, y and g_i, and receives w_t twice, c, and the momentum, or
with adam two moments.
"""

from typing import Literal

import jax
import optax

from fedjax_lab import losses, tree, wire
from fedjax_lab.methods import mimelite as lite
from fedjax_lab.methods.fedavg import aggregate
from fedjax_lab.ranges import BelowOne, Positive, checked, uniform
from fedjax_lab.types import Exchange, Method, State, Task

RANGES = {"beta": uniform(0.0, 0.99)}


@checked("method")
def mime(
    task: Task,
    *,
    base_optimizer: Literal["momentum", "adam"] = "momentum",
    beta: BelowOne = 0.9,
    beta2: BelowOne = 0.99,
    eps: Positive[float] = 1e-3,
) -> Method:
    """base_optimizer: momentum or adam.

    beta: decay of the base optimizer's first moment.
    beta2: decay of adam's second moment. eps: a constant added to the root of the second moment.
    """
    base = lite.optimizer(base_optimizer, beta, beta2, eps)
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        return State((w, tree.zeros(w.params), base.init(w.params)), ())

    def measure(w_t, client, work):
        return lite.full_gradient(risk, w_t, work), client.private

    def collect(server, g, cohort):
        w_t, _, s = server
        return w_t, tree.mix(cohort.weight, g), s

    def local(message, client, work):
        w_t, c, s = message

        def corrected(y, batch, key):
            value, out = risk(y, batch, key)
            at_start = jax.grad(lambda w: risk(w_t._replace(params=w), batch, key)[0])(w_t.params)
            moved = optax.tree.sub(y.params, w_t.params)
            return value + tree.dot(optax.tree.sub(c, jax.lax.stop_gradient(at_start)), moved), out

        return work.train(w_t, corrected, optimizer=lite.fixed(base, s, work)), client.private

    def step(server, y, cohort):
        w_t, c, s = server
        return aggregate(w_t, y, cohort), c, base.update(c, s)[1]  # Alg. 1

    first = Exchange(lambda server, id: server[0], measure, collect, updates=gradient_references)
    second = Exchange(lambda server, id: server, local, step, updates=model_references)
    return lite.mimelite(task)._replace(init=init, round=(first, second))


def gradient_references(w_t, id, g):
    """Marks the gradient, the first upload, as an update itself."""
    return wire.itself(g)


def model_references(message, id, y):
    """Marks the second upload as an update of w_t."""
    return wire.model_references(message[0], y)
