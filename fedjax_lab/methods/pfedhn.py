"""pFedHN (Shamsian et al., ICML 2021, arXiv:2103.04628): a hypernetwork, updated client by client.

  for each client of the round, in random order:
  send    phi_i = h(nu_i; theta)
  local   phi~_i <- SGD on F_i from phi_i;  delta_i = phi_i - phi~_i
  server  g = (d phi_i / d(theta, nu))^T delta_i, clipped
          (theta, nu) <- SGD with momentum along g                 (Alg. 1)

In the paper, delta has the opposite sign, and a round has one client. Here a round is a pass over
all participants, as in the comparison of the hFedF paper; the hypernetwork has the same width (50)
and depth as there, with ReLU. The embeddings are one dense table, so that momentum and weight decay
also change the rows of other clients. The authors' code also clips the clients' gradients:
config.local.clip=50.
"""

from typing import NamedTuple

import jax
import optax

from fedjax_lab import optim, sampling, streams, tree
from fedjax_lab.methods.hfedf import WIDTH, Trained, pseudo_gradient, updates
from fedjax_lab.models import hypernetwork
from fedjax_lab.models.hypernetwork import embedding_size, generate
from fedjax_lab.ranges import checked, log_uniform
from fedjax_lab.types import Exchange, Extra, Method, PyTree, State, Task, Weights

RANGES = {"server_lr": log_uniform(1e-3, 0.1), "server_decay": log_uniform(1e-5, 1e-3)}


class Server(NamedTuple):
    """The server's state."""

    x: Trained
    momentum: PyTree
    stats: PyTree  # the running statistics of the last client


@checked("method")
def pfedhn(
    task: Task,
    *,
    server_lr: float = 1e-2,
    server_decay: float = 1e-3,
    server_momentum: float = 0.9,
    clip: float = 50.0,
) -> Method:
    """server_lr: learning rate of SGD on the hypernetwork and the embeddings.

    server_decay: weight decay of SGD on the hypernetwork and the embeddings.
    server_momentum: momentum of SGD on the hypernetwork and the embeddings.
    clip: the largest norm of the gradient g; 0: no clipping.
    """
    sgd = optim.sgd(server_lr, server_momentum, server_decay)

    def init(key, num_clients):
        w = task.init(key)
        k_theta, k_nu = jax.random.split(streams.extra(key))
        e = embedding_size(num_clients)
        theta = hypernetwork.first_weights(k_theta, w.params, e, WIDTH)
        x = Trained(theta, jax.random.normal(k_nu, (num_clients, e)))
        return State(Server(x, sgd.init(x), w.stats), ())

    def model(x, id):
        return generate(x.theta, x.nu[id], jax.nn.relu)

    def send(server, id):
        return Weights(model(server.x, id), server.stats)

    def aggregate(server, uploads, cohort):
        """The cohort has one client, because clients take turns."""
        delta = tree.take(uploads, 0)
        _, pull = jax.vjp(lambda x: model(x, cohort.id[0]), server.x)
        (g,) = pull(delta.params)
        updates, momentum = sgd.update(optim.clip(g, clip), server.momentum, server.x)
        return Server(optax.apply_updates(server.x, updates), momentum, delta.stats)  # Alg. 1

    def predict(phi, client, x):
        return task.apply(phi, x).logits

    exchange = Exchange(send, pseudo_gradient(task), aggregate, updates=updates)
    return Method(
        init=init,
        round=(exchange,),
        predict=predict,
        newcomer=None,
        sample=sampling.shuffled,
        extra=Extra(one_by_one=True),
    )
