"""ADCOL (Li, He, Song, ICML 2023, proceedings.mlr.press/v202/li23j.html): adversarial features.

send    the discriminator D
local   w_i <- SGD on F_i(w) + mu KL(1/C || softmax(D(h))),  h = the features of w
        upload the features H_i of `rows` random examples
server  D <- SGD on CE(D(h), i) over all h in H_i

D guesses from which of the C clients the features come, and the clients train until it cannot. No
model leaves a client, and each is scored with its own. D is a perceptron with two hidden layers
with layer normalization; in FL-bench they are wider and have BatchNorm. The paper uploads the
features of all examples; here their number is fixed. They are computed in evaluation mode after the
training, as means over the positions of an example that has several. FL-bench's mu is 0.5, with
small steps; with larger ones the features then collapse.
"""

from functools import partial

import jax
import jax.numpy as jnp

from fedjax_lab import losses, optim, sampling, streams, tree, wire
from fedjax_lab.methods import _heads
from fedjax_lab.methods.fedavg import send
from fedjax_lab.models.layers import affine, first_affine
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Exchange, Method, PyTree, State, Task

RANGES = {
    "mu": log_uniform(0.01, 10.0),
    "server_lr": log_uniform(0.01, 1.0),
    "server_steps": choice(20, 50, 200),
}


@checked("method")
def adcol(
    task: Task,
    *,
    mu: float = 0.1,
    rows: Positive[int] = 64,
    server_lr: float = 0.1,
    server_steps: int = 20,
    hidden: Positive[int] = 64,
) -> Method:
    """mu: weight of the divergence; with 0 it is Local, but with sampled clients.

    rows: the number of examples whose features a client uploads.
    server_lr, server_steps: learning rate and steps of D in a round.
    hidden: the width of the hidden layers of D.
    """
    risk, sgd = losses.risk(task), optim.sgd(server_lr)

    def init(key, num_clients):
        w = task.init(key)
        x = jnp.zeros((1, *task.input_shape))
        F = jax.eval_shape(lambda: losses.pooled(task.apply(w, x).features)).shape[1]
        D = first_discriminator(streams.extra(key), (F, hidden, hidden, num_clients))
        return State(D, tree.repeat(w, num_clients))

    def local(D, client, work):
        def loss(w, batch, key):
            value, out = risk(w, batch, key)
            each = divergence(D, losses.pooled(out.features))
            return value + mu * losses.masked_mean(each, batch.mask), out

        w, batch = work.train(client.private, loss), work.draw(rows)
        return (losses.pooled(task.apply(w, batch.x).features), batch.mask), w

    def aggregate(D, uploads, cohort):
        guess = partial(risk_of_guesses, *uploads, cohort.id)
        return optim.minimize(sgd, lambda D, _: guess(D), (D, sgd.init(D)), server_steps)[0]

    def predict(D, client, x):
        return task.apply(client.private, x).logits

    exchange = Exchange(send, local, aggregate, updates=updates, alike=False)
    return Method(
        init=init, round=(exchange,), predict=predict, newcomer=None, sample=sampling.by_size
    )


def first_discriminator(key: Array, sizes: tuple[int, ...]) -> PyTree:
    """Returns the first D, whose layers have these numbers of inputs and outputs."""
    keys = jax.random.split(key, (len(sizes) - 1, 2))
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    layers = [first_affine(k_kernel, k_bias, n, m) for (k_kernel, k_bias), n, m in pairs]
    return {"layers": layers, "norms": [_heads.first_norm(m) for m in sizes[1:-1]]}


def guessed(D: PyTree, h: Array) -> Array:
    """Returns the log-probabilities [B, C] that D gives the clients for features h [B, F]."""
    *inner, last = D["layers"]
    for layer, norm in zip(inner, D["norms"], strict=True):
        h = jax.nn.relu(_heads.normalized(norm, affine(layer, h)))
    return jax.nn.log_softmax(affine(last, h))


def divergence(D: PyTree, h: Array) -> Array:
    """Returns KL(1/C || softmax(D(h))) of each example [B]."""
    log = guessed(D, h)
    return -jnp.mean(log, -1) - jnp.log(log.shape[-1])


def risk_of_guesses(h: Array, mask: Array, ids: Array, D: PyTree) -> Array:
    """Returns the mean cross-entropy of D for features h [M, rows, F] of the clients ids [M]."""
    log = guessed(D, h)
    each = -jnp.sum(jax.nn.one_hot(ids, log.shape[-1])[:, None] * log, -1)  # [M, rows]
    return losses.masked_mean(each.ravel(), mask.ravel())


def updates(D, id, upload):
    """Marks the features as updates, and the flags of those that exist as none."""
    h, mask = upload
    return wire.itself(h), wire.kept(mask)
