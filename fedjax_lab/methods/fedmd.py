"""FedMD (Li and Wang, 2019, arXiv:1910.03581): models that agree on public examples.

send    a random key, from which all know the round's subset D of the public examples
local   z_i = the logits of w_i on D
server  z = mean of z_i over the clients
send    z and the key
local   w_i <- SGD on mean |z_w(x) - z(x)| over D, for align_epochs passes (Digest)
        w_i <- SGD on F_i from w_i                                         (Revisit)

Models never leave the clients, and each client is scored with its own. The paper compares class
scores; as in the authors' code they are logits, compared by their absolute error, and all clients
take part. The paper also trains each model to convergence on labeled public examples and on its
own data before the first round; here all models begin with the same weights, and a client skips the
Digest before its first training, when the consensus is what its own model computes. The public
examples (config.partition.public) are used without labels. For K classes, |D| K numbers are sent
each way.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.methods._stages import unchanged
from fedjax_lab.ranges import Positive, checked, choice
from fedjax_lab.types import Array, Exchange, Method, State, Task, Weights

RANGES = {"align_epochs": choice(1, 2, 5)}


class Server(NamedTuple):
    """The consensus on a subset of the public examples, and the key of the next subset."""

    z: Array  # [|D|, K]
    key: Array  # of this subset
    next_key: Array


class Private(NamedTuple):
    """The state of a client."""

    w: Weights
    trained: Array  # [] bool, whether it has trained w on its own data


@checked("method")
def fedmd(task: Task, *, subset: Positive[int] = 200, align_epochs: int = 1) -> Method:
    """subset: |D|, the number of public examples of a round; the paper's is 5,000.

    align_epochs: the passes over them towards the consensus; with 0 it is Local.
    """
    risk, K = losses.risk(task), task.num_classes

    def init(key, num_clients):
        private = tree.repeat(Private(task.init(key), jnp.bool(False)), num_clients)
        keys = jax.random.split(key)
        return State(Server(jnp.zeros((subset, K)), *keys), private)

    def score(key, client, work):
        def fn(batch):
            return task.apply(client.private.w, batch.x).logits

        return work.public.outputs(fn, drawn(key, work.public.size, subset)), client.private

    def agree(server, uploads, cohort):
        share = sampling.equal_shares(cohort.arrived)
        return Server(tree.mix(share, uploads), server.next_key, cohort.key[0])

    def learn(message, client, work):
        (z, key), (w, trained) = message, client.private
        if align_epochs:
            places = drawn(key, work.public.size, subset)
            w = tree.where(
                trained,
                work.train(w, digest(task), public=places, references=z, epochs=align_epochs),
                w,
            )
        return (), Private(work.train(w, risk), jnp.ones_like(trained))

    def predict(message, client, x):
        return task.apply(client.private.w, x).logits

    scoring = Exchange(lambda server, id: server.next_key, score, agree, wire.all_itself)
    learning = Exchange(lambda server, id: (server.z, server.key), learn, unchanged, lambda *_: ())
    return Method(init, (scoring, learning), predict, newcomer=None, sample=sampling.all_clients)


def digest(task: Task) -> losses.Loss:
    """The mean over examples and classes of the absolute distance of logits and consensus."""

    def loss(w, batch, key):
        out = task.apply(w, batch.x, key, batch.mask)
        apart = jnp.mean(jnp.abs(out.logits - batch.references), -1)
        return losses.masked_mean(apart, batch.mask), out

    return loss


def drawn(key: Array, size: int, count: int) -> Array:
    """Distinct places among `size` public examples, [count]."""
    if count > size:
        raise BadInput(
            f"config.method.subset={count} is more than the {size} public examples; decrease it, or"
            " increase config.partition.public"
        )
    return sampling.without_replacement(key, size, count)
