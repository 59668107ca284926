"""Finds the functions that a config names, and their settings.

A name is one of NAMED, a name that an installed package provides (GROUPS), or a reference to a
function or class of the user: see `references`. The module of a function is imported when its name
is looked up.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper, wraps
from typing import Any

import jax

from fedjax_lab import methods, ranges, tasks
from fedjax_lab.data import augment, sources
from fedjax_lab.data.partitions.dealing import takes_examples
from fedjax_lab.errors import (
    BadInput,
    cut,
    nearest,
    place_of,
    quoted,
    reason_of,
)
from fedjax_lab.experiment import references
from fedjax_lab.models import embeddings, modules
from fedjax_lab.ranges import Limit
from fedjax_lab.simulation import metrics, needs
from fedjax_lab.simulation.metrics import Metric
from fedjax_lab.types import Method, Stages, Task

# Folders in which a file has the function of its own name. A file whose name begins with an
# underscore has shared parts.
FOLDERS = {"method": methods, "data": sources, "embedding": embeddings, "task": tasks}

MODULES = {  # other modules, with the names of their functions
    "data": {
        "data.sources.cifar": "cifar10 cifar100",
        "data.sources.domainnet": "domainnet domainnet_full",
        "data.sources.hub": "huggingface",
        "data.sources.idx": "fashion_mnist mnist kmnist idx",
        "data.sources.image_folders": "pacs vlcs office_home image_folders",
        "data.sources.prepared": "tfds",
        "data.sources.text_sets": "ag_news sentiment140",
        "data.sources.tff": "tff_hdf5",
        "data.sources.user_tables": "natural",
    },
    "partition": {
        "data.partitions.partitioning": "iid dirichlet classes_per_client client_dirichlet quantity"
        " by_domain domains_per_client",
        "data.partitions.label_skews": "shards extended_dirichlet",
        "data.partitions.semantic": "semantic",
        "data.partitions.natural": "by_client",
    },
    "feature_skew": {"data.partitions.feature_skews": "none noise rotation"},
    "model": {
        "models.nets": "mlp simple_cnn concat_cnn lenet mcmahan_cnn digit_cnn fedbn_cnn pfl_cnn"
        " pfllib_cnn",
        "models.vgg": "vgg9",
        "models.resnet": "resnet18 resnet50",
        "models.mobilenet": "mobilenet_v2",
        "models.cct": "cct7",
        "models.char_lstm": "char_lstm causal_lstm word_lstm",
        "models.decoder": "decoder",
        "models.fasttext": "fasttext",
        "models.gpt2": "gpt2",
        "models.text_cnn": "text_cnn",
        "models.transformer": "transformer causal_transformer",
        "models.unet": "unet",
        "models.alexnet": "alexnet_bn",
        "models.inception": "hfedf_cnn",
        "models.vit": "vit",
    },
    "adapter": {"models.adapters": "none frozen lora"},
    "optimizer": {"optim": "sgd nesterov adam adamw nadam radam rmsprop adagrad lion"},
    "schedule": {"experiment.schedules": "constant exponential step multistep linear cosine"},
    "sampling": {"sampling": "by_size equal shuffled all_clients power_of_choice"},
    "attack": {
        "transforms": "none",
        "transforms.attacks": "sign_flip gaussian inner_product little_is_enough min_max min_sum"
        " label_flip",
        "transforms.backdoor": "backdoor dba blended semantic neurotoxin",
    },
    "privacy": {
        "transforms": "none",
        "transforms.privacy": "central adaptive local",
        "transforms.correlated_noise": "banded",
        "transforms.example_level": "example_level",
    },
    "aggregator": {
        "transforms": "none",
        "transforms.aggregators": "median trimmed_mean krum multi_krum bulyan geometric_median"
        " centered_clipping norm_bound",
        "transforms.defenses": "fltrust foolsgold robust_lr flame dnc",
        "transforms.secure": "secure_sum",
    },
    "mixing": {"transforms": "none", "transforms.mixing": "bucketing nearest_neighbors"},
    "compression": {
        "transforms": "none",
        "transforms.compression": "top_k random_k qsgd sign low_rank",
    },
    "downlink": {"transforms": "none", "transforms.downlink": "qsgd"},
    "clock": {"experiment.speeds": "none constant log_normal half_normal exponential trace"},
    "availability": {"experiment.availability": "always on_off trace"},
}


def _modules(kind):
    """{name: its module} of a kind, which imports none of these modules."""
    listed = {f"fedjax_lab.{module}": words for module, words in MODULES.get(kind, {}).items()}
    named = {name: module for module, words in listed.items() for name in words.split()}
    if kind not in FOLDERS:
        return named
    folder = FOLDERS[kind]
    files = [file.name for file in pkgutil.iter_modules(folder.__path__) if file.name[0] != "_"]
    modules = {name: f"{folder.__name__}.{name}" for name in files}
    return {name: module for name, module in modules.items() if module not in listed} | named


# {kind: {name: the module that has the function under this name, or the part itself}}
NAMED: dict[str, dict[str, Any]] = {
    **{kind: _modules(kind) for kind in {**FOLDERS, **MODULES}},
    "metric": metrics.BUILT_IN,
    "augmentation": augment.AUGMENTATIONS,
}
METHODS = NAMED["method"]

# Groups of entry points by which installed packages provide parts, by kind.
_NAMED_AS_KIND = (
    "partition task model adapter embedding method metric attack aggregator compression downlink"
)
GROUPS = {"data": "fedjax_lab.data", "privacy": "fedjax_lab.privacies"} | {
    kind: f"fedjax_lab.{kind}s" for kind in _NAMED_AS_KIND.split()
}

TAKES = {  # the arguments of a function of each kind, without its settings
    "data": (),
    "partition": ("y", "domain", "num_clients", "rng"),
    "feature_skew": ("key", "x", "client", "num_clients"),
    "task": ("labels",),
    "model": ("num_classes",),
    "adapter": ("objective",),
    "embedding": ("dataset",),
    "method": ("task",),
    "metric": ("logits", "labels", "mask"),
    "augmentation": ("key", "x"),
    "optimizer": ("lr",),
    "schedule": ("rounds",),
    "sampling": ("key", "server", "population", "m"),
    "privacy": ("method", "task", "setup"),
    **dict.fromkeys(("clock", "availability"), ("num_clients", "rng")),
    **dict.fromkeys(
        ("attack", "aggregator", "mixing", "compression", "downlink"), ("method", "task")
    ),
}

OF_EXAMPLES = ("examples", "num_clients", "rng")  # the second form of a partition; see dealing.py

WITH_PATHS = "data", "embedding"  # kinds whose settings may lack a default: these are paths

DEFAULT_BASE = "fedavg"  # the default of a wrapper's setting `base`


def look_up(kind: str, name: str) -> Callable:
    """The function with this name or reference.

    kind: a key of NAMED, such as "method".

    Raises BadInput with the nearest name if there is no such function, or with the reason if a
    function that is not built in cannot be loaded or does not have the signature of its kind.
    """
    if name in NAMED[kind]:
        return _built_in(kind, name)
    if references.is_reference(name):
        return _checked(kind, name, references.find(name))
    offered = _offered(kind)
    if name in offered:
        return _checked(kind, name, references.load_offered(offered[name]))
    what = {"data": "dataset"}.get(kind, kind)
    raise BadInput(f"no {what} {quoted(name)}; {nearest(name, names(kind))}")


def name_of(kind: str, part: Callable) -> str:
    """The name or reference by which `look_up` finds this function or class."""
    name = part.name if isinstance(part, Metric) else getattr(part, "__name__", "")
    if name in NAMED[kind] and _built_in(kind, name) is part:
        return name
    return references.text_of(part)


def is_part(kind: str, value: object) -> bool:
    """Whether the value is a function, class or `Metric`, which a config may have for a name."""
    return callable(value) or (kind == "metric" and isinstance(value, Metric))


def names(kind: str) -> list[str]:
    """All names of a kind, including those that installed packages provide."""
    return sorted({*NAMED[kind], *_offered(kind)})


def source_of(kind: str, name: str) -> references.Source | None:
    """The source file of the function with this name; None for a built-in function.

    Raises BadInput as in `look_up`.
    """
    look_up(kind, name)
    if name in NAMED[kind]:
        return None
    if references.is_reference(name):
        return references.source_of(name, references.find(name))
    point = _offered(kind)[name]
    return references.source_of(point.value, references.load_offered(point))


def _built_in(kind, name):
    part = NAMED[kind][name]
    return getattr(importlib.import_module(part), name) if isinstance(part, str) else part


def _offered(kind):
    """The entry points of a kind by name."""
    return references.offered(GROUPS[kind]) if kind in GROUPS else {}


def _checked(kind, name, function):
    """The function, after a check of its signature; for a model class a function that makes it."""
    what = {"data": "data source"}.get(kind, kind)
    if not is_part(kind, function):
        raise BadInput(f"{name} is not a valid {what}: it is of type {type(function).__name__}")
    if not callable(function):
        return function
    if kind == "model":
        function = modules.as_function(function)
    wraps = kind == "method" and is_wrapper(function)
    takes = (*TAKES[kind], "make_base") if wraps else TAKES[kind]
    signature = ranges.signature(function)
    takes = (*takes, "losses") if kind == "sampling" and "losses" in signature.parameters else takes
    named: tuple[str, ...] = ()  # those of the arguments that are passed by name
    if kind == "partition" and takes_examples(function):
        takes, named = OF_EXAMPLES, OF_EXAMPLES[1:]
    settings = keyword_defaults(function)
    needed = [key for key, value in settings.items() if value is inspect.Parameter.empty]
    if needed and kind not in WITH_PATHS:
        raise BadInput(f"{name}: its setting {needed[0]} needs a default")
    try:
        given = [each for each in takes if each not in named]
        signature.bind(*given, **dict.fromkeys([*named, *needed]))
        fits = kind != "method" or next(iter(signature.parameters)) == "task"
    except TypeError:
        fits = False
    if not fits:
        wanted = f"take ({', '.join(takes)}), then settings" if takes else "take only settings"
        actual = cut(str(signature), 80)
        raise BadInput(f"{name} is not a valid {what}: it must {wanted}, not {actual}")
    return function


def bind(kind: str, section: Mapping, key: str = "name") -> Callable:
    """The function that a section of a config names, with its settings from the same section.

    key: the key of the section that holds the name. Keys of the section that are not settings of
    the function are ignored.
    """
    function = with_named_errors(kind, section[key], look_up(kind, section[key]))
    settings = {key: section[key] for key in keyword_defaults(function)}
    return update_wrapper(partial(function, **settings), function) if settings else function


def with_named_errors(kind: str, name: str, function: Callable) -> Callable:
    """The function with this name, whose errors name it if nothing else of the user's code does.

    An error in a file of the user is raised as it is: `errors.place_of` finds the line.
    """
    if name in NAMED[kind] or not callable(function):
        return function

    @wraps(function)
    def call(*args, **settings):
        try:
            return function(*args, **settings)
        except (BadInput, MemoryError, OSError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:
            if place_of(error):
                raise
            raise BadInput(f"{kind} {name} failed: {reason_of(error)}") from error

    return call


def make_method(name: str, task: Task, **settings) -> Method | Stages:
    """The named method with these settings. A wrapper gets a factory of its base method.

    Raises BadInput, with the nearest valid choice, for an unknown name or setting.
    """
    function = look_up("method", name)
    defaults = default_settings(function, settings)
    for key in settings:
        if key not in defaults:
            raise BadInput(f"method {name} has no setting {key!r}; {nearest(key, defaults)}")
    function = ranges.checked("method")(with_named_errors("method", name, function))
    if not is_wrapper(function):
        return _method(name, function(task, **settings))
    base, of_wrapper = settings.pop("base", DEFAULT_BASE), keyword_defaults(function)
    of_base = {key: value for key, value in settings.items() if key not in of_wrapper}
    of_wrapper = {key: value for key, value in settings.items() if key in of_wrapper}
    return _method(name, function(task, partial(_make_base, base, of_base), **of_wrapper))


def _method(name, made):
    """Checks what a method's function returned.

    Raises BadInput if it is no method and has no stages.
    """
    if name not in METHODS and not isinstance(made, Method) and not callable(made):
        raise BadInput(
            f"method {name} must return a Method, or a function that returns the stages for a"
            f" number of rounds, not {quoted(made)}"
        )
    return made


BASE_NEEDS = ("one_stage", "all_at_once")


def _make_base(name, settings, task):
    """A method that another one can wrap. Raises BadInput if it has stages, or no cohorts."""
    method = make_method(name, task, **settings)
    remedy = "; choose another method"
    needs.check(method, *BASE_NEEDS, what=f"config.method.base={name}: ", remedy=remedy)
    return method


def is_wrapper(function: Callable) -> bool:
    """Whether a method wraps another one, whose factory `make_base` is then its second argument."""
    return list(ranges.signature(function).parameters)[1:2] == ["make_base"]


def is_method(value: object) -> bool:
    """Whether the value is a function whose first argument is `task`."""
    return (
        inspect.isfunction(value) and next(iter(ranges.signature(value).parameters), "") == "task"
    )


def default_settings(function: Callable, chosen: dict | None = None) -> dict:
    """The settings of a method (or data source, partition, model) and their defaults.

    Settings are keyword-only arguments. A wrapper also has the setting `base` and the settings of
    its base method: the one that chosen["base"] names, or the default.
    """
    if not is_wrapper(function):
        return keyword_defaults(function)
    base = _base(function, chosen)
    return {"base": DEFAULT_BASE, **keyword_defaults(function), **keyword_defaults(base)}


def has_own_test(source: str) -> bool:
    """Whether the named data source has its own setting `test`, which replaces config.data.test."""
    return "test" in keyword_defaults(look_up("data", source))


def setting_words(function: Callable, chosen: dict | None = None) -> dict[str, tuple[str, ...]]:
    """The words that settings accept besides values of their default's type (`Literal`)."""
    words = {}
    for part in _and_base(function, chosen):
        for key, parameter in ranges.signature(part).parameters.items():
            if besides := ranges.words_of(parameter.annotation):
                words[key] = besides
    return words


