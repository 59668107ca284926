"""FedEM (Marfoq et al., NeurIPS 2021, arXiv:2108.10252): each client mixes M shared models.

  send    the components w_1 .. w_M
  local   q_m(x, y) in proportion to pi_m exp(-CE(w_m; x, y));  pi_m = mean of q_m over the examples
          w_m <- SGD on the mean of q_m CE(w_m)
  server  w_m = sum_i n_i/n w_m,i

A client keeps pi, which starts at 1/M; q is computed once per round, in evaluation mode and with
the pi of the client's last round. The components start from different weights and are trained on
the same batches, with the same dropout; config.local.clip bounds the norm of their joint gradient.
A client predicts with the mixture of the components' probabilities. A new client only fits pi. M
models are sent each way.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab import losses
from fedjax_lab.methods import _clusters as clusters
from fedjax_lab.methods.fedavg import aggregate, fedavg, send
from fedjax_lab.ranges import checked, choice
from fedjax_lab.types import Array, Batch, Exchange, Method, State, Task, Weights, Work

RANGES = {"num_components": choice(2, 3, 4)}

FITS = 10  # updates of pi by a new client


@checked("method")
def fedem(task: Task, *, num_components: clusters.Number = 3) -> Method:
    """num_components: M, the number of shared models; 1 is FedAvg."""
    losses.check_classes(task)
    M = num_components
    uniform = np.full(M, 1 / M, np.float32)
    shares, fitted = partial(responsibilities, task), partial(mixture, task)

    def init(key, num_clients):
        return State(clusters.distinct_starts(task, key, M), jnp.tile(uniform, (num_clients, 1)))

    def local(w_t, client, work):
        def loss(w, batch, key):
            ce, after = every(task, w, batch, key)
            return jnp.sum(losses.masked_mean(batch.references * ce, batch.mask)), after

        pi = fitted(w_t, client.private, work)
        w = work.train(w_t, loss, references=lambda batch: shares(w_t, client.private, batch))
        return w, pi

    def predict(w, client, x):
        out = jax.vmap(lambda v: task.apply(v, x).logits)(w)  # [M, B, K]
        weighted = jnp.log(client.private)[:, None, None] + jax.nn.log_softmax(out)
        return jax.nn.logsumexp(weighted, 0)

    def join(w, client, work):
        return w, jax.lax.fori_loop(0, FITS, lambda _, pi: fitted(w, pi, work), uniform)

    return fedavg(task)._replace(
        init=init,
        round=(Exchange(send, local, aggregate),),
        predict=predict,
        newcomer=lambda state: (state.server, uniform),
        join=join,
    )


def every(task: Task, w: Weights, batch: Batch, key: Array | None = None) -> tuple[Array, Weights]:
    """Returns the losses [B, M] of all components, and w with their new running statistics."""
    out = jax.vmap(lambda v: task.apply(v, batch.x, key, batch.mask))(w)
    ce = jax.vmap(optax.softmax_cross_entropy_with_integer_labels, (0, None), 1)
    return ce(out.logits, batch.y), w._replace(stats=out.stats)


def responsibilities(task: Task, w: Weights, pi: Array, batch: Batch) -> Array:
    """Returns q [B, M]."""
    return jax.nn.softmax(jnp.log(pi) - every(task, w, batch)[0])


def mixture(task: Task, w: Weights, pi: Array, work: Work) -> Array:
    """Returns the next pi [M]: the mean of q over the examples."""

    def batch_mean(batch):
        return losses.masked_mean(responsibilities(task, w, pi, batch), batch.mask)

    return work.mean(batch_mean)
