"""A partition by meaning: each client holds similar examples of every class."""

import warnings
from typing import Annotated, NamedTuple

import numpy as np

from fedjax_lab.data.partitions import partitioning
from fedjax_lab.data.partitions.dealing import Examples, mixed_by_number
from fedjax_lab.data.partitions.partitioning import Parts
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import Within, checked

FITTED = 10_000  # examples of a class to which a mixture is fitted
REDUCED = 100_000  # examples to which the principal components are fitted
SMALLEST_VARIANCE = 1e-4  # of a Gaussian in any direction; the largest of all embeddings is 1


class Gaussians(NamedTuple):
    """The Gaussians of a mixture."""

    means: np.ndarray  # [n, E]
    covariances: np.ndarray  # [n, E, E]


@checked("partition")
def semantic(
    examples: Examples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    components: Annotated[int, Within(1)] = 32,
) -> Parts:
    """Semantic: clients differ in the appearance of examples, not in their labels.

    Yuan et al., ICLR 2022 (What do we mean by generalization in federated learning?). The
    embeddings (config.embedding) of each class are clustered by a Gaussian mixture with one cluster
    for each client. The classes are then processed in random order: the clusters of each class are
    matched one to one with those of the class before, so that the sum of the KL divergences from
    the previous Gaussians to their partners is minimal. Each chain of matched clusters is a client.

    The paper embeds images with a network that was trained on other images.

    components: the number of principal components to which embeddings are reduced first.
    """
    partitioning.check_clients(num_clients, len(examples.y))
    classes, group, sizes = np.unique(examples.y, return_inverse=True, return_counts=True)
    if sizes.min() < num_clients:
        raise BadInput(
            f"partition semantic cannot divide the {sizes.min()} examples of class"
            f" {classes[sizes.argmin()]} into a cluster for each of {num_clients} clients; lower"
            " config.partition.num_clients"
        )
    embedded = _reduced(examples.embed(), components, rng)
    client = np.empty(len(group), int)
    before, owner = None, np.arange(num_clients)  # Gaussians of the class before, their clients
    for c in rng.permutation(len(classes)):
        rows = np.flatnonzero(group == c)
        gaussians, cluster = _clustered(embedded[rows], num_clients, rng)
        owner = owner if before is None else owner[_partners(before, gaussians)]
        client[rows], before = owner[cluster], gaussians
    return mixed_by_number(client, num_clients, rng)


def _reduced(embedded, components, rng):
    """The first principal components, scaled so that the largest variance is 1."""
    from sklearn.decomposition import PCA

    if not np.isfinite(embedded).all():
        raise BadInput(
            "partition semantic: some embeddings (config.embedding) are not finite; the examples"
            " may be all equal, or have numbers that are too large"
        )
    seen = embedded[rng.permutation(len(embedded))[:REDUCED]]
    pca = PCA(min(components, *seen.shape), random_state=int(rng.integers(2**31))).fit(seen)
    return pca.transform(embedded) / np.sqrt(max(pca.explained_variance_[0], 1e-12))


def _clustered(embedded, count, rng):
    """Fits `count` Gaussians to (some of) the embeddings [R, E]; returns them and clusters [R]."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    seen = embedded[rng.permutation(len(embedded))[:FITTED]]
    seed = int(rng.integers(2**31))
    mixture = GaussianMixture(count, reg_covar=SMALLEST_VARIANCE, random_state=seed)
    with warnings.catch_warnings(), threadpool_limits(1):  # more threads are slower
        warnings.simplefilter("ignore", ConvergenceWarning)  # clusters need not have converged
        mixture.fit(seen)
        return Gaussians(mixture.means_, mixture.covariances_), mixture.predict(embedded)


def _partners(before: Gaussians, after: Gaussians) -> np.ndarray:
    """The index of the Gaussian in `before` that each Gaussian in `after` is matched with, [n]."""
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(divergences(before, after).T)[1]


def divergences(p: Gaussians, q: Gaussians) -> np.ndarray:
    """KL(p_i || q_j) of each pair of Gaussians, [n, m]."""
    precisions = np.linalg.inv(q.covariances)
    diff = q.means - p.means[:, None]  # [n, m, E]
    distance = np.einsum("nme,mef,nmf->nm", diff, precisions, diff, optimize=True)
    trace = np.einsum("nef,mfe->nm", p.covariances, precisions, optimize=True)
    log_p, log_q = (np.linalg.slogdet(a.covariances)[1] for a in (p, q))
    return (trace + distance - p.means.shape[1] + log_q - log_p[:, None]) / 2
