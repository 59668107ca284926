"""Client2Vec's index of a client: beta^f_i describes its examples, beta^l_i its labels.

  beta^l_i    mean of L, the embedding of the label's name, over the client's examples
  beta^f_i    by DSA-IGN (_index_dsa_ign.py), or one of Table 2 (_index_naive.py)

The index is made in stages on embedded examples, before federated learning begins. This file has
what these stages share, and what the index is for: the similarity of clients.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, Method, PyTree, Stage, Task, View

BATCH = 128  # examples of a step, and of what a client uploads


class Index(NamedTuple):
    """Of all clients."""

    feature: Array  # beta^f [C, F]
    label: Array  # beta^l [C, E]


def similarity(index: Index, n: Array, parts: tuple[str, ...]) -> Array:
    """S(i, A) [C] of all clients i to a set A; n [C]: N_j of those in A, 0 of others."""
    share = n / jnp.maximum(jnp.sum(n), 1)
    units = [losses.unit(getattr(index, part)) for part in parts]
    full = jax.lax.Precision.HIGHEST
    total: Any = sum(jnp.matmul(b, tree.mix(share, b), precision=full) for b in units)
    return total / len(units)


class Server(NamedTuple):
    """What the server knows while the index is made."""

    key: Array  # of the run's first weights: the base starts where it would without an index
    psi: PyTree  # DSA-IGN
    moments: PyTree  # of Adam on psi
    epoch: Array
    batches: PyTree  # Batch [C, 128, ...]: what the clients have uploaded, if they do
    index: PyTree  # Index


def label_table(task: Task) -> Array:
    """T [K, E], the embeddings of the labels' names. BadInput where the task has none."""
    if task.labels is None:
        raise BadInput("client2vec needs embeddings: name their source by config.embedding.name")
    return task.labels()


def describe(feature, T: Array):
    """The `local` that uploads a client's index; feature: (message, batch) -> mean over it."""

    def local(message, client, work):
        beta_l = tree.mix(client.label_count / client.n, T)
        return Index(work.mean(partial(feature, message)), beta_l), ()

    return local


def put(server: Server, uploads: Index, cohort) -> Server:
    """Keeps the indices that clients have sent."""
    return server._replace(index=tree.put(server.index, cohort.id, uploads))


def nothing(server, id):
    """Sends nothing."""
    return ()


def stage(name, rounds, exchange, sample, init=None, reliable=False) -> Stage:
    """Rounds of one exchange on embedded examples; without `init` from the last stage's state.

    An exchange that does not say what its uploads are updates of has none: clients send examples,
    or their index, or nothing. Transforms leave these uploads as they are.
    """
    exchange = exchange._replace(updates=exchange.updates or wire.all_kept)
    method = Method(init=init, round=(exchange,), predict=None, newcomer=None, sample=sample)
    go_on = None if init else lambda key, num_clients, last, facts: last
    view = View(embedded=True, batch_size=BATCH)
    return Stage(name, method, rounds, start=go_on, view=view, reliable=reliable)
