"""The sources of Client2Vec's index: DSA-IGN, the naive indices of Table 2, or an earlier run."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import losses
from fedjax_lab.errors import BadInput
from fedjax_lab.papers.client2vec import dsa_ign, naive_index, saved_index
from fedjax_lab.papers.client2vec.index import Index, similarity
from fedjax_lab.papers.client2vec.naive_index import NAIVE
from fedjax_lab.types import Array, Client, Method, PyTree, Stage, Task

INDICES = (*dsa_ign.STRATEGIES, *NAIVE)


class Source(NamedTuple):
    """The kind of the index, and how a run gets it; `client2vec` explains the settings."""

    kind: str  # one of INDICES
    part: str  # both, feature or label: the parts that S compares
    workdir: str  # of an earlier run; "": the index is computed
    training: dsa_ign.Training


def check_base(source: Source, base: Method) -> None:
    """Raises BadInput if this base and this index cannot be combined."""
    if changes(source) and (source.workdir or base.tune):
        loaded = f"config.method.index_of={source.workdir}" if source.workdir else ""
        raise BadInput(
            "config.method.index=local_weights cannot be combined with"
            f" {loaded or 'this config.method.base'}"
        )


def changes(source: Source) -> bool:
    """Returns whether the index changes in every round."""
    return source.kind == "local_weights"


def size(source: Source, task: Task, base: Method) -> int:
    """Returns F, the length of beta^f."""
    losses.check_classes(task)  # an index also describes the labels
    if source.workdir:
        return saved_index.kept(source.workdir)[0]["feature"].shape[-1]
    if changes(source):
        init: Any = base.init
        return jax.eval_shape(lambda: naive_index.head(init(jax.random.key(0), 2).server)).size
    return naive_index.size(task, source.kind)


def similarity_of(source: Source):
    """Returns the similarity S: (index, n [C]) -> [C], of the chosen parts of the index."""
    parts = ("feature",) if source.kind in NAIVE else Index._fields
    return partial(similarity, parts=parts if source.part == "both" else (source.part,))


def stages(source: Source, task: Task) -> tuple[Stage, ...]:
    """Returns the stages that compute the index, or none if the index needs no such stages."""
    if source.workdir or changes(source):
        return ()
    if source.kind in NAIVE:
        return naive_index.stages(task, source.kind)
    return dsa_ign.stages(task, source.training)


def facts(source: Source, key: Array, population: Client, last: PyTree) -> dict:
    """The `prepare` of the training stage: the fields of the index, and its clients' label counts.

    They are saved in the workdir, so that another run can load the index.
    """
    if source.workdir:
        return saved_index.load(source.workdir, np.asarray(population.label_count))
    return {**last.server.index._asdict(), "label_count": population.label_count}


def first_index(source: Source, size: int, num_clients: int, facts: dict) -> Index:
    """Returns the index that the training stage starts with."""
    feature = jnp.zeros((num_clients, size)) if changes(source) else facts["feature"]
    label: PyTree = facts.get("label", ())
    return Index(feature, label)
