"""What the leaves of an upload are updates of, so that a transform can act on updates alone.

An upload is in general not an update: FedAvg's clients send models, SCAFFOLD's also the changes of
their control variates, IFCA's also the number of their cluster. `Exchange.updates` says which is
which. It gives a tree like the upload in which a leaf is

    an array  that the upload's leaf has been computed from: the update is their difference
    ITSELF    where the upload's leaf is an update, or another quantity that may be changed as one
    KEPT      where it is a count, an id, a running statistic, or a description of a client's data:
              no transform changes it
"""

import enum

import jax

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, Exchange, PyTree, Weights


class Leaf(enum.Enum):
    """What a leaf of an upload is where it has not been computed from an array."""

    ITSELF = enum.auto()
    KEPT = enum.auto()


ITSELF, KEPT = Leaf.ITSELF, Leaf.KEPT


def kept(upload: PyTree) -> PyTree:
    """KEPT for each leaf."""
    return jax.tree.map(lambda _: KEPT, upload)


def itself(upload: PyTree) -> PyTree:
    """ITSELF for each leaf."""
    return jax.tree.map(lambda _: ITSELF, upload)


def all_kept(message: PyTree, id: Array, upload: PyTree) -> PyTree:
    """The `Exchange.updates` of an exchange in which clients send nothing that is an update."""
    return kept(upload)


def of_model(start: Weights, upload: Weights) -> Weights:
    """Of a model that has been trained from `start`: running statistics are kept."""
    return Weights(start.params, kept(upload.stats))


def of_pseudo_gradient(upload: Weights) -> Weights:
    """Of weights whose parameters are a difference already: running statistics are kept."""
    return Weights(itself(upload.params), kept(upload.stats))


def references(exchange: Exchange, message: PyTree, id: Array, upload: PyTree) -> PyTree:
    """For each leaf of a client's upload what it is an update of.

    An exchange that does not say so must send a model and receive one of the same structure.
    BadInput where it does not.
    """
    if exchange.updates is not None:
        return exchange.updates(message, id, upload)
    if not jax.tree.leaves(upload):
        raise BadInput("its clients upload nothing")
    alike = isinstance(upload, Weights) and isinstance(message, Weights)
    if not alike or jax.tree.structure(message) != jax.tree.structure(upload):  # type: ignore[operator]
        raise BadInput(
            "it does not say what its uploads are updates of (Exchange.updates), so that they"
            " cannot be changed on their way"
        )
    return of_model(message, upload)


def updates(references: PyTree, upload: PyTree) -> list[Array]:
    """The updates in an upload, in the order of its leaves; those that are KEPT are left out."""
    pairs = zip(jax.tree.leaves(references), jax.tree.leaves(upload), strict=True)
    return [u if r is ITSELF else u - r for r, u in pairs if r is not KEPT]


def with_updates(references: PyTree, upload: PyTree, after: list[Array]) -> PyTree:
    """The upload with other updates. A number whose update is unchanged stays as it is, exactly."""
    olds, news = iter(updates(references, upload)), iter(after)

    def one(r, u):
        if r is KEPT:
            return u
        old, new = next(olds), next(news)
        return new if r is ITSELF else jax.numpy.where(new == old, u, r + new)

    leaves, structure = jax.tree.flatten(upload)
    made = [one(r, u) for r, u in zip(jax.tree.leaves(references), leaves, strict=True)]
    return tree.typed_like(jax.tree.unflatten(structure, made), upload)
