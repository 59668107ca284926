"""Client2Vec's index of a client: beta^f_i describes its examples, beta^l_i its labels.

  beta^l_i    mean of L, the embedding of the label's name, over the client's examples
  beta^f_i    by DSA-IGN (dsa_ign.py), or a naive index of Table 2 (naive_index.py)

The index is computed in stages on embedded examples, before federated learning begins. This module
has the parts that these stages share, and the similarity of clients by their indices.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.methods._stages import go_on
from fedjax_lab.types import Array, Method, Plan, PyTree, Stage, Task

BATCH = 128  # examples of a training step, and of a batch that a client uploads


class Index(NamedTuple):
    """The index of all clients."""

    feature: Array  # beta^f [C, F]
    label: Array  # beta^l [C, E]


def similarity(index: Index, n: Array, parts: tuple[str, ...]) -> Array:
    """Returns S(i, A), the similarity of each client i to a set A of clients, [C].

    n: [C] N_j of the clients in A, 0 for the others.
    parts: the fields of the index that are compared.
    """
    share = n / jnp.maximum(jnp.sum(n), 1)
    units = [losses.unit(getattr(index, part)) for part in parts]
    full = jax.lax.Precision.HIGHEST
    total: Any = sum(jnp.matmul(b, tree.mix(share, b), precision=full) for b in units)
    return total / len(units)


class Server(NamedTuple):
    """The server's state while the index is computed."""

    key: Array  # of the run's first weights: the base starts from the same ones without an index
    psi: PyTree  # the parameters of DSA-IGN
    moments: PyTree  # of Adam on psi
    epoch: Array
    batches: PyTree  # Batch [C, 128, ...]: the batches that clients have uploaded, if they do
    index: PyTree  # Index


def label_table(task: Task) -> Array:
    """Returns T [K, E], the embeddings of the labels' names. Raises BadInput if there are none."""
    if task.embeddings is None:
        raise BadInput("client2vec needs embeddings; choose their source by config.embedding.name")
    return jnp.asarray(task.embeddings().labels)


def describe(feature, T: Array):
    """Returns the `local` that uploads a client's index.

    feature: (message, batch) -> the batch's mean of the quantity whose mean is beta^f.
    T: [K, E] the embeddings of the labels' names.
    """

    def local(message, client, work):
        beta_l = tree.mix(client.label_count / client.n, T)
        return Index(work.mean(partial(feature, message)), beta_l), ()

    return local


def put(server: Server, uploads: Index, cohort) -> Server:
    """The `aggregate` that stores the uploaded indices."""
    return server._replace(index=tree.put(server.index, cohort.id, uploads))


def nothing(server, id):
    """The `send` of an exchange without a message."""
    return ()


def in_batches(plan: Plan) -> Plan:
    """The plan of the stages, which train and average in batches of BATCH."""
    return plan._replace(batch_size=BATCH, equal_steps=False, accumulate=1)


def stage(task: Task, name, rounds, exchange, sample, init=None, reliable=False) -> Stage:
    """Returns a stage of rounds of one exchange on the embeddings of the task.

    Without `init` it starts from the state of the previous stage. If the exchange has no `updates`,
    its clients send examples, their index or nothing, and transforms do not change these uploads.
    """
    exchange = exchange._replace(updates=exchange.updates or wire.all_kept)
    method = Method(init=init, round=(exchange,), predict=None, newcomer=None, sample=sample)
    start = None if init else go_on
    return Stage(
        name,
        method,
        rounds,
        start=start,
        embeddings=task.embeddings,
        plan=in_batches,
        reliable=reliable,
    )
