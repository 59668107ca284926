"""DS-FL (Itahara et al., IEEE TMC 2023, arXiv:2008.06180): distillation of sharpened predictions.

send    a random key, from which all know the round's subset D of the public examples
local   w_i <- SGD on F_i from w_i                                              (Update)
        p_i = softmax of the logits of w_i on D                                 (Predict)
server  z = softmax(mean_i p_i / T): entropy reduction aggregation              (ERA)
send    z and the key
local   w_i <- SGD on CE(p_w, z) over D from w_i, for distill_epochs passes     (Distillation)
server  w_S <- SGD on CE(p_w, z) over D from w_S

Models never leave the clients, all clients take part, and each is scored with its own model; the
server's model w_S is what a new client gets. The public examples (config.partition.public) are used
without labels. The paper makes passes over D for w_S, too; here it takes steps on random batches,
in evaluation mode, so that its running statistics stay the first ones. For K classes, |D| K numbers
are sent each way.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, optim, sampling, tree, wire
from fedjax_lab.methods.fedmd import drawn
from fedjax_lab.ranges import Positive, checked, choice, log_uniform
from fedjax_lab.types import Array, Batch, Exchange, Method, State, Task, Weights

RANGES = {
    "temperature": log_uniform(0.03, 1.0),
    "distill_epochs": choice(1, 2, 5),
    "server_lr": log_uniform(0.01, 0.3),
}
BATCH = 100  # public examples in a step of the server


class Server(NamedTuple):
    """The server's model, the labels of a subset of the public examples, and keys of subsets."""

    w_S: Weights
    z: Array  # [|D|, K]
    key: Array  # of this subset
    next_key: Array


@checked("method")
def ds_fl(
    task: Task,
    *,
    subset: Positive[int] = 200,
    temperature: Positive[float] = 0.1,
    distill_epochs: int = 1,
    server_lr: float = 0.1,
    server_steps: int = 20,
) -> Method:
    """subset: |D|, the number of public examples of a round; the paper's is 1,000.

    temperature: T, which sharpens the mean prediction if it is small.
    distill_epochs: the passes of a client over D; with 0 the clients learn alone.
    server_lr, server_steps: learning rate and steps of the server's model in a round.
    """
    risk, distilling, K = losses.risk(task), distillation(task), task.num_classes

    def init(key, num_clients):
        w, keys = task.init(key), jax.random.split(key)
        return State(Server(w, jnp.zeros((subset, K)), *keys), tree.repeat(w, num_clients))

    def score(key, client, work):
        w = work.train(client.private, risk)
        places = drawn(key, work.public.size, subset)
        return work.public.outputs(partial(predictions, task, w), places), w

    def label(server, p, cohort):
        z = sharpened(sampling.equal_shares(cohort.arrived), p, temperature)
        return Server(server.w_S, z, server.next_key, cohort.key[0])

    def learn(message, client, work):
        z, key = message
        places = drawn(key, work.public.size, subset)
        train = partial(work.train, epochs=distill_epochs, public=places, references=z)
        return (), train(client.private, distilling)

    def distill(server, _, cohort):
        places = drawn(server.key, cohort.public.size, subset)
        x, sgd = cohort.public.batch(places).x, optim.sgd(server_lr)
        return server._replace(w_S=distilled(task, server, x, cohort.key[0], sgd, server_steps))

    scoring = Exchange(lambda server, id: server.next_key, score, label, wire.all_itself)
    learning = Exchange(lambda server, id: (server.z, server.key), learn, distill, wire.all_itself)
    return Method(
        init=init,
        round=(scoring, learning),
        predict=lambda message, client, x: task.apply(client.private, x).logits,
        newcomer=lambda state: ((state.server.z, state.server.key), state.server.w_S),
        sample=sampling.all_clients,
    )


def predictions(task: Task, w: Weights, batch: Batch) -> Array:
    """Returns the class probabilities of a batch [B, K]."""
    return jax.nn.softmax(task.apply(w, batch.x).logits)


def sharpened(share: Array, p: Array, temperature: float) -> Array:
    """Returns z [|D|, K], the ERA of predictions p [M, |D|, K] with these shares [M]."""
    return jax.nn.softmax(tree.mix(share, p) / temperature)


def distillation(task: Task) -> losses.Loss:
    """The mean over examples of the cross-entropy of predictions and `batch.references`."""

    def loss(w, batch, key):
        out = task.apply(w, batch.x, key, batch.mask)
        each = optax.softmax_cross_entropy(out.logits, batch.references)
        return losses.masked_mean(each, batch.mask), out

    return loss


def distilled(
    task: Task,
    server: Server,
    x: Array,
    key: Array,
    optimizer: optax.GradientTransformation,
    steps: int,
) -> Weights:
    """Returns the server's model after steps on random batches of the examples x [|D|, ...]."""
    w_S = server.w_S

    def loss(params, s):
        some = jax.random.randint(jax.random.fold_in(key, s), (BATCH,), 0, len(x))
        logits = task.apply(w_S._replace(params=params), x[some]).logits
        return jnp.mean(optax.softmax_cross_entropy(logits, server.z[some]))

    params, _ = optim.minimize(optimizer, loss, (w_S.params, optimizer.init(w_S.params)), steps)
    return w_S._replace(params=params)
