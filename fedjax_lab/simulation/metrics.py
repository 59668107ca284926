"""The metrics of an evaluation besides accuracy: the loss, the task's, and those of a config.

A metric is a function of a model's logits [N, K], the labels [N] and a mask [N], which is 0 for
padding; in other tasks than classification, of logits [N, *outputs] and labels [N, *label]. If it
returns [N], one value for each example, the metric is the mean over examples. If it returns one
number, it gets all examples of a client (or of the global test set) at once, so the device holds
all their logits while a client is scored: N * K float32.

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

from fedjax_lab import losses
from fedjax_lab.errors import BadInput, cut, message_of, quoted
from fedjax_lab.simulation import units
from fedjax_lab.types import Array, Objective, PyTree

SPECIAL = 2  # the first two classes of word predictions are padding and the unknown word
BINS = 15  # of the calibration error: equally wide, each without its lower edge


class Summed(NamedTuple):
    """A metric that is computed from sums over examples.

    `value` runs on the host for many clients at once: the leaves of its first argument are the sums
    [C, ...] in float64, the second argument is the number of labels [C], in most tasks one label
    for each example.
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
    return _not_nan(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def _not_nan(values):
    return jnp.where(jnp.isnan(values), jnp.inf, values)


def loss_of(objective: Objective) -> Summed:
    """The loss of a task as a metric; infinite where the logits are not finite."""
    return LOSS._replace(statistics=lambda o, y, mask: _not_nan(objective.losses(o, y)))


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


def perplexity(sums: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The exponential of the mean loss."""
    return np.exp(sums / total)


def _word_counts(logits, labels, mask):
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

    def area(positive, negative, first, last):
        upto = jnp.cumsum(negative)
        below = jax.lax.cummax(jnp.where(first, upto - negative, 0))
        upto = jax.lax.cummin(jnp.where(last, upto, jnp.inf), reverse=True)
        share = (below + upto) / (2 * jnp.sum(negative))
        return jnp.sum(jnp.where(positive > 0, share, 0)) / jnp.sum(positive)

    return _mean_of_rankings(area, logits, labels, mask)


def _average_precision(logits: Array, labels: Array, mask: Array) -> Array:
    """The mean average precision, one class against the rest, averaged over classes, in percent.

    The average precision of a class is the mean over its examples of the precision of all examples
    with at least the same probability. Classes without positive examples are left out.
    """

    def precision(positive, negative, first, last):
        def from_here(a):  # the sum from the first example with an equal score to the end
            above = jnp.cumsum(a[::-1])[::-1]
            return jax.lax.cummin(jnp.where(first, above, jnp.inf))

        share = from_here(positive) / from_here(positive + negative)
        return jnp.sum(jnp.where(positive > 0, share, 0)) / jnp.sum(positive)

    return _mean_of_rankings(precision, logits, labels, mask)


def _mean_of_rankings(measure, logits, labels, mask):
    """The mean over classes of a measure of the ranking of their examples, in percent.

    measure: (positive, negative, first, last), each [N] and in ascending order of the probability;
        the last two mark the first and the last of equal ones.
    """
    if labels.ndim == 1 and logits.shape[1] > 1:  # classes exclude each other
        scores = jax.nn.log_softmax(logits)  # like the probabilities, but not rounded to 1
        labels = jax.nn.one_hot(labels, logits.shape[1])
    else:
        scores, labels = logits, labels.reshape(logits.shape)
    scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)

    def class_measure(score, is_positive):  # [N] each
        ranked, positive, negative = jax.lax.sort(
            (score, mask * is_positive, mask * (1 - is_positive)), num_keys=1
        )
        differs, end = ranked[1:] != ranked[:-1], jnp.ones(1, bool)
        return measure(positive, negative, jnp.append(end, differs), jnp.append(differs, end))

    values = jax.vmap(class_measure, 1)(scores, labels)
    return 100 * jnp.nanmean(jnp.where(jnp.isfinite(values), values, jnp.nan))


LOSS = Summed("loss", _cross_entropy, _mean, lower_is_better=True)

BUILT_IN: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        LOSS,
        Summed("top5", _in_top5, _percent),
        Summed("macro_f1", _by_class, _macro_f1),
        Whole("auroc", _auroc),
        Whole("map", _average_precision),
        Summed("ece", _by_confidence, _calibration_error, lower_is_better=True),
        Summed("perplexity", _cross_entropy, perplexity, lower_is_better=True),
        Summed("word_accuracy", _word_counts, _word_accuracy),
    )
}


def make(parts: Iterable[Metric | Callable], objective: Objective | int) -> tuple[Metric, ...]:
    """The metrics of a run besides the loss, which is always evaluated.

    Args:
      parts: built-in metrics, and functions (logits, labels, mask) -> [N] or one number. Lower
        values of a function are better if its attribute `lower_is_better` is true.
      objective: of the run's task, whose metrics come first; a number of classes means a
        classification.

    Raises BadInput for a name that is already a key of a row, for a built-in metric of classes in a
    task without classes, and for a function that JAX cannot trace or that returns anything else.
    """
    objective = losses.as_objective(objective)
    made: dict[str, Metric] = {LOSS.name: LOSS, **{m.name: m for m in objective.metrics}}
    of_task = {m.name for m in objective.metrics}
    for part in parts:
        if isinstance(part, Metric) and part in BUILT_IN.values():
            if part.name in of_task:
                continue  # the task measures it by itself
            _check_suits(part, objective)
        metric = part if isinstance(part, Metric) else _function_metric(part, objective)
        if made.get(metric.name, metric) != metric:
            raise BadInput(f"config.run.metrics has two metrics with the name {metric.name!r}")
        made[metric.name] = metric
    return tuple(metric for metric in made.values() if metric != LOSS)


def _check_suits(part, objective):
    """Raises BadInput if this built-in metric is one of classes, which the task does not have."""
    if not objective.has_classes and part.name not in (LOSS.name, *objective.optional):
        itself = ", ".join(m.name for m in (LOSS, *objective.metrics))
        others = f"; it can measure {', '.join(objective.optional)}" * bool(objective.optional)
        raise BadInput(
            f"config.run.metrics: the task {objective.name} has no metric {part.name!r}; it"
            f" measures {itself} by itself{others}"
        )


def _function_metric(function, objective):
    """The metric of a user's function; its output shape decides between `Summed` and `Whole`."""
    named = getattr(function, "func", function)  # the function of a functools.partial
    name = getattr(named, "__name__", type(named).__name__)
    if not units.is_free(name) or name in BUILT_IN:
        raise BadInput(
            f"a metric cannot have the name {quoted(name)}: the name must be a plain word that has"
            " no other meaning in metrics.jsonl; rename the function"
        )
    lower = bool(getattr(function, "lower_is_better", False))
    shape = _given_shape(name, function, objective)
    _check_padding(name, function, objective)
    if shape == ():
        return Whole(name, function, lower)

    def statistics(logits, labels, mask):
        values = function(logits, labels, mask)
        return {"values": values, "examples": jnp.ones(len(values))}

    return Summed(name, statistics, _mean_over_examples, lower)


def _mean_over_examples(sums, total):
    return sums["values"] / sums["examples"]


def _given_shape(name, function, objective):
    """() or (N,), the shape of the function's output for N examples."""
    outputs, label = objective.outputs, objective.label
    count = max((*outputs, *label.shape)) + 1  # differs from the other axes
    like = jax.ShapeDtypeStruct
    labels, mask = like((count, *label.shape), label.dtype), like((count,), jnp.float32)
    try:
        given = jax.eval_shape(function, like((count, *outputs), jnp.float32), labels, mask)
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


def _check_padding(name, function, objective):
    """Raises BadInput if the values of a metric depend on padded rows."""
    logits = np.random.default_rng(0).normal(size=(5, *objective.outputs)).astype(np.float32)
    label, num_classes = objective.label, objective.outputs[-1]
    if label.shape == objective.outputs[:-1]:
        # Padding is right more often than the examples.
        is_wrong = np.array([0, 1, 1, 0, 0]).reshape(5, *(1,) * len(label.shape))
        labels = (logits.argmax(-1) + is_wrong) % num_classes
    else:
        labels = logits.reshape(5, *label.shape) > 0
    labels = labels.astype(label.dtype)
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
