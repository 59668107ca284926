"""Descriptions of config keys, methods and names for --show_config, --help-method and --help."""

import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
import numpy as np

from fedjax_lab import ranges
from fedjax_lab.experiment import registry, variants
from fedjax_lab.experiment.config import limits_in, named_functions
from fedjax_lab.experiment.keys import DEFAULTS, KEYS
from fedjax_lab.ranges import NOT_NEGATIVE, Limit, OneOf

WIDTH = 100  # characters of a line
INDENT = 6  # of the description of a key
SHOWN_RATES = 6  # number of rounds at which a changing learning rate is shown

MEANINGS = {
    **{key: each.meaning for key, each in KEYS.items()},
    "method.base": "the method that this one improves",
    # Settings that several functions share, used where their docstrings do not describe them.
    "data.folder": "the folder with the dataset; empty: the usual places are searched",
    "data.path": "the file or folder with the examples",
    "data.size": "the height and width of the images, in pixels",
    "data.seed": "the seed of the random draws that make the dataset",
    "data.train_per_domain": "the number of training examples of each domain",
    "data.train_per_class": "the number of training examples of each class, taken from the"
    " beginning; 0: all",
    "data.test_per_domain": "the number of test examples of each domain",
    "data.fraction": "the share of the texts that is used",
    "data.dataset": "the name of the dataset",
    "data.task": "the task on texts: classify, or next_word, in which each word is an example",
    "data.tokenizer": "hash, words, or the path of a tokenizer.json of transformers",
    "data.vocabulary": "the number of token ids, including padding and the unknown word",
    "data.length": "the number of tokens of an example; longer texts are cut",
    "partition.alpha": "the concentration of the Dirichlet distribution; a smaller value makes"
    " clients more unequal",
    "partition.min_size": "the smallest number of examples that a client may have",
    "partition.tries": "the maximum number of draws until every client has partition.min_size"
    " examples",
    "model.width": "the size of the hidden layers",
    "model.depth": "the number of hidden layers",
    "model.vocabulary": "the number of token ids that the model embeds; 0: that of the data",
    "model.norm": "the normalization between layers",
    "model.heads": "the number of attention heads of a layer",
    "model.patch": "the height and width of a patch, in pixels",
    "embedding.batch_size": "the number of examples that are embedded at a time",
    "embedding.file": "the file with the embeddings",
}


def describe_config(config: ml_collections.ConfigDict) -> str:
    """All keys of a resolved config as flags of the command line, each with its meaning."""
    lines = []
    rates = variants.learning_rates(config, [config.run.rounds])
    for section, values in config.items():
        words = section_meanings(section, values)
        for key, curve in rates.items():
            if key.startswith(f"{section}."):
                words[key.partition(".")[2]] += f": {shown_curve(curve)}"
        for key, value in values.items():
            text = value if isinstance(value, str) else repr(value)
            lines.append(f"--config.{section}.{key}={shlex.quote(text)}")
            lines += _indented(words[key])
        lines.append("")
    return "\n".join(lines).rstrip()


def shown_curve(rates: np.ndarray) -> str:
    """A learning rate at several rounds, such as "0.1 in round 1, 0.05 in 26, 0.0001 in 50".

    rates: [rounds].
    """
    last = len(rates) - 1
    at = sorted({round(last * share) for share in np.linspace(0, 1, SHOWN_RATES)})
    first, *others = (f"{rates[t]:.3g} in {'' if t else 'round '}{t + 1}" for t in at)
    return ", ".join([first, *others])


def section_meanings(section: str, values: Mapping) -> dict[str, str]:
    """The meaning of each key in a section of a config; empty for keys without a description."""
    words = {key: MEANINGS.get(f"{section}.{key}", "") for key in values}
    for function in named_functions(section, values).values():
        settings = registry.default_settings(function, dict(values))
        keys = [key for key in settings if key not in DEFAULTS[section] and key != "base"]
        described = setting_meanings(function, keys, values)
        words |= {key: meaning for key, meaning in described.items() if meaning}
    limits = limits_in(section, values)
    return {key: with_limit(meaning, limits.get(key)) for key, meaning in words.items()}


