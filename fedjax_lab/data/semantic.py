"""A partition by meaning: what looks alike is one client's, with clients alike in their labels."""

import warnings
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import partition
from fedjax_lab.data.dealing import Examples
from fedjax_lab.data.partition import Parts
from fedjax_lab.errors import BadInput

FITTED, REDUCED = 10_000, 100_000  # examples of a class that a mixture, and in all that PCA sees
SMALLEST_VARIANCE = 1e-4  # of a Gaussian in a direction, beside the embeddings' largest of 1


class Gaussians(NamedTuple):
    """Those of a mixture."""

    means: np.ndarray  # [n, E]
    covariances: np.ndarray  # [n, E, E]


def semantic(
    examples: Examples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    components: int = 32,
) -> Parts:
    """Yuan et al., ICLR 2022 (What do we mean by generalization in federated learning?).

    The embeddings (config.embedding) of each class are divided into as many clusters as there are
    clients, by a mixture of Gaussians. The clusters of one class after another, in random order,
    are then matched one to one with those of the class before, so that the sum of the KL
    divergences from the Gaussians before to their partners is smallest. Each chain of clusters is
    a client.

    The paper embeds images by a network that was trained on other images.

    components: to so many principal components embeddings are reduced first.
    """
    partition.check_clients(num_clients, len(examples.y))
    if components < 1:
        raise BadInput(f"config.partition.components must be at least 1, got {components}")
    classes, group, sizes = np.unique(examples.y, return_inverse=True, return_counts=True)
    if sizes.min() < num_clients:
        raise BadInput(
            f"partition semantic cannot make a cluster for each of {num_clients} clients of the"
            f" {sizes.min()} examples of class {classes[sizes.argmin()]}; lower"
            " config.partition.num_clients"
        )
    embedded = _reduced(examples.embed(), components, rng)
    client = np.empty(len(group), int)
    before, owner = None, np.arange(num_clients)  # Gaussians, and the client of each
    for c in rng.permutation(len(classes)):
        rows = np.flatnonzero(group == c)
        gaussians, cluster = _clustered(embedded[rows], num_clients, rng)
        owner = owner if before is None else owner[_partners(before, gaussians)]
        client[rows], before = owner[cluster], gaussians
    mixed = rng.permutation(len(client))
    return [
        part.astype(np.int32) for part in (mixed[client[mixed] == i] for i in range(num_clients))
    ]


def _reduced(embedded, components, rng):
    """The first principal components, of which the largest has a variance of 1."""
    from sklearn.decomposition import PCA

    if not np.isfinite(embedded).all():
        raise BadInput(
            "partition semantic: some embeddings (config.embedding) are not finite; the examples"
            " may be all alike, or their numbers too large"
        )
    seen = embedded[rng.permutation(len(embedded))[:REDUCED]]
    pca = PCA(min(components, *seen.shape), random_state=int(rng.integers(2**31))).fit(seen)
    return pca.transform(embedded) / np.sqrt(max(pca.explained_variance_[0], 1e-12))


def _clustered(embedded, count, rng):
    """So many Gaussians fitted to these embeddings [R, E], or to some of them; whose each is."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    seen = embedded[rng.permutation(len(embedded))[:FITTED]]
    seed = int(rng.integers(2**31))
    mixture = GaussianMixture(count, reg_covar=SMALLEST_VARIANCE, random_state=seed)
    with warnings.catch_warnings(), threadpool_limits(1):  # threads would wait for one another
        warnings.simplefilter("ignore", ConvergenceWarning)  # clusters need not be final
        mixture.fit(seen)
        return Gaussians(mixture.means_, mixture.covariances_), mixture.predict(embedded)


def _partners(before: Gaussians, after: Gaussians) -> np.ndarray:
    """Of each Gaussian after, the one before that it is matched with, [n]."""
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(divergences(before, after).T)[1]


def divergences(p: Gaussians, q: Gaussians) -> np.ndarray:
    """KL(p_i || q_j) of each pair, [n, m]."""
    precisions = np.linalg.inv(q.covariances)
    far = q.means - p.means[:, None]  # [n, m, E]
    distance = np.einsum("nme,mef,nmf->nm", far, precisions, far, optimize=True)
    trace = np.einsum("nef,mfe->nm", p.covariances, precisions, optimize=True)
    log_p, log_q = (np.linalg.slogdet(a.covariances)[1] for a in (p, q))
    return (trace + distance - p.means.shape[1] + log_q - log_p[:, None]) / 2
