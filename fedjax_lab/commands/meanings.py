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
from fedjax_lab.experiment import experiment, registry
from fedjax_lab.experiment.config import CHOICES, DEFAULTS, named_functions

WIDTH = 100  # characters of a line
INDENT = 6  # of the description of a key
SHOWN_RATES = 6  # number of rounds at which a changing learning rate is shown

MEANINGS = {
    # Keys that every config has.
    "data.name": "the source of the examples",
    "data.normalize": "how numbers become inputs of the model: unit, pixels become 0 to 1 and other"
    " numbers stay as they are; half, pixels become -1 to 1; the name of a dataset, by whose mean"
    " and standard deviation pixels are normalized; standard, by the mean and standard deviation"
    " of each column or channel in the training examples; pixels, all numbers from 0 to 255 are"
    " divided by 255; none, as they are",
    "data.augment": "the random augmentation of training images",
    "data.unseen": "a domain that no client holds, on which models are scored; empty: none",
    "data.shots": "the number of images of the unseen domain that each client gets nevertheless",
    "data.shots_per": "client: data.shots is the number of images of a client; class: the number"
    " of images of each class of a client",
    "data.test": "the share of examples that become test examples if the source has no test set;"
    " the draw is stratified by class, domain and user; 0: none",
    "data.test_seed": "the seed of the draw of these test examples",
    "partition.name": "how the training examples are divided among the clients",
    "partition.num_clients": "the number of clients; by_client draws this number of users at"
    " random, or takes all users if it is 0",
    "partition.validation": "the fraction of each client's training examples that is held out for"
    " validation",
    "partition.new_clients": "the share of clients that are scored, but never trained on",
    "partition.feature_skew": "how the examples of one client differ from those of another; it"
    " changes training, validation and test examples of clients, but not the global test set or"
    " the unseen domain",
    "model.name": "the model that is trained",
    "model.pretrained": "a file or folder with the initial weights; empty: random initialization",
    "embedding.name": "the embeddings of examples and labels, for methods that use them",
    "method.name": "the federated method",
    "method.base": "the method that this one improves",
    "attack.name": "what attacking clients do",
    "attack.share": "the share of clients that attack in every round, rounded down",
    "privacy.name": "the mechanism of differential privacy; set its noise, or the epsilon that the"
    " run has after its last round, and the other is computed",
    "compression.name": "how uploads are compressed",
    "downlink.name": "how messages from the server to the clients are compressed",
    "aggregator.name": "how the server aggregates the updates of a round; none: as the method does",
    "local.optimizer": "the clients' optimizer",
    "local.lr": "the clients' learning rate",
    "local.schedule": "how the clients' learning rate changes from round to round",
    "local.warmup": "the number of rounds in which the clients' learning rate rises linearly before"
    " its schedule begins",
    "local.momentum": "the momentum of sgd, nesterov and rmsprop",
    "local.weight_decay": "the weight decay, added to the gradient; for adamw and lion decoupled",
    "local.clip": "the largest norm of a step's gradient, before weight decay; 0: no limit",
    "local.batch_size": "the number of examples of a step",
    "local.epochs": "the number of passes of a client over its examples in a round",
    "run.rounds": "the number of rounds; for FedConcat the number of FedAvg rounds that need as"
    " many bytes as the run",
    "run.cohort": "clients that take part in a round; 0: all",
    "run.eval_every": "the number of rounds between two evaluations",
    "run.patience": "ends the run after this many evaluations without a better accuracy on"
    " validation examples; 0: never",
    "run.target": "ends the run when its accuracy in percent reaches this value; 0: never",
    "run.max_seconds": "ends the run, and saves its state, when the command has compiled, trained"
    " and evaluated for this many seconds; --resume continues it; 0: never",
    "run.seed": "the random seed, unless --seeds is given",
    "run.start_from": "the folder of a run from whose end this run starts; empty: no such run",
    "run.start_with": "what the run takes from run.start_from: global, its global model; personal,"
    " its clients' own models for clients that keep a model, and their mean for the server; state,"
    " its whole state, whose shapes must be those of this run",
    "run.sampling": "how the clients of a round are drawn; empty: as the method does",
    "run.server_schedule": "how the method's setting server_lr changes from round to round",
    "run.server_warmup": "the number of rounds in which server_lr rises linearly before its"
    " schedule begins",
    "run.metrics": "the metrics that are reported besides accuracy and loss",
    "run.dropout": "the probability that a client's uploads of a round are lost",
    "run.straggler": "the probability that a client makes only some of its passes in a round",
    "engine.strategy": "how the clients of a round share a device",
    "engine.chunk": "the number of clients that a device trains at a time, if the strategy is auto"
    " or chunked; 0: as many as fit",
    "engine.state": "where the state of the clients is kept",
    "engine.data": "where the examples are kept",
    "engine.sampling": "how a cohort is drawn: exact, from all clients; device, by each device from"
    " its own clients",
    "engine.fsdp": "the number of devices that together hold one model and train one client",
    "engine.dtype": "the type of the model's products; weights, sums and losses are float32",
    "engine.precision": "the precision of float32 products; default on a TPU: one bfloat16 pass",
    "engine.convolution": "how the convolutions of many clients are computed",
    "engine.seeds": "whether all seeds of a run are trained in one computation",
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


def of_config(config: ml_collections.ConfigDict) -> str:
    """All keys of a resolved config as flags of the command line, each with its meaning."""
    lines = []
    rates = experiment.learning_rates(config, [config.run.rounds])
    for section, values in config.items():
        words = of_section(section, values)
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


def of_section(section: str, values: Mapping) -> dict[str, str]:
    """The meaning of each key in a section of a config; empty for keys without a description."""
    words = {key: MEANINGS.get(f"{section}.{key}", "") for key in values}
    for function in named_functions(section, values).values():
        settings = registry.default_settings(function, dict(values))
        keys = [key for key in settings if key not in DEFAULTS[section] and key != "base"]
        described = of_settings(function, keys, values)
        words |= {key: meaning for key, meaning in described.items() if meaning}
    for key, choices in CHOICES.items():
        of, _, rest = key.partition(".")
        if of == section and not all(choice in words[rest] for choice in choices):
            words[rest] += f"; one of {', '.join(choices)}"
    return words


def of_settings(function: Callable, keys: list[str], chosen: Mapping | None = None) -> dict:
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


def of_method(name: str) -> str:
    """The text of --help-method: a method's settings, defaults and meanings, and its docstrings.

    name: the name of a method, or a reference to one. Raises BadInput if there is no such method.
    """
    function = registry.look_up("method", name)
    defaults = registry.default_settings(function)
    words, searched = of_settings(function, list(defaults)), ranges.declared(function)
    if "base" in words:
        words["base"] = MEANINGS["method.base"]
    lines = [f"method {name}", ""]
    for key, default in defaults.items():
        also = ", ".join(registry.setting_words(function).get(key, ()))
        lines.append(f"--config.method.{key}={shlex.quote(str(default))}")
        lines += _indented("; ".join(filter(None, (words[key], also and f"or {also}"))))
        if key in searched:
            lines += _indented(f"a sweep with --tune draws it from {searched[key]}")
    if not defaults:
        lines.append("This method has no settings.")
    module = inspect.getmodule(function)
    texts = [inspect.getdoc(part) for part in (module, function) if part is not None]
    return "\n\n".join(["\n".join(lines), *filter(None, texts)])


def of_names() -> str:
    """The names of all methods, data sources, models and other parts, as --help lists them."""
    titles = {"method": "methods", "data": "data", "model": "models", "partition": "partitions"}
    titles |= {"embedding": "embeddings", "optimizer": "optimizers", "schedule": "schedules"}
    titles |= {"sampling": "samplings", "feature_skew": "feature skews"}
    titles |= {"attack": "attacks", "privacy": "privacy", "aggregator": "aggregators"}
    titles |= {"compression": "compressions", "downlink": "downlinks"}
    wrapped = [
        textwrap.fill(
            f"{title}: {', '.join(registry.names(kind))}", WIDTH, subsequent_indent=" " * 4
        )
        for kind, title in titles.items()
    ]
    end = "Each name can be replaced by MODULE:FUNCTION or PATH/FILE.py:FUNCTION of your own."
    return "\n".join([*wrapped, end])


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * INDENT, subsequent_indent=" " * INDENT)


def _one_line(text: Any) -> str:
    return " ".join(text.split()).rstrip(".;")
