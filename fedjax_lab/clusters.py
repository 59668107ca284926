"""Clusters of clients: formed on the host from one vector per client, averaged in each round."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Array, PyTree, Task

CAP = 1.2  # of balanced clusters, in mean sizes (FedConcat's released code)
PASSES = 100  # of balanced k-means, at most
MOST_CLUSTERS = 12  # that the elbow looks at


def generator(key: Array) -> np.random.Generator:
    """NumPy's random numbers from a key, for work on the host."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def kmeans(points: np.ndarray, num_clusters: int, rng: np.random.Generator):
    """scikit-learn's k-means++ with ten restarts on points [n, D]: a fitted `KMeans`."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    seed = int(rng.integers(2**31))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # more clusters than different points
        return KMeans(num_clusters, n_init=10, random_state=seed).fit(points)


def check_number(num_clusters: int | str, num_clients: int) -> None:
    """BadInput unless 1 <= num_clusters <= num_clients; does not check a word such as "elbow"."""
    if isinstance(num_clusters, int) and not 1 <= num_clusters <= num_clients:
        raise BadInput(
            f"config.method.num_clusters must be from 1 to the {num_clients} clients, got"
            f" {num_clusters}"
        )


def assign(
    points: np.ndarray, num_clusters: int, rng: np.random.Generator, balanced: bool = False
) -> np.ndarray:
    """The cluster of each point [n]: of K clusters, or fewer where fewer points are different.

    With `balanced` there are always K. BadInput where K is not from 1 to n.
    """
    check_number(num_clusters, len(points))
    if balanced:
        return balance(points, kmeans(points, num_clusters, rng).cluster_centers_, rng)
    return kmeans(points, min(num_clusters, different(points)), rng).labels_


def different(points: np.ndarray) -> int:
    """How many different points there are."""
    return len(np.unique(points, axis=0))


def balance(points: np.ndarray, centers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """K-means from these centers [K, D] in which no cluster exceeds its cap: labels [n].

    FedConcat, appendix D.8. The farthest members of a full cluster go to the nearest one with room.
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
    """Number of clusters K at the bend, and the inertia of K = 1, 2, ... that shows it.

    The bend is farthest from the chord between the first and the last; ties go to fewer clusters.
    K is at most 12, below the number of points, and at most the number of different points.
    BadInput for a single point.
    """
    most = min(MOST_CLUSTERS, len(points) - 1, different(points))
    if most < 1:
        raise BadInput("config.method.num_clusters=elbow needs at least two clients")
    inertia = np.array([kmeans(points, k, rng).inertia_ for k in range(1, most + 1)])
    chord = np.linspace(inertia[0], inertia[-1], most)
    far = np.abs(chord - inertia)  # up to one factor the distance from the chord
    return 1 + int(np.argmax(far.round(12))), inertia


def form(
    p: np.ndarray, num_clusters: int | str, balanced: bool, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """The facts with which stage 2 begins, from the label distributions p [C, classes].

    `member` [K, C] is 1 where a client belongs to a cluster; `p`, and the elbow's `inertia`, are
    kept for the figures.
    """
    facts = {"p": np.asarray(p, np.float32)}
    if isinstance(num_clusters, str):  # elbow, the only word that the setting takes
        num_clusters, facts["inertia"] = elbow(p, rng)
    a = assign(p, num_clusters, rng, balanced)  # [C]
    return facts | {"member": (a == np.unique(a)[:, None]).astype(np.float32)}


def distinct_starts(task: Task, key: Array, num_clusters: int) -> PyTree:
    """First models, leaves [K, ...]; the first cluster starts where every other method does."""
    others = [jax.random.fold_in(key, k) for k in range(1, num_clusters)]
    return jax.tree.map(lambda *a: jnp.stack(a), *[task.init(k) for k in (key, *others)])


def average(share: Array, models: PyTree, centers: PyTree) -> PyTree:
    """Each cluster's mean of the models [M], weighted by share [K, M]; leaves [K, ...].

    A cluster without members keeps its center.
    """
    total = jnp.sum(share, 1, keepdims=True)  # [K, 1]
    mean = tree.mix(share / jnp.maximum(total, 1e-9), models)
    return tree.where(total[:, 0] > 0, mean, centers)
