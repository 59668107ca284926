"""The measures of FedPick's paper for the features z [n, d] of a trained encoder, in plain NumPy.

Features are outputs of a ReLU and therefore not negative. The n examples are those of one domain.
"""

import numpy as np

from fedjax_lab.errors import BadInput

NEIGHBORS = 10  # the number of neighbors of the probe
NEGLIGIBLE = 1e-12  # a share of the total scatter that counts as rounding error


def sparsity(z: np.ndarray, epsilon: float = 1e-5) -> float:
    """The share of entries of z / |z|_2 that are at most `epsilon`, averaged over rows of z [n, d].

    FedPick, eq. 3 and 4. The share of a row of zeros is 1.
    """
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    return float(np.mean(z <= epsilon * norm))


def fisher_score(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The Fisher score S_b / S_w of each dimension of z [n, d] for the labels y [n]: [d] float64.

    S_b = sum_j n_j (mean_j - mean)^2 and S_w = sum_j n_j var_j over classes j with n_j examples.
    A constant dimension scores 0; one that is constant only within each class scores inf.
    """
    z, y = np.asarray(z), np.asarray(y)
    counts, centers, within = [], [], 0.0
    for label in np.unique(y):
        shifted = np.subtract(z[y == label], z[0], dtype=np.float64)  # constants are exactly 0
        counts.append(len(shifted))
        centers.append(shifted.mean(0))
        within = within + len(shifted) * shifted.var(0)
    n, means = np.array(counts)[:, None], np.array(centers)
    between = (n * (means - (n * means).sum(0) / n.sum()) ** 2).sum(0)
    alike = within <= NEGLIGIBLE * (within + between)
    ratio = np.divide(between, within, out=np.zeros_like(between), where=~alike)
    return np.where(alike & (between > 0), np.inf, ratio)


def mean_fisher(z: np.ndarray, y: np.ndarray) -> tuple[float, int]:
    """The mean of the finite Fisher scores, and the number of infinite ones, which it leaves out.

    The mean is nan if all scores are infinite.
    """
    score = fisher_score(z, y)
    finite = score[np.isfinite(score)]
    return float(finite.mean()) if len(finite) else float("nan"), len(score) - len(finite)


def top_dimensions(score: np.ndarray, ratio: float, ties: np.ndarray | float = 0.0) -> np.ndarray:
    """Indices of the ratio * d dimensions (rounded half up) with the highest scores, best first.

    Equal scores [d] are ordered by `ties` [d], the higher first, then by index. Raises BadInput if
    the ratio keeps no dimension, or more than there are.
    """
    score = np.asarray(score)
    count = int(np.floor(round(ratio * len(score), 6) + 0.5))  # as 0.145 * 100 is below 14.5
    if not 0 < count <= len(score):
        raise BadInput(
            f"ratio {ratio} keeps {count} of {len(score)} dimensions; it must keep"
            " at least 1 and at most all"
        )
    return np.lexsort((-np.broadcast_to(ties, score.shape), -score))[:count]


def probe(
    train_z: np.ndarray,
    train_y: np.ndarray,
    test_z: np.ndarray,
    test_y: np.ndarray,
    kept: np.ndarray,
) -> float:
    """The accuracy in percent of a 10-nearest-neighbor vote on the `kept` dimensions of features.

    z [n, d], y [n]; `kept` are indices or a mask [d]. Distances are Euclidean and votes uniform.
    The nearest neighbor decides between classes with equal votes; equally distant neighbors are in
    scikit-learn's order. Raises BadInput if there are fewer than 10 training examples.
    """
    from sklearn.neighbors import NearestNeighbors

    if len(train_z) < NEIGHBORS:
        raise BadInput(
            f"the probe needs at least {NEIGHBORS} training examples, not {len(train_z)}"
        )
    finder = NearestNeighbors(n_neighbors=NEIGHBORS).fit(train_z[:, kept])
    nearest = finder.kneighbors(test_z[:, kept], return_distance=False)
    labels = np.asarray(train_y)[nearest]  # [n, 10], by distance
    votes = (labels[:, :, None] == labels[:, None, :]).sum(2)  # for each neighbor's label
    first = votes.argmax(1)
    return 100 * float(np.mean(labels[np.arange(len(labels)), first] == test_y))


def selection_ratio(mask: np.ndarray) -> float:
    """The share of features that a mask [n, d] of 0 and 1 keeps, averaged over examples."""
    return float(np.mean(mask))


def overlap(
    frequency_i: np.ndarray, frequency_j: np.ndarray, ties_i: np.ndarray, ties_j: np.ndarray
) -> float:
    """Intersection over union of the halves of dimensions that two domains select most often.

    Two random halves give about 1/3.

    Args:
      frequency_i: [d] how often domain i selects each dimension.
      frequency_j: [d] the same for domain j.
      ties_i: [d] the mean logit z^l of each dimension in domain i, which orders equal frequencies,
        because many dimensions are always or never selected.
      ties_j: [d] the same for domain j.
    """
    half_i = top_dimensions(frequency_i, 0.5, ties_i)
    half_j = top_dimensions(frequency_j, 0.5, ties_j)
    return len(np.intersect1d(half_i, half_j)) / len(np.union1d(half_i, half_j))
