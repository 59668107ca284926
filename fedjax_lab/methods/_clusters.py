"""Clusters of clients, which are formed on the host from one vector per client.

Their models are averaged in each round.
"""

import warnings
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import Within
from fedjax_lab.types import Array, PyTree, Task

CAP = 1.2  # largest size of a balanced cluster, in mean sizes (FedConcat's released code)
PASSES = 100  # most iterations of balanced k-means
MOST_CLUSTERS = 12  # most clusters that the elbow method considers

Number = Annotated[int, Within(1, 1000)]  # of clusters, whose first weights are traced one by one


def generator(key: Array) -> np.random.Generator:
    """A NumPy random generator seeded by a JAX key, for work on the host."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def kmeans(points: np.ndarray, num_clusters: int, rng: np.random.Generator):
    """Fits scikit-learn's k-means++ with ten restarts to points [n, D]; returns the `KMeans`."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    seed = int(rng.integers(2**31))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # more clusters than distinct points
        return KMeans(num_clusters, n_init=10, random_state=seed).fit(points)


def check_number(num_clusters: int | str, num_clients: int) -> None:
    """Raises BadInput unless 1 <= num_clusters <= num_clients; ignores words such as "elbow"."""
    if isinstance(num_clusters, int) and not 1 <= num_clusters <= num_clients:
        raise BadInput(
            f"config.method.num_clusters must be from 1 to the number of clients, {num_clients},"
            f" got {num_clusters}"
        )


def assign(
    points: np.ndarray, num_clusters: int, rng: np.random.Generator, balanced: bool = False
) -> np.ndarray:
    """Assigns each of the points [n, D] to a cluster by k-means; returns labels [n].

    There are fewer than `num_clusters` clusters if there are fewer distinct points, unless
    `balanced` is set: see `balance`. Raises BadInput unless 1 <= num_clusters <= n.
    """
    check_number(num_clusters, len(points))
    if balanced:
        return balance(points, kmeans(points, num_clusters, rng).cluster_centers_, rng)
    return kmeans(points, min(num_clusters, different(points)), rng).labels_


def different(points: np.ndarray) -> int:
    """The number of distinct points [n, D]."""
    return len(np.unique(points, axis=0))


def balance(points: np.ndarray, centers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Runs k-means from these centers [K, D] with a cap on the cluster size; returns labels [n].

    The farthest members of a cluster that is too large move to the nearest cluster with room
    (FedConcat, appendix D.8).
    """
    n, K = len(points), len(centers)
    cap = max(int(CAP * n / K), -(-n // K))
    centers, labels = centers.copy(), np.full(n, -1)
    for _ in range(PASSES):
        distance = np.linalg.norm(points[:, None] - centers, axis=-1)  # [n, K]
        last, labels = labels, distance.argmin(1)
        empty = np.bincount(labels, minlength=K) == 0
        for k in range(K):
            members = np.flatnonzero(labels == k)
            farthest_first = members[np.argsort(-distance[members, k], kind="stable")]
            labels[farthest_first[: max(0, len(members) - cap)]] = -1
        for i in np.flatnonzero(labels < 0):
            room = np.bincount(labels[labels >= 0], minlength=K) < cap
            labels[i] = np.where(room, distance[i], np.inf).argmin()
        for k in range(K):
            members = labels == k
            if members.any():
                centers[k] = points[members].mean(0)
            else:
                centers[k] = points[rng.integers(n)]
        if not empty.any() and np.array_equal(labels, last):
            break
    return labels


def elbow(points: np.ndarray, rng: np.random.Generator) -> tuple[int, np.ndarray]:
    """Chooses a number of clusters K by the elbow method; returns K and the inertia of each K.

    The inertia is computed for K = 1, 2, ... up to 12, but below the number of points and at most
    the number of distinct points. The chosen K is the one whose inertia is farthest from the chord
    between the first and the last; ties go to fewer clusters. Raises BadInput for a single point.
    """
    most = min(MOST_CLUSTERS, len(points) - 1, different(points))
    if most < 1:
        raise BadInput("config.method.num_clusters=elbow needs at least two clients")
    inertia = np.array([kmeans(points, k, rng).inertia_ for k in range(1, most + 1)])
    chord = np.linspace(inertia[0], inertia[-1], most)
    distance = np.abs(chord - inertia)  # up to a constant factor the distance from the chord
    return 1 + int(np.argmax(distance.round(12))), inertia


def form(
    p: np.ndarray, num_clusters: int | str, balanced: bool, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Clusters clients by their label distributions p [C, classes]; returns the facts of stage 2.

    The fact `member` [K, C] is 1 where a client belongs to a cluster. The facts `p` and, with the
    elbow method, `inertia` are kept for the figures.
    """
    facts = {"p": np.asarray(p, np.float32)}
    if isinstance(num_clusters, str):  # "elbow", the only word that is allowed
        num_clusters, facts["inertia"] = elbow(p, rng)
    a = assign(p, num_clusters, rng, balanced)  # [C]
    return facts | {"member": (a == np.unique(a)[:, None]).astype(np.float32)}


def distinct_starts(task: Task, key: Array, num_clusters: int) -> PyTree:
    """The initial models of K clusters, leaves [K, ...].

    The first cluster starts from the same weights as any other method with this key.
    """
    others = [jax.random.fold_in(key, k) for k in range(1, num_clusters)]
    return jax.tree.map(lambda *a: jnp.stack(a), *[task.init(k) for k in (key, *others)])


def average(share: Array, models: PyTree, centers: PyTree) -> PyTree:
    """Averages the models [M] of each cluster, weighted by share [K, M]; leaves [K, ...].

    A cluster without members keeps its center.
    """
    total = jnp.sum(share, 1, keepdims=True)  # [K, 1]
    mean = tree.mix(share / jnp.maximum(total, 1e-9), models)
    return tree.where(total[:, 0] > 0, mean, centers)
