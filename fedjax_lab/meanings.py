"""What the keys of a config mean, in words: of a config, of a method, of all names."""

import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_lab import ranges, registry
from fedjax_lab.config import CHOICES, DEFAULTS, SETTINGS_OF
from fedjax_lab.references import PARTS

WIDTH = 100  # characters of a line
INDENT = 6  # of what is said of a key

MEANINGS = {
    # Of the keys that every config has.
    "data.name": "the source of the examples",
    "data.normalize": "what the model sees of pixels: unit, 0 to 1; half, -1 to 1; or they are"
    " centered and scaled by the mean and standard deviation of the named dataset",
    "data.augment": "the random changes of training images",
    "data.unseen": "a domain that no client holds, on which models are scored; empty: none",
    "data.shots": "how many images of the unseen domain each client holds after all",
    "data.shots_per": "client: so many shots in all; class: so many of each class",
    "partition.name": "how the training examples are divided among the clients",
    "partition.num_clients": "the number of clients",
    "partition.validation": "the fraction of each client's training examples that is held out",
    "model.name": "the model that is trained",
    "model.pretrained": "a file or folder with the first weights; empty: new ones",
    "embedding.name": "the embeddings of examples and labels, for methods that use them",
    "method.name": "the federated method",
    "method.base": "the method that this one improves",
    "local.optimizer": "the clients' optimizer",
    "local.lr": "its learning rate",
    "local.momentum": "its momentum, where it has one",
    "local.weight_decay": "its weight decay, which is added to the gradient",
    "local.clip": "the largest norm of a step's gradient, before weight decay; 0: no limit",
    "local.batch_size": "examples of a step",
    "local.epochs": "passes of a client over its examples in a round",
    "run.rounds": "rounds of the run; of FedConcat: of FedAvg, whose bytes it spends",
    "run.cohort": "clients that take part in a round; 0: all",
    "run.eval_every": "rounds between two evaluations",
    "run.seed": "the seed where --seeds names none",
    "run.sampling": "how the clients of a round are drawn; empty: as the method says",
    "run.metrics": "what is measured besides accuracy and loss",
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
    "data.test_per_domain": "test examples of each domain",
    "data.fraction": "the share of the texts that is taken",
    "data.dataset": "the name of the dataset",
    "partition.alpha": "of the Dirichlet distribution: the smaller, the more unequal are clients",
    "partition.min_size": "the fewest examples that a client may have",
    "partition.tries": "how often the draw is repeated at most",
    "model.width": "the size of the hidden layers",
    "model.depth": "the number of hidden layers",
    "model.norm": "the normalization between layers",
    "model.heads": "the attention heads of a layer",
    "model.patch": "the height and width of a patch, in pixels",
    "embedding.batch_size": "examples that are embedded at a time",
    "embedding.file": "the file with the embeddings",
}


def of_config(config: Mapping) -> str:
    """All keys of a resolved config as flags of the command line, each with its meaning."""
    lines = []
    for section, values in config.items():
        words = of_section(section, values)
        for key, value in values.items():
            text = value if isinstance(value, str) else repr(value)
            lines.append(f"--config.{section}.{key}={shlex.quote(text)}")
            lines += _indented(words[key])
        lines.append("")
    return "\n".join(lines).rstrip()


def of_section(section: str, values: Mapping) -> dict[str, str]:
    """What the keys of a config's section mean; an empty text where nobody has said it."""
    words = {key: MEANINGS.get(f"{section}.{key}", "") for key in values}
    named = SETTINGS_OF.get(section)
    if named and values[named]:
        function = registry.look_up(PARTS[f"{section}.{named}"], values[named])
        settings = [key for key in values if key not in DEFAULTS[section] and key != "base"]
        said = of_settings(function, settings, values)
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
    titles |= {"embedding": "embeddings", "optimizer": "optimizers", "sampling": "samplings"}
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
