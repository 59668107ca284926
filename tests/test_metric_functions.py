"""Metrics against scikit-learn, and user-defined metrics."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint
from scikit import metrics_of
from scipy.special import softmax
from sklearn.metrics import roc_auc_score, top_k_accuracy_score
from test_tasks import OBJECTIVES as TASKS

from fedjax_lab.simulation import metrics, units
from fedjax_lab.transforms import backdoor

N, K = 300, 12


def example(seed, ties=False, lacking=0):
    """Logits, labels and a mask with gaps; the first `lacking` classes have no real example."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(N, K)) * 2
    if ties:  # between classes and between examples
        logits[:, K // 2 :] = logits[:, : K // 2]
        logits = logits[rng.integers(0, N // 4, N)]
    mask = (rng.random(N) < 0.7).astype(np.float32)
    labels = np.where(mask > 0, rng.integers(lacking, K, N), 0)
    return logits.astype(np.float32), labels, mask


def compute(metric, logits, labels, mask):
    """Computes a metric as an evaluation with padding and one domain does."""
    if isinstance(metric, metrics.Whole):
        return float(jax.jit(metric.value)(logits, labels, mask))
    domain = jnp.asarray(mask)[:, None]
    sums = metrics.by_domain(metric, jnp.asarray(logits), jnp.asarray(labels), domain)
    return float(metric.value(jax.tree.map(lambda a: np.asarray(a, float)[0], sums), mask.sum()))


def in_sklearn(logits, y):
    top5 = 100 * top_k_accuracy_score(y, logits, k=5, labels=np.arange(K))
    return {**metrics_of(logits, y), "top5": top5}


@pytest.mark.parametrize("options", [{}, {"ties": True}, {"lacking": 3}], ids=str)
@pytest.mark.parametrize("name", metrics.BUILT_IN)
def test_metrics_equal_those_of_scikit_learn(name, options):
    """The examples include padding, equal logits and classes without an example."""
    for seed in range(2):
        logits, labels, mask = example(seed, **options)
        real = mask > 0
        expected = in_sklearn(logits[real], labels[real])[name]
        got = compute(metrics.BUILT_IN[name], logits, labels, mask)
        assert got == pytest.approx(expected, rel=1e-5), (name, seed)


def test_undefined_metrics_are_nan():
    """Word accuracy counts neither padding nor unknown words; AUROC needs two classes."""
    logits, y = np.eye(4, dtype=np.float32)[[1, 3, 2, 0]], np.array([1, 3, 3, 0])
    metric, mask = metrics.BUILT_IN["word_accuracy"], np.ones(4, np.float32)
    assert compute(metric, logits, y, mask) == 50
    assert np.isnan(compute(metric, logits, y % 2, mask))
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(50, 2)).astype(np.float32), rng.integers(0, 2, 50)
    metric, mask = metrics.BUILT_IN["auroc"], np.ones(50, np.float32)
    expected = 100 * roc_auc_score(y, softmax(logits, 1)[:, 1])  # that of the second class
    assert compute(metric, logits, y, mask) == pytest.approx(expected, rel=1e-5)
    assert np.isnan(compute(metric, logits, 0 * y, mask))


def test_nonfinite_logits_are_wrong_answers_with_an_infinite_loss():
    logits = np.full((2, K), np.nan, np.float32)
    arguments = logits, np.array([0, 11]), np.ones(2, np.float32)
    assert compute(metrics.BUILT_IN["top5"], *arguments) == 0
    assert compute(metrics.LOSS, *arguments) == np.inf
    logits = np.zeros((2, K), np.float32)
    logits[0, 0] = -np.inf  # an infinite loss, but the example is padding
    arguments = logits, np.array([0, 11]), np.array([0, 1], np.float32)
    assert compute(metrics.LOSS, *arguments) == pytest.approx(np.log(K))


def margin(logits, labels, mask):
    return jnp.max(logits, 1) - jnp.min(logits, 1)


def spread(logits, labels, mask):
    rows = mask[:, None] > 0
    return jnp.max(logits, where=rows, initial=-99) - jnp.min(logits, where=rows, initial=99)


spread.lower_is_better = True


def test_a_user_defined_metric_is_a_mean_or_sees_all_outputs():
    made = metrics.make([metrics.BUILT_IN["ece"], margin, spread, metrics.LOSS], K)
    assert [type(metric) for metric in made] == [metrics.Summed, metrics.Summed, metrics.Whole]
    assert [metric.name for metric in made] == ["ece", "margin", "spread"]
    assert [metric.lower_is_better for metric in made] == [True, False, True]
    logits, labels, mask = example(0)
    expected = (logits.max(1) - logits.min(1))[mask > 0].mean()
    assert compute(made[1], logits, labels, mask) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("on_host", lambda a, y, m: float(np.asarray(a).mean()), ": TracerArrayConversionError"),
        ("by_class", lambda a, y, m: jnp.mean(a, 0), "must return [N] values or one number"),
        ("two", lambda a, y: jnp.mean(a), "takes 2 positional arguments"),
        ("text", lambda a, y, m: {"mean": jnp.mean(a)}, " not something else"),
        ("imaginary", lambda a, y, m: 1j * m, " must return real numbers, not complex64"),
        ("top5", lambda a, y, m: m, "a metric cannot have the name 'top5'"),
        ("<lambda>", lambda a, y, m: m, "a metric cannot have the name '<lambda>'"),
    ],
)
def test_a_function_that_is_not_a_metric_is_a_one_line_error(name, function, message):
    function.__name__ = name
    for made in (function, partial(function)):
        error = complaint(metrics.make, [made], K)
        assert f"'{name}'" in error and message in error
    other = jax.tree_util.Partial(margin)
    other.__name__ = "margin"
    assert "two metrics with the name 'margin'" in complaint(metrics.make, [margin, other], K)


def test_properties_by_metric_name_match_the_metrics():
    of_attack = backdoor.success(lambda x: x, 0)
    lower = {name for name, metric in metrics.BUILT_IN.items() if metric.lower_is_better}
    of_tasks = [m for name in TASKS for m in TASKS[name].metrics]
    lower |= {metric.name for metric in of_tasks if metric.lower_is_better}
    assert lower == units.LOWER_IS_BETTER
    names = {metric.name for metric in of_tasks}
    assert units.PERCENT <= {"accuracy", of_attack.name, *metrics.BUILT_IN, *names}
    accuracies = ("global", "domains.a", "accuracy.mean", "id", *units.ONE_NUMBER)
    assert {units.metric_of(name) for name in accuracies} == {"accuracy"}
    names = ("loss.mean", "global_loss", "domains_loss.a_b.c", "ood_loss")
    assert {units.metric_of(name) for name in (*names, "new_loss", "new_tuned_loss")} == {"loss"}
    reserved = ("new", "tuned", "tuned_loss", "new_gap", "new_tuned_gap")
    assert not any(map(units.is_free, reserved)) and units.is_free("gap_of_new")
