"""What FedPick's paper measures of features z [n, d] that a trained encoder gives: plain NumPy.

Features are the outputs of a ReLU, not negative; a domain's examples are scored at a time.
"""

import numpy as np

from fedjax_lab.errors import BadInput

NEIGHBORS = 10  # of the probe
NEGLIGIBLE = 1e-12  # a share of the total scatter that is rounding


def sparsity(z: np.ndarray, epsilon: float = 1e-5) -> float:
    """Share of entries of z / |z|_2 up to `epsilon`, by row of z [n, d], averaged over rows.

    FedPick, eq. 3 and 4. A row of zeros counts 1.
    """
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    return float(np.mean(z <= epsilon * norm))


def fisher_score(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How well each dimension of z [n, d] tells the labels y [n] apart: S_b / S_w [d] float64.

    S_b = sum_j n_j (mean_j - mean)^2 and S_w = sum_j n_j var_j over classes j with n_j examples.
    A dimension that is constant scores 0; one that is constant within each class only, inf.
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
    """Mean finite Fisher score, and how many dimensions it leaves out as infinite.

    nan where all are.
    """
    score = fisher_score(z, y)
    finite = score[np.isfinite(score)]
    return float(finite.mean()) if len(finite) else float("nan"), len(score) - len(finite)


def top_dimensions(score: np.ndarray, ratio: float, ties: np.ndarray | float = 0.0) -> np.ndarray:
    """Indices of the ratio * d dimensions, rounded half up, of the highest score [d], best first.

    Equal scores are ordered by `ties` [d], the higher first, then by index. BadInput where none
    or more than all would be kept.
    """
    score = np.asarray(score)
    count = int(np.floor(round(ratio * len(score), 6) + 0.5))  # 0.145 * 100 is below 14.5
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
    """Accuracy in percent of a 10-nearest-neighbor vote on the `kept` dimensions of features.

    z [n, d], y [n]; `kept` are indices or a mask [d]. Distances are Euclidean, votes uniform; the
    nearest neighbor decides between classes with equal votes; equally distant neighbors are in
    scikit-learn's order. BadInput below 10 examples.
    """
    from sklearn.neighbors import NearestNeighbors

    if len(train_z) < NEIGHBORS:
        raise BadInput(
            f"the probe needs at least {NEIGHBORS} training examples, not {len(train_z)}"
        )
    finder = NearestNeighbors(n_neighbors=NEIGHBORS).fit(train_z[:, kept])
    nearest = finder.kneighbors(test_z[:, kept], return_distance=False)
    labels = np.asarray(train_y)[nearest]  # [n, 10], by distance
    votes = (labels[:, :, None] == labels[:, None, :]).sum(2)  # that each neighbor's label has
    first = votes.argmax(1)
    return 100 * float(np.mean(labels[np.arange(len(labels)), first] == test_y))


def selection_ratio(mask: np.ndarray) -> float:
    """Share of features that a mask [n, d] of 0 and 1 keeps, averaged over examples."""
    return float(np.mean(mask))


def overlap(
    frequency_i: np.ndarray, frequency_j: np.ndarray, ties_i: np.ndarray, ties_j: np.ndarray
) -> float:
    """Intersection over union of the halves of dimensions that two domains select most often.

    All are [d]: how often each dimension is selected, and its mean logit z^l, which orders equal
    frequencies (many dimensions are always or never selected). Random halves give near 1/3.
    """
    half_i = top_dimensions(frequency_i, 0.5, ties_i)
    half_j = top_dimensions(frequency_j, 0.5, ties_j)
    return len(np.intersect1d(half_i, half_j)) / len(np.union1d(half_i, half_j))
