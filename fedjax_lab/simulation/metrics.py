"""The metrics of an evaluation besides accuracy: the loss, and the metrics that a config names.

A metric is a function of a model's logits [N, K], the labels [N] and a mask [N], which is 0 for
padding. If it returns [N], one value for each example, the metric is the mean over examples. If it
returns one number, it gets all examples of a client (or of the global test set) at once, so the
device holds all their logits while a client is scored: N * K float32.

A metric that is not a mean but can be computed from sums over examples is a `Summed`. Only the sums
are stored, so its memory does not grow with the number of examples.

Definitions are those of scikit-learn; metrics that are fractions are in percent.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab.errors import BadInput, cut, message_of, quoted
from fedjax_lab.simulation import units
from fedjax_lab.types import Array, PyTree

SPECIAL = 2  # the first two classes of word predictions are padding and the unknown word
BINS = 15  # of the calibration error: equally wide, each without its lower edge


class Summed(NamedTuple):
    """A metric that is computed from sums over examples.

    `value` runs on the host for many clients at once: the leaves of its first argument are the sums
    [C, ...] in float64, the second argument is the number of examples [C].
    """

    name: str
    statistics: Callable[[Array, Array, Array], PyTree]  # (logits, labels, mask) -> [N, ...]
    value: Callable[[Any, np.ndarray], np.ndarray]  # (sums, total) -> [C]
    lower_is_better: bool = False
    view: Callable[[Array], Array] | None = None  # x [B, ...] -> the inputs to use instead


class Whole(NamedTuple):
    """A metric that is computed from all logits of a client at once."""

    name: str
    value: Callable[[Array, Array, Array], Array]  # (logits, labels, mask) -> one number
    lower_is_better: bool = False


Metric = Summed | Whole


def _mean(sums, total):
    return sums / total


def _percent(sums, total):
    return 100 * sums / total


def _cross_entropy(logits, labels, mask):
    """logsumexp(o) - o_y of each example; infinite where the logits are not finite."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.where(jnp.isnan(loss), jnp.inf, loss)


def _in_top5(logits, labels, mask):
    """Whether the label is among the five classes with the largest logits.

    Of equal logits the last class comes first, as in `top_k_accuracy_score`.
    """
    label = labels[:, None]
    logit = jnp.take_along_axis(logits, label, 1)
    is_after = jnp.arange(logits.shape[1]) > label
    comes_before = jnp.where(is_after, ~(logits < logit), ~(logits <= logit))
    return jnp.sum(comes_before, 1) < 5


def _by_class(logits, labels, mask):
    """Indicators [N, K] of the predicted class, of the actual class, and of both."""
    num_classes = logits.shape[1]
    predicted = jax.nn.one_hot(jnp.argmax(logits, 1), num_classes)
    actual = jax.nn.one_hot(labels, num_classes)
    return {"predicted": predicted, "actual": actual, "both": predicted * actual}


def _macro_f1(sums, total):
    """The mean F1 score of the classes that are predicted or actual for at least one example."""
    either = sums["predicted"] + sums["actual"]
    f1 = 2 * sums["both"] / np.maximum(either, 1)
    return 100 * f1.sum(-1) / (either > 0).sum(-1)


def _by_confidence(logits, labels, mask):
    """Confidence and correctness of the prediction, in the bin of the confidence [N, BINS]."""
    confidence = jnp.max(jax.nn.softmax(logits), 1)
    place = jnp.clip(jnp.ceil(confidence * BINS) - 1, 0, BINS - 1)
    member = jax.nn.one_hot(place.astype(jnp.int32), BINS)
    right = jnp.argmax(logits, 1) == labels
    return {"confidence": member * confidence[:, None], "right": member * right[:, None]}


def _calibration_error(sums, total):
    gap = np.abs(sums["right"] - sums["confidence"])
    return 100 * gap.sum(-1) / total


def _perplexity(sums, total):
    return np.exp(sums / total)


def _of_words(logits, labels, mask):
    """Whether the label is a word (not padding or unknown), and whether it is also predicted."""
    is_word = labels >= SPECIAL
    return {"words": is_word, "right": is_word & (jnp.argmax(logits, 1) == labels)}


def _word_accuracy(sums, total):
    """The accuracy on labels that are words, in percent; NaN if there are none."""
    with np.errstate(invalid="ignore"):
        return 100 * sums["right"] / sums["words"]


def _auroc(logits: Array, labels: Array, mask: Array) -> Array:
    """Area under the ROC curve, one class against the rest, averaged over classes, in percent.

    The area of a class is the fraction of pairs of a positive and a negative example that its
    probability ranks correctly; ties count one half. Classes without positive or negative examples
    are left out. NaN if no class remains.
    """
    log_p = jax.nn.log_softmax(logits)  # ordered like the probabilities, but not rounded to 1
    log_p = jnp.where(jnp.isnan(log_p), -jnp.inf, log_p)

    def of_class(score, is_positive):  # [N] each
        ranked, positive, negative = jax.lax.sort(
            (score, mask * is_positive, mask * (1 - is_positive)), num_keys=1
        )
        differs, end = ranked[1:] != ranked[:-1], jnp.ones(1, bool)
        is_first, is_last = jnp.append(end, differs), jnp.append(differs, end)  # of equal scores
        upto = jnp.cumsum(negative)
        below = jax.lax.cummax(jnp.where(is_first, upto - negative, 0))
        upto = jax.lax.cummin(jnp.where(is_last, upto, jnp.inf), reverse=True)
        share = (below + upto) / (2 * jnp.sum(negative))
        return jnp.sum(jnp.where(positive > 0, share, 0)) / jnp.sum(positive)

    areas = jax.vmap(of_class, 1)(log_p, jax.nn.one_hot(labels, logits.shape[1]))
    return 100 * jnp.nanmean(jnp.where(jnp.isfinite(areas), areas, jnp.nan))


