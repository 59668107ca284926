"""The names of measurements: which metric one belongs to, its unit, and which direction is better.

Reports of runs use this module without starting JAX, so it imports nothing.

A row of metrics.jsonl has the accuracy under `accuracy`, `domains`, `global`, `id` and `ood`, and
every other metric in the same forms: `loss`, `domains_loss`, `global_loss`, `id_loss`, `ood_loss`.
"""

FORMS = ("domains", "global", "id", "ood")  # of a metric, besides its values by client
PER_CLIENT = "_per_client"  # the end of a key that holds a list with a value for each client
NO_MEASURES = (  # keys of a row that say where it comes from and what it cost
    "round",
    "seed",
    "stage",
    "train_loss",
    "bytes_up",
    "bytes_down",
    "seconds",
    "flops",
    "recorded",
)
PERCENT = frozenset({"accuracy", "top5", "macro_f1", "auroc", "ece"})
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "ece"})


def metric_of(measure: str) -> str:
    """The metric of a measure: "loss" of "loss.mean", of "global_loss" and of "domains_loss.a"."""
    key = measure.partition(".")[0]
    if key in FORMS:
        return "accuracy"
    form, _, metric = key.partition("_")
    return metric if form in FORMS else key


def is_percent(measure: str) -> bool:
    """Whether a measure is in percent."""
    return metric_of(measure) in PERCENT


def is_free(name: str) -> bool:
    """Whether a metric of one's own can have this name: no key of a row has another meaning."""
    own_key = metric_of(name) == name and name not in ("accuracy", *NO_MEASURES)
    return own_key and name.isidentifier() and not f"_{name}".endswith(PER_CLIENT)
