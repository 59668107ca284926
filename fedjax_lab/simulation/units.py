"""The names of measures: the metric of each, its unit, and whether lower values are better.

Reports of runs use this module without starting JAX, so it imports nothing that does.

A row of metrics.jsonl has the accuracy under `accuracy`, `domains`, `global`, `id` and `ood`, and
every other metric in the same forms: `loss`, `domains_loss`, `global_loss`, `id_loss`, `ood_loss`.
`levels` is the mean accuracy of the clients of each capacity, and `kinds` of those with each net.
Measures of new clients have the form `new`, or `new_tuned` after the method has adapted the model
to the client's own data.
"""

from collections.abc import Collection

OF_NEW = ("new", "new_tuned")  # forms of a metric that are measured on new clients
ONE_NUMBER = ("global", "id", "ood", *OF_NEW)  # forms that are one number
FORMS = ("domains", "levels", "kinds", *ONE_NUMBER)  # all forms but a metric's values by client
PER_CLIENT = "_per_client"  # the end of a key that holds a list with a value for each client
NO_MEASURES = (  # keys of a row for its origin and its costs
    "round",
    "seed",
    "stage",
    "train_loss",
    "bytes_up",
    "bytes_down",
    "seconds",
    "virtual_seconds",
    "flops",
    "epsilon",
    "delta",
    "recorded",
)
PERCENT = frozenset(
    {"accuracy", "top5", "macro_f1", "auroc", "map", "ece", "word_accuracy", "backdoor_success"}
    | {"f1", "micro_f1", "miou", "dice"}
)
WORDS = {  # of metrics whose name is not the word for it
    "auroc": "AUROC",
    "dice": "Dice",
    "ece": "ECE",
    "f1": "F1",
    "mae": "MAE",
    "macro_f1": "macro F1",
    "map": "mAP",
    "micro_f1": "micro F1",
    "miou": "mIoU",
    "r2": "R²",
    "rmse": "RMSE",
    "top5": "top-5 accuracy",
}
HEADLINE_METRICS = ("accuracy", "rmse", "loss")  # the first that a run measures decides
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "bits_per_byte", "ece", "rmse", "mae"})


def metric_of(measure: str) -> str:
    """The metric of a measure: "loss" for "loss.mean", "global_loss" and "domains_loss.a"."""
    key = measure.partition(".")[0]
    if key in FORMS:
        return "accuracy"
    forms = [form for form in FORMS if key.startswith(f"{form}_")]
    return key.removeprefix(f"{max(forms, key=len)}_") if forms else key


def measure_of(metric: str, form: str) -> str:
    """The measure of a metric's mean over clients (form "mean"), or of another form of it."""
    if form == "mean":
        return f"{metric}.mean"
    return form if metric == "accuracy" else f"{form}_{metric}"


TESTED = ("mean", "global", "ood")  # forms that are measured on test examples
# A run's headline measure is the first of these that it has.
HEADLINES = tuple(measure_of(m, form) for m in HEADLINE_METRICS for form in (*TESTED, "id"))


def is_inequality(measure: str) -> bool:
    """Whether a measure says how much a metric differs between clients; lower is fairer."""
    return measure in [f"{metric_of(measure)}.{form}" for form in ("variance", "gini")]


def falls(measure: str, lower_is_better: Collection[str]) -> bool:
    """Whether lower values of a measure are better; lower_is_better: metrics for which they are."""
    return is_inequality(measure) or metric_of(measure) in lower_is_better


def is_percent(measure: str) -> bool:
    """Whether a measure is in percent."""
    return metric_of(measure) in PERCENT and not is_inequality(measure)


def in_words(metric: str) -> str:
    """A metric in words, followed by "%" if it is in percent, for the axis of a picture."""
    words = WORDS.get(metric, metric.replace("_", " "))
    return f"{words}, %" if is_percent(metric) else words


def sentence(text: str) -> str:
    """The text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def is_free(name: str) -> bool:
    """Whether a user's metric can have this name without a conflict with other keys of a row."""
    keys = [name, *(f"{form}_{name}" for form in FORMS)]
    own_keys = {metric_of(key) for key in keys} == {name} and name not in ("accuracy", *NO_MEASURES)
    return own_keys and name.isidentifier() and not f"_{name}".endswith(PER_CLIENT)