LOSS = Summed("loss", _cross_entropy, _mean, lower_is_better=True)

BUILT_IN: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        LOSS,
        Summed("top5", _in_top5, _percent),
        Summed("macro_f1", _by_class, _macro_f1),
        Whole("auroc", _auroc),
        Summed("ece", _by_confidence, _calibration_error, lower_is_better=True),
        Summed("perplexity", _cross_entropy, _perplexity, lower_is_better=True),
        Summed("word_accuracy", _of_words, _word_accuracy),
    )
}


def make(parts: Iterable[Metric | Callable], num_classes: int) -> tuple[Metric, ...]:
    """The metrics of a run besides the loss, which is always evaluated.

    Args:
      parts: built-in metrics, and functions (logits, labels, mask) -> [N] or one number. Lower
        values of a function are better if its attribute `lower_is_better` is true.
      num_classes: the number of classes of the run's task.

    Raises BadInput for a name that is already a key of a row, and for a function that JAX cannot
    trace or that returns anything else.
    """
    made: dict[str, Metric] = {LOSS.name: LOSS}
    for part in parts:
        metric = part if isinstance(part, Metric) else _of_function(part, num_classes)
        if made.get(metric.name, metric) != metric:
            raise BadInput(f"config.run.metrics has two metrics with the name {metric.name!r}")
        made[metric.name] = metric
    return tuple(metric for metric in made.values() if metric != LOSS)


def _of_function(function, num_classes):
    """The metric of a user's function; its output shape decides between `Summed` and `Whole`."""
    named = getattr(function, "func", function)  # the function of a functools.partial
    name = getattr(named, "__name__", type(named).__name__)
    if not units.is_free(name) or name in BUILT_IN:
        raise BadInput(
            f"a metric cannot have the name {quoted(name)}: the name must be a plain word that has"
            " no other meaning in metrics.jsonl; rename the function"
        )
    lower = bool(getattr(function, "lower_is_better", False))
    shape = _given_shape(name, function, num_classes)
    _check_padding(name, function, num_classes)
    if shape == ():
        return Whole(name, function, lower)
    return Summed(name, function, _mean, lower)


def _given_shape(name, function, num_classes):
    """() or (N,), the shape of the function's output for N examples."""
    count = num_classes + 1  # differs from the number of classes
    like = jax.ShapeDtypeStruct
    labels, mask = like((count,), jnp.int32), like((count,), jnp.float32)
    try:
        given = jax.eval_shape(function, like((count, num_classes), jnp.float32), labels, mask)
    except Exception as error:  # a user's function may raise anything
        reason = cut(f"{type(error).__name__}: {message_of(error)}".partition("\n")[0], 300)
        raise BadInput(
            f"metric {name!r} fails on (logits [N, K], labels [N], mask [N]): {reason}"
        ) from error
    shape = getattr(given, "shape", None)
    if shape not in ((), (count,)):
        what = "something else" if shape is None else f"an array of shape {shape} for N={count}"
        raise BadInput(f"metric {name!r} must return [N] values or one number, not {what}")
    if jnp.issubdtype(given.dtype, jnp.complexfloating):
        raise BadInput(f"metric {name!r} must return real numbers, not {given.dtype}")
    return shape


def _check_padding(name, function, num_classes):
    """Raises BadInput if the values of a metric depend on padded rows."""
    logits = np.random.default_rng(0).normal(size=(5, num_classes)).astype(np.float32)
    is_wrong = np.array([0, 1, 1, 0, 0])  # the padding is right more often than the examples
    labels = ((logits.argmax(1) + is_wrong) % num_classes).astype(np.int32)
    mask = np.float32([1, 1, 1, 0, 0])

    def value(count):
        given = function(*map(jnp.asarray, (logits[:count], labels[:count], mask[:count])))
        return np.asarray(given).reshape(-1)[:3]

    if not np.allclose(value(5), value(3), rtol=1e-3, atol=1e-5, equal_nan=True):
        raise BadInput(
            f"metric {name!r} depends on the rows where its argument `mask` is 0, which are"
            " padding; a mean over examples is sum(values * mask) / sum(mask)"
        )


def by_domain(metric: Summed, logits: Array, labels: Array, domain: Array) -> PyTree:
    """The sums of a batch by domain [D, ...]. domain: one-hot [N, D], all 0 for padding."""
    mask = jnp.sum(domain, 1)

    def summed(a):
        a = jnp.expand_dims(a.astype(jnp.float32), 1)  # [N, 1, ...]
        member = domain.reshape(*domain.shape, *(1,) * (a.ndim - 2))
        return jnp.sum(jnp.where(member > 0, a, 0), 0)

    return jax.tree.map(summed, metric.statistics(logits, labels, mask))
