"""Metrics of outputs, computed by scikit-learn."""

import numpy as np
from scipy.special import softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, f1_score, log_loss, roc_auc_score

from fedjax_lab.simulation.metrics import BINS


def metrics_of(logits, y):
    """{name: value} of all built-in metrics but top5; None where a metric is not defined."""
    p, classes = softmax(logits.astype(float), 1), np.arange(logits.shape[1])
    right, sure = p.argmax(1) == y, p.max(1)
    areas = [roc_auc_score(y == k, p[:, k]) for k in classes if 0 < (y == k).sum() < len(y)]
    precisions = [average_precision_score(y == k, p[:, k]) for k in np.unique(y)]
    true, predicted = calibration_curve(right, sure, n_bins=BINS)
    edges = np.linspace(0, 1, BINS + 1)
    share = np.bincount(np.searchsorted(edges[1:-1], sure), minlength=BINS) / len(y)
    loss = log_loss(y, p, labels=classes)
    return {
        "loss": loss,
        "macro_f1": 100 * f1_score(y, p.argmax(1), average="macro"),
        "map": 100 * np.mean(precisions),
        "auroc": 100 * np.mean(areas) if areas else None,
        "ece": 100 * share[share > 0] @ abs(true - predicted),
        "perplexity": np.exp(loss),
        "word_accuracy": 100 * right[y > 1].mean() if (y > 1).any() else None,
    }