def with_limit(meaning: str, limit: Limit | None) -> str:
    """The meaning of a setting with its bounds, or with its choices if it does not name them."""
    if limit in (None, NOT_NEGATIVE):
        return meaning
    if isinstance(limit, OneOf) and all(str(value) in meaning for value in limit.values):
        return meaning
    return f"{meaning} ({limit})" if meaning else str(limit)


def setting_meanings(function: Callable, keys: list[str], chosen: Mapping | None = None) -> dict:
    """The meaning of settings, from the docstring of their function or of its base method.

    chosen: the section of the config, whose `base` names the base method of a wrapper.
    """
    parts = [function]
    if registry.is_wrapper(function):
        base = (chosen or {}).get("base", registry.DEFAULT_BASE)
        parts.append(registry.look_up("method", base))
    described = [described_in(inspect.getdoc(part) or "", keys) for part in parts]
    return {key: next((d[key] for d in described if d[key]), "") for key in keys}


def described_in(docstring: str, keys: list[str]) -> dict[str, str]:
    """The descriptions of these settings in a docstring; empty for a setting without one.

    A description is an entry `mu: its meaning`, `mu, tau: their meaning` or `mu (float): its
    meaning`. It begins at the start of a line or of a sentence and extends to the next entry or an
    empty line. If there is no entry, the description is the first sentence that has `mu` in
    backquotes.
    """
    each = "|".join(map(re.escape, keys)) or "$."
    several = rf"(?:{each})(?:, (?:{each}))*"
    begins = list(re.finditer(rf"(?:^|[.;]\s+|\n\s*)({several})(?: \([^)]*\))? ?: ", docstring))
    ends = [match.start() for match in begins[1:]] + [len(docstring)]
    said = dict.fromkeys(keys, "")
    for match, end in zip(begins, ends, strict=False):
        meaning = docstring[match.end() : end].split("\n\n")[0]
        said |= dict.fromkeys(match[1].split(", "), _one_line(meaning))
    sentences = re.split(r"(?<=\.)\s+|\n\s*\n", docstring)
    for key in keys:
        mentions = (_one_line(sentence) for sentence in sentences if f"`{key}`" in sentence)
        said[key] = said[key] or next(mentions, "")
    return said


def describe_method(name: str) -> str:
    """The text of --help-method: a method's settings, defaults and meanings, and its docstrings.

    name: the name of a method, or a reference to one. Raises BadInput if there is no such method.
    """
    function = registry.look_up("method", name)
    defaults = registry.default_settings(function)
    words, searched = setting_meanings(function, list(defaults)), ranges.declared(function)
    limits = registry.limits_of(function)
    if "base" in words:
        words["base"] = MEANINGS["method.base"]
    lines = [f"method {name}", ""]
    for key, default in defaults.items():
        also = ", ".join(registry.setting_words(function).get(key, ()))
        lines.append(f"--config.method.{key}={shlex.quote(str(default))}")
        meaning = with_limit(words[key], limits.get(key))
        lines += _indented("; ".join(filter(None, (meaning, also and f"or {also}"))))
        if key in searched:
            lines += _indented(f"a sweep with --tune draws it from {searched[key]}")
    if not defaults:
        lines.append("This method has no settings.")
    module = inspect.getmodule(function)
    texts = [inspect.getdoc(part) for part in (module, function) if part is not None]
    return "\n\n".join(["\n".join(lines), *filter(None, texts)])


def describe_names() -> str:
    """The names of all methods, data sources, models and other parts, as --help lists them."""
    kinds = "method data model partition embedding optimizer schedule sampling feature_skew"
    lines = []
    for kind in f"{kinds} attack privacy aggregator compression downlink".split():
        title = kind.replace("_", " ") + "s" * (kind not in ("data", "privacy"))
        text = f"{title}: {', '.join(registry.names(kind))}"
        lines.append(textwrap.fill(text, WIDTH, subsequent_indent=" " * 4))
    end = "Each name can be replaced by MODULE:FUNCTION or PATH/FILE.py:FUNCTION of your own."
    return "\n".join([*lines, end])


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * INDENT, subsequent_indent=" " * INDENT)


def _one_line(text: Any) -> str:
    return " ".join(text.split()).rstrip(".;")
