"""Describes which leaves of an upload are updates, so that transforms change nothing else.

In general an upload is not an update: FedAvg's clients send models, SCAFFOLD's clients also send
the changes of their control variates, and IFCA's clients also send the number of their cluster.
`Exchange.updates` describes the upload: it returns a tree of the same structure, in which a leaf is

    an array  if the upload's leaf was computed from this array: the update is their difference
    ITSELF    if the upload's leaf is an update, or a quantity that can be changed like one
    KEPT      if it is a count, an id, a running statistic, or a description of a client's data:
              no transform changes it
"""

import enum

import jax

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, Exchange, PyTree, Weights


class Leaf(enum.Enum):
    """Marks a leaf of an upload that was not computed from an array of the message."""

    ITSELF = enum.auto()
    KEPT = enum.auto()


ITSELF, KEPT = Leaf.ITSELF, Leaf.KEPT


def kept(upload: PyTree) -> PyTree:
    """The upload's tree with KEPT for each leaf."""
    return jax.tree.map(lambda _: KEPT, upload)


def itself(upload: PyTree) -> PyTree:
    """The upload's tree with ITSELF for each leaf."""
    return jax.tree.map(lambda _: ITSELF, upload)


def all_kept(message: PyTree, id: Array, upload: PyTree) -> PyTree:
    """The `Exchange.updates` of an exchange whose uploads contain no updates."""
    return kept(upload)


def all_itself(message: PyTree, id: Array, upload: PyTree) -> PyTree:
    """The `Exchange.updates` of an exchange whose uploads are themselves updates."""
    return itself(upload)


def model_references(start: Weights, upload: Weights) -> Weights:
    """The references of a model trained from `start`; its running statistics are KEPT."""
    return Weights(start.params, kept(upload.stats))


def update_references(upload: Weights) -> Weights:
    """The references of weights whose parameters are already differences; statistics are KEPT."""
    return Weights(itself(upload.params), kept(upload.stats))


def references(exchange: Exchange, message: PyTree, id: Array, upload: PyTree) -> PyTree:
    """The references of a client's upload: for each leaf an array, ITSELF or KEPT.

    They come from `exchange.updates`. Without it the message and the upload must be models of the
    same structure, and the upload is an update of the message; else BadInput.
    """
    if exchange.updates is not None:
        return exchange.updates(message, id, upload)
    if not jax.tree.leaves(upload):
        raise BadInput("its clients upload nothing")
    alike = isinstance(upload, Weights) and isinstance(message, Weights)
    if not alike or jax.tree.structure(message) != jax.tree.structure(upload):  # type: ignore[operator]
        raise BadInput(
            "it does not say what its uploads are updates of (Exchange.updates), so they cannot"
            " be transformed"
        )
    return model_references(message, upload)


def updates(references: PyTree, upload: PyTree) -> list[Array]:
    """The updates in an upload, in the order of its leaves; KEPT leaves are left out."""
    pairs = zip(jax.tree.leaves(references), jax.tree.leaves(upload), strict=True)
    return [u if r is ITSELF else u - r for r, u in pairs if r is not KEPT]


def with_updates(references: PyTree, upload: PyTree, after: list[Array]) -> PyTree:
    """The upload with its updates replaced by `after`; the inverse of `updates`.

    A number whose update is unchanged keeps its exact value, without rounding.
    """
    olds, news = iter(updates(references, upload)), iter(after)

    def one(r, u):
        if r is KEPT:
            return u
        old, new = next(olds), next(news)
        return new if r is ITSELF else jax.numpy.where(new == old, u, r + new)

    leaves, structure = jax.tree.flatten(upload)
    made = [one(r, u) for r, u in zip(jax.tree.leaves(references), leaves, strict=True)]
    return tree.typed_like(jax.tree.unflatten(structure, made), upload)