def limits_of(function: Callable, chosen: dict | None = None) -> dict[str, Limit]:
    """The bounds and choices of settings, which annotations declare: see `ranges.limits`."""
    return {
        key: limit
        for part in _and_base(function, chosen)
        for key, limit in ranges.limits(part).items()
    }


def keyword_defaults(function: Callable) -> dict:
    """The keyword-only arguments of a function and their defaults, if a config can hold these.

    An argument without a default has `inspect.Parameter.empty`.
    """
    parameters = ranges.signature(function).parameters
    keywords = {key: p.default for key, p in parameters.items() if p.kind == p.KEYWORD_ONLY}
    plain, absent = (bool, int, float, str, tuple), inspect.Parameter.empty
    return {key: d for key, d in keywords.items() if isinstance(d, plain) or d is absent}


def _and_base(function, chosen):
    """The function and, for a wrapper, its base method."""
    return (function, _base(function, chosen)) if is_wrapper(function) else (function,)


def _base(wrapper, chosen):
    name = (chosen or {}).get("base", DEFAULT_BASE)
    if references.is_reference(name):
        return look_up("method", name)
    if _is(wrapper, name) or name not in METHODS:
        bases = [key for key in names("method") if not _is(wrapper, key)]
        if name not in bases:
            raise BadInput(f"config.method.base cannot be {name!r}; {nearest(name, bases)}")
    return look_up("method", name)


def _is(function, name):
    """Whether this is the method of the library with that name."""
    return name in METHODS and _built_in("method", name) is function
