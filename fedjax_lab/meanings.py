"""What the keys of a config mean, in words: of a config, of a method, of all names."""

import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
import numpy as np

from fedjax_lab import experiment, ranges, registry
from fedjax_lab.config import CHOICES, DEFAULTS, named_functions

WIDTH = 100  # characters of a line
INDENT = 6  # of what is said of a key
SHOWN_RATES = 6  # rounds in which a learning rate that changes is shown

MEANINGS = {
    # Of the keys that every config has.
    "data.name": "the source of the examples",
    "data.normalize": "what the model sees of pixels: unit, 0 to 1; half, -1 to 1; or they are"
    " centered and scaled by the mean and standard deviation of the named dataset",
    "data.augment": "the random changes of training images",
    "data.unseen": "a domain that no client holds, on which models are scored; empty: none",
    "data.shots": "how many images of the unseen domain each client holds after all",
    "data.shots_per": "client: so many shots in all; class: so many of each class",
    "data.test": "the share of the examples that become test examples where the source has no test"
    " set, drawn by class, domain and user; 0: none",
    "data.test_seed": "of the draw of these test examples",
    "partition.name": "how the training examples are divided among the clients",
    "partition.num_clients": "the number of clients; by_client draws so many users at random, or"
    " takes all of them where it is 0",
    "partition.validation": "the fraction of each client's training examples that is held out",
    "partition.new_clients": "the share of the clients that are scored, but never trained on",
    "partition.feature_skew": "how the examples of one client differ from those of another: its"
    " training, validation and test examples are changed, the global test set and the unseen"
    " domain are not",
    "model.name": "the model that is trained",
    "model.pretrained": "a file or folder with the first weights; empty: new ones",
    "embedding.name": "the embeddings of examples and labels, for methods that use them",
    "method.name": "the federated method",
    "method.base": "the method that this one improves",
    "attack.name": "what clients do that attack",
    "attack.share": "the share of the clients that attack in every round, rounded down",
    "privacy.name": "what makes the run differentially private: give it noise, or the epsilon that"
    " the run has after its last round; the other follows",
    "compression.name": "how uploads are written in fewer bytes",
    "downlink.name": "how messages are written in fewer bytes",
    "aggregator.name": "what the server makes of all updates of a round; none: as the method says",
    "local.optimizer": "the clients' optimizer",
    "local.lr": "the clients' learning rate",
    "local.schedule": "how the clients' learning rate changes from round to round",
    "local.warmup": "in so many rounds the clients' learning rate rises before its schedule begins",
    "local.momentum": "the momentum of sgd, nesterov and rmsprop",
    "local.weight_decay": "the weight decay, added to the gradient; of adamw and lion decoupled",
    "local.clip": "the largest norm of a step's gradient, before weight decay; 0: no limit",
    "local.batch_size": "examples of a step",
    "local.epochs": "passes of a client over its examples in a round",
    "run.rounds": "rounds of the run; of FedConcat: of FedAvg, whose bytes it spends",
    "run.cohort": "clients that take part in a round; 0: all",
    "run.eval_every": "rounds between two evaluations",
    "run.patience": "ends the run after so many evaluations without a better accuracy on validation"
    " examples; 0: never",
    "run.target": "ends the run when its accuracy in percent has reached this; 0: never",
    "run.max_seconds": "ends the run, with its state saved, when the command has compiled, trained"
    " and evaluated for so many seconds; --resume goes on; 0: never",
    "run.seed": "the seed where --seeds names none",
    "run.start_from": "the folder of a run at whose end this one starts; empty: anew",
    "run.start_with": "global: with its global model; personal: clients with their own models, as"
    " far as they keep one, and the server with the mean of these; state: with its whole state, of"
    " which the shapes must be those of this run's",
    "run.sampling": "how the clients of a round are drawn; empty: as the method says",
    "run.server_schedule": "how the method's setting server_lr changes from round to round",
    "run.server_warmup": "in so many rounds server_lr rises before its schedule begins",
    "run.metrics": "what is measured besides accuracy and loss",
    "run.dropout": "probability that the server never gets what a client uploads in a round",
    "run.straggler": "probability that a client makes only some of its passes in a round",
    "engine.strategy": "how the clients of a round share a device",
    "engine.chunk": "clients at a time, where the strategy is auto or chunked; 0: as many as fit",
    "engine.state": "where the state of the clients is kept",
    "engine.data": "where the examples are kept",
    "engine.sampling": "exact: among all clients; device: each device draws from its own clients",
    "engine.fsdp": "devices that hold a model together and train a client together",
    "engine.dtype": "of the model's products; weights, sums and losses are float32",
    "engine.precision": "of float32 products; on a TPU the default is one pass in bfloat16",
    "engine.convolution": "how the convolutions of many clients are computed",
    "engine.seeds": "whether the seeds of a run are one computation",
    # Of settings that several functions have, where their docstrings say no more.
    "data.folder": "the folder with the dataset; empty: the usual places are searched",
    "data.path": "the file or folder with the examples",
    "data.size": "the height and width of the images, in pixels",
    "data.seed": "of what is drawn when the dataset is made",
    "data.train_per_domain": "training examples of each domain",
    "data.train_per_class": "training examples of each class, the first ones; 0: all",
    "data.test_per_domain": "test examples of each domain",
    "data.fraction": "the share of the texts that is taken",
    "data.dataset": "the name of the dataset",
    "data.task": "of texts: classify, or next_word, in which each word is an example",
    "data.tokenizer": "hash, words, or the path of a tokenizer.json of transformers",
    "data.vocabulary": "the number of token ids, padding and the unknown word among them",
    "data.length": "the tokens of an example; longer texts are cut",
    "partition.alpha": "of the Dirichlet distribution: the smaller, the more unequal are clients",
    "partition.min_size": "the fewest examples that a client may have",
    "partition.tries": "how often the draw is repeated at most",
    "model.width": "the size of the hidden layers",
    "model.depth": "the number of hidden layers",
    "model.vocabulary": "the token ids that the model embeds; 0: as many as the data have",
    "model.norm": "the normalization between layers",
    "model.heads": "the attention heads of a layer",
    "model.patch": "the height and width of a patch, in pixels",
    "embedding.batch_size": "examples that are embedded at a time",
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
    """A learning rate in some rounds, as in "0.1 in round 1, 0.05 in 26, 0.0001 in 50"."""
    last = len(rates) - 1
    at = sorted({round(last * share) for share in np.linspace(0, 1, SHOWN_RATES)})
    first, *others = (f"{rates[t]:.3g} in {'' if t else 'round '}{t + 1}" for t in at)
    return ", ".join([first, *others])


def of_section(section: str, values: Mapping) -> dict[str, str]:
    """What the keys of a config's section mean; an empty text where nobody has said it."""
    words = {key: MEANINGS.get(f"{section}.{key}", "") for key in values}
    for function in named_functions(section, values).values():
        settings = registry.default_settings(function, dict(values))
        keys = [key for key in settings if key not in DEFAULTS[section] and key != "base"]
        said = of_settings(function, keys, values)
        words |= {key: meaning for key, meaning in said.items() if meaning}
    for key, choices in CHOICES.items():
        of, _, rest = key.partition(".")
        if of == section and not all(choice in words[rest] for choice in choices):
            words[rest] += f"; one of {', '.join(choices)}"
    return words


def of_settings(function: Callable, keys: list[str], chosen: Mapping | None = None) -> dict:
    """What settings of a function mean, as its docstring, or that of its base method, says."""
    parts = [function]
    if registry.is_wrapper(function):
        base = (chosen or {}).get("base", registry.DEFAULT_BASE)
        parts.append(registry.look_up("method", base))
    described = [described_in(inspect.getdoc(part) or "", keys) for part in parts]
    return {key: next((d[key] for d in described if d[key]), "") for key in keys}


def described_in(docstring: str, keys: list[str]) -> dict[str, str]:
    """What a docstring says of these settings; an empty text of one that it does not describe.

    An entry is `mu: its meaning`, `mu, tau: their meaning` or `mu (float): its meaning`, at the
    start of a line or of a sentence, until the next entry or an empty line. Otherwise it is the
    sentence with `mu` in such quotes.
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
    """A method's settings with their defaults and meanings, and what its docstrings say.

    name: of a method, or a reference. BadInput where there is none.
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
        lines.append("It has no settings.")
    module = inspect.getmodule(function)
    texts = [inspect.getdoc(part) for part in (module, function) if part is not None]
    return "\n\n".join(["\n".join(lines), *filter(None, texts)])


def of_names() -> str:
    """The names of all methods, data sources, models and so on, as --help lists them."""
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
    end = "In the place of each name: MODULE:FUNCTION or PATH/FILE.py:FUNCTION of your own."
    return "\n".join([*wrapped, end])


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * INDENT, subsequent_indent=" " * INDENT)


def _one_line(text: Any) -> str:
    return " ".join(text.split()).rstrip(".;")
