"""Tests the partition `semantic` on embeddings with known styles."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedjax_lab.data.partitions import partitioning, semantic
from fedjax_lab.data.partitions.dealing import Examples
from fedjax_lab.errors import BadInput
from fedjax_lab.testing import check_partition

STYLES, CLASSES = 3, 4


def examples(count=600):
    """Examples whose style shifts the embeddings of all classes alike, and their styles."""
    rng = np.random.default_rng(0)
    y, style = rng.integers(0, CLASSES, count), rng.integers(0, STYLES, count)
    embedded = 3 * rng.normal(size=(CLASSES, 6))[y] + 9 * np.eye(6)[style]
    embedded = (embedded + 0.3 * rng.normal(size=(count, 6))).astype(np.float32)
    domain = np.zeros(count, np.int32)
    return Examples(embedded, y.astype(np.int32), domain, None, (), lambda: embedded), style


def dealt(seed=0, num_clients=STYLES, **settings):
    made, style = examples()
    rng = np.random.default_rng(seed)
    return semantic.semantic(made, num_clients, rng, **settings), made.y, style


def test_each_client_has_one_style_and_all_classes():
    parts, y, style = dealt()
    assert sorted(np.concatenate(parts)) == list(range(len(y)))
    held = partitioning.counts(parts, style, STYLES)
    assert (held.max(1) == held.sum(1)).all() and (held.max(0) == held.sum(0)).all()
    assert partitioning.skew(partitioning.counts(parts, y, CLASSES)).emd < 0.2


def test_divergences_equal_sampled_means_of_log_ratios():
    """The reference is the mean of log p - log q over samples of p."""
    rng = np.random.default_rng(0)
    roots, means = rng.normal(size=(2, 2, 3, 3)) / 2, rng.normal(size=(2, 2, 3))
    p, q = (
        semantic.Gaussians(mean, np.eye(3) + root @ root.transpose(0, 2, 1))
        for mean, root in zip(means, roots, strict=True)
    )
    ours = semantic.divergences(p, q)
    for i in range(2):
        at = multivariate_normal(p.means[i], p.covariances[i])
        x = at.rvs(50_000, random_state=i)
        for j in range(2):
            log_q = multivariate_normal(q.means[j], q.covariances[j]).logpdf(x)
            assert ours[i, j] == pytest.approx((at.logpdf(x) - log_q).mean(), rel=0.05)


def test_semantic_is_a_valid_partition():
    check_partition("semantic", num_clients=2, components=4)


def test_bad_settings_and_embeddings_are_rejected():
    with pytest.raises(BadInput, match="divide the 1.. examples of class"):
        dealt(num_clients=200)
    made, _ = examples(60)
    made = made._replace(embed=lambda: np.where(made.x > 9, np.nan, made.x))
    with pytest.raises(BadInput, match="some embeddings .config.embedding. are not finite"):
        semantic.semantic(made, 2, np.random.default_rng(0))
