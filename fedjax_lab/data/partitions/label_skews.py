"""Partitions by label: shards of sorted examples, and the extended Dirichlet distribution."""

import numpy as np

from fedjax_lab.data.partitions import partitioning
from fedjax_lab.data.partitions.partitioning import Parts
from fedjax_lab.errors import BadInput, check_range
from fedjax_lab.ranges import Positive, checked

TRIES = 1000  # draws of `extended_dirichlet`


@checked("partition")
def shards(
    y, domain, num_clients: int, rng: np.random.Generator, *, shards_per_client: Positive[int] = 2
) -> Parts:
    """Shards(shards_per_client): the examples by label are cut into n s shards, s for each client.

    McMahan et al., AISTATS 2017, Section 3: MNIST in 200 shards of 300 examples, two for each of
    100 clients. Shards are assigned at random. If the examples do not divide evenly, the sizes of
    shards differ by one. Examples of one class are in random order.

    shards_per_client: the number of shards s of each client.
    """
    partitioning.check_clients(num_clients, len(y))
    count = num_clients * shards_per_client
    if count > len(y):
        raise BadInput(
            f"config.partition.shards_per_client must be from 1 to {len(y) // num_clients} for"
            f" {len(y)} examples and {num_clients} clients, got {shards_per_client}"
        )
    rows = rng.permutation(len(y))
    rows = rows[np.argsort(np.asarray(y)[rows], kind="stable")]
    pieces = np.array_split(rows.astype(np.int32), count)
    owned = rng.permutation(count).reshape(num_clients, shards_per_client)
    return [rng.permutation(np.concatenate([pieces[i] for i in of_client])) for of_client in owned]


@checked("partition")
def extended_dirichlet(
    y,
    domain,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes: Positive[int] = 2,
    alpha: Positive[float] = 10.0,
) -> Parts:
    """ExDir(classes, alpha): `classes` classes a client, each divided by Dir(alpha).

    Li and Lyu, NeurIPS 2023. Classes are allocated to clients one after another: each client gets
    the classes with the fewest owners so far (ties at random), so that the numbers of owners differ
    by one at most. A client may get no examples of some of its classes; the shares are drawn again,
    at most TRIES times, until every client has examples.

    classes: the number of classes C of each client.
    alpha: the concentration of the Dirichlet distribution.
    """
    partitioning.check_clients(num_clients, len(y))
    ids, group = np.unique(np.asarray(y), return_inverse=True)
    check_range("partition.classes", classes, 1, len(ids), "the number of classes")
    if num_clients * classes < len(ids):
        raise BadInput(
            f"config.partition.num_clients={num_clients} clients with {classes} classes each cannot"
            f" hold all {len(ids)} classes; increase num_clients or classes"
        )
    owners = _allocate(num_clients, len(ids), classes, rng)
    for _ in range(TRIES):
        counts = _divide(np.bincount(group), owners, alpha, rng)
        if counts.any(0).all():
            return partitioning.deal_counts(group, counts, rng)
    raise BadInput(
        f"config.partition.alpha={alpha} left a client without examples in each of {TRIES} draws;"
        " raise alpha or classes, or lower num_clients"
    )


def _divide(sizes, owners, alpha, rng):
    """Counts [K, n]: classes of sizes [K] are divided among their owners [n, K] by Dir(alpha)."""
    counts = np.zeros(owners.T.shape, int)
    for c, size in enumerate(sizes):
        holders = np.flatnonzero(owners[:, c])
        counts[c, holders] = partitioning.cut(
            rng.dirichlet(np.full(len(holders), alpha)), int(size)
        )
    return counts


def _allocate(num_clients, num_classes, k, rng):
    """The classes that each client owns, [n, K] bool: k per client, all classes equally often."""
    owners = np.zeros((num_clients, num_classes), bool)
    for i in range(num_clients):
        order = np.lexsort((rng.random(num_classes), owners.sum(0)))
        owners[i, order[:k]] = True
    return owners
