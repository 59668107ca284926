"""MimeLite (Karimireddy et al., NeurIPS 2021, arXiv:2008.03606): one optimizer state for all.

  send    w_t, s_t, the state of a base optimizer
  local   y <- y - eta U(grad F_i(y), s_t) from w_t, where s_t stays fixed;  g_i = grad F_i(w_t)
  server  w_{t+1} = sum_i n_i/n y_i;  s_{t+1} = V(sum_i n_i/n g_i, s_t)

U is the direction of the base optimizer and V the update of its state. For momentum both are the
moving average beta s + (1 - beta) g. For adam, U is that average divided by the root of the moving
average of g^2, both with bias correction. U replaces the gradient in the clients' optimizer, which
should be SGD without momentum; weight decay is added to U. g_i is the mean gradient over the
client's batches, in training mode and with the same random numbers for dropout in all batches. The
paper's means are uniform. A client sends two models, y and g_i, and receives two, or three with
adam.
"""

from typing import Literal

import jax
import optax

from fedjax_lab import losses, streams, tree, wire
from fedjax_lab.methods.fedavg import aggregate, fedavg, send
from fedjax_lab.ranges import BelowOne, Positive, checked, uniform
from fedjax_lab.types import Exchange, Method, State, Task

RANGES = {"beta": uniform(0.0, 0.99)}

GRADIENT = 8  # number of the random stream of g_i among the streams of an upload


@checked("method")
def mimelite(
    task: Task,
    *,
    base_optimizer: Literal["momentum", "adam"] = "momentum",
    beta: BelowOne = 0.9,
    beta2: BelowOne = 0.99,
    eps: Positive[float] = 1e-3,
) -> Method:
    """base_optimizer: momentum or adam.

    beta: decay of the base optimizer's first moment; momentum with a beta of 0 is FedAvg.
    beta2: decay of adam's second moment. eps: a constant added to the root of the second moment.
    """
    base = optimizer(base_optimizer, beta, beta2, eps)
    risk = losses.risk(task)

    def init(key, num_clients):
        w = task.init(key)
        return State((w, base.init(w.params)), ())

    def local(message, client, work):
        w_t, s = message
        y = work.train(w_t, risk, optimizer=fixed(base, s, work))
        return (y, full_gradient(risk, w_t, work)), client.private

    def step(server, uploads, cohort):
        (w_t, s), (y, g) = server, uploads
        _, s = base.update(tree.mix(cohort.weight, g), s)
        return aggregate(w_t, y, cohort), s

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, step, updates=updates),),
        predict=lambda message, client, x: task.apply(message[0], x).logits,
        newcomer=lambda state: (state.server, ()),
    )


def optimizer(name: str, beta: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """The base optimizer; settings as in `mimelite`."""
    if name == "momentum":
        return optax.ema(beta, debias=False)
    return optax.scale_by_adam(beta, beta2, eps)


def fixed(base, s, work):
    """The clients' optimizer along U, with the state s of the base optimizer, which stays fixed."""
    U = optax.stateless(lambda g, _: base.update(g, s)[0])
    return optax.chain(U, work.optimizer)


def full_gradient(risk, w_t, work):
    """Returns g_i."""
    key = streams.extra(work.upload_key(), GRADIENT)

    def gradient(batch):
        return jax.grad(lambda w: risk(w_t._replace(params=w), batch, key)[0])(w_t.params)

    return work.mean(gradient)


def updates(message, id, upload):
    """Marks the model as an update of w_t, and the gradient as an update itself."""
    (w_t, _), (y, g) = message, upload
    return wire.model_references(w_t, y), wire.itself(g)
