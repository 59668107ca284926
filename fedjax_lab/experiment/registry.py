"""Finds the functions that a config names, and their settings.

A name is one of NAMED, a name that an installed package provides (GROUPS), or a reference to a
function or class of the user: see `references`.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper, wraps
from typing import Literal, get_args, get_origin

import jax

from fedjax_lab import optim, sampling, transforms
from fedjax_lab.data.augment import AUGMENTATIONS
from fedjax_lab.data.partitions import feature_skews, label_skews
from fedjax_lab.data.partitions.dealing import takes_examples
from fedjax_lab.data.partitions.natural import by_client
from fedjax_lab.data.partitions.partition import PARTITIONS
from fedjax_lab.data.partitions.semantic import semantic
from fedjax_lab.data.sources.arrays import arrays
from fedjax_lab.data.sources.cifar import cifar10, cifar100
from fedjax_lab.data.sources.cinic10 import cinic10
from fedjax_lab.data.sources.digit_domains import digit_domains
from fedjax_lab.data.sources.digits_five import digits_five
from fedjax_lab.data.sources.domainnet import domainnet, domainnet_full
from fedjax_lab.data.sources.emnist import emnist
from fedjax_lab.data.sources.gtsrb import gtsrb
from fedjax_lab.data.sources.hub import huggingface
from fedjax_lab.data.sources.idx import fashion_mnist, idx, kmnist, mnist
from fedjax_lab.data.sources.image_folders import image_folders, office_home, pacs, vlcs
from fedjax_lab.data.sources.image_table import image_table
from fedjax_lab.data.sources.k49 import k49
from fedjax_lab.data.sources.leaf import leaf
from fedjax_lab.data.sources.mapped import mapped
from fedjax_lab.data.sources.medmnist import medmnist
from fedjax_lab.data.sources.office_caltech import office_caltech
from fedjax_lab.data.sources.prepared import tfds
from fedjax_lab.data.sources.records import records
from fedjax_lab.data.sources.shakespeare import shakespeare
from fedjax_lab.data.sources.svhn import svhn
from fedjax_lab.data.sources.synthetic import synthetic
from fedjax_lab.data.sources.text_files import text_files
from fedjax_lab.data.sources.text_sets import ag_news, sentiment140
from fedjax_lab.data.sources.tff import tff_hdf5
from fedjax_lab.data.sources.tiny_imagenet import tiny_imagenet
from fedjax_lab.data.sources.topics import topics
from fedjax_lab.data.sources.writers import writers
from fedjax_lab.errors import (
    BadInput,
    check_not_negative,
    cut,
    nearest,
    place_of,
    quoted,
    reason_of,
)
from fedjax_lab.experiment import references, schedules
from fedjax_lab.methods.apfl import apfl
from fedjax_lab.methods.ccvr import ccvr
from fedjax_lab.methods.central import central
from fedjax_lab.methods.cfl import cfl
from fedjax_lab.methods.client2vec import client2vec
from fedjax_lab.methods.ditto import ditto
from fedjax_lab.methods.elastic import elastic
from fedjax_lab.methods.fd import fd
from fedjax_lab.methods.fedadmm import fedadmm
from fedjax_lab.methods.fedala import fedala
from fedjax_lab.methods.fedamp import fedamp
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedavgm import fedavgm
from fedjax_lab.methods.fedbabu import fedbabu
from fedjax_lab.methods.fedbn import fedbn
from fedjax_lab.methods.fedc2i import fedc2i
from fedjax_lab.methods.fedcac import fedcac
from fedjax_lab.methods.fedcm import fedcm
from fedjax_lab.methods.fedconcat import fedconcat
from fedjax_lab.methods.fedconcat_id import fedconcat_id
from fedjax_lab.methods.feddbe import feddbe
from fedjax_lab.methods.feddecorr import feddecorr
from fedjax_lab.methods.feddisco import feddisco
from fedjax_lab.methods.feddyn import feddyn
from fedjax_lab.methods.fedem import fedem
from fedjax_lab.methods.fedetf import fedetf
from fedjax_lab.methods.fedexp import fedexp
from fedjax_lab.methods.fedfomo import fedfomo
from fedjax_lab.methods.fedgh import fedgh
from fedjax_lab.methods.fedgma import fedgma
from fedjax_lab.methods.fediir import fediir
from fedjax_lab.methods.fedlc import fedlc
from fedjax_lab.methods.fednova import fednova
from fedjax_lab.methods.fedntd import fedntd
from fedjax_lab.methods.fedopt import fedopt
from fedjax_lab.methods.fedpac import fedpac
from fedjax_lab.methods.fedper import fedper
from fedjax_lab.methods.fedphp import fedphp
from fedjax_lab.methods.fedpick import fedpick
from fedjax_lab.methods.fedproto import fedproto
from fedjax_lab.methods.fedprox import fedprox
from fedjax_lab.methods.fedrep import fedrep
from fedjax_lab.methods.fedrod import fedrod
from fedjax_lab.methods.fedrs import fedrs
from fedjax_lab.methods.fedsam import fedsam
from fedjax_lab.methods.fedsoft import fedsoft
from fedjax_lab.methods.fedsr import fedsr
from fedjax_lab.methods.fesem import fesem
from fedjax_lab.methods.finetune import finetune
from fedjax_lab.methods.fml import fml
from fedjax_lab.methods.hfedf import hfedf
from fedjax_lab.methods.ifca import ifca
from fedjax_lab.methods.knn_per import knn_per
from fedjax_lab.methods.lg_fedavg import lg_fedavg
from fedjax_lab.methods.local import local
from fedjax_lab.methods.mimelite import mimelite
from fedjax_lab.methods.moon import moon
from fedjax_lab.methods.per_fedavg import per_fedavg
from fedjax_lab.methods.pfedhn import pfedhn
from fedjax_lab.methods.pfedme import pfedme
from fedjax_lab.methods.scaffold import scaffold
from fedjax_lab.models import (
    alexnet,
    cct,
    char_lstm,
    fasttext,
    inception,
    mobilenet,
    modules,
    nets,
    resnet,
    text_cnn,
    transformer,
    vgg,
    vit,
)
from fedjax_lab.models.embeddings.clip import clip
from fedjax_lab.models.embeddings.precomputed import precomputed
from fedjax_lab.models.embeddings.stand_in import stand_in
from fedjax_lab.simulation.metrics import BUILT_IN, Metric
from fedjax_lab.transforms import (
    aggregators,
    attacks,
    backdoor,
    banded,
    compression,
    downlink,
    example_level,
    privacy,
    secure,
)
from fedjax_lab.types import Method, Stages, Task


def _table(*functions):
    return {function.__name__: function for function in functions}


METHODS: dict[str, Callable[..., Method | Stages]] = _table(
    apfl,
    ccvr,
    central,
    cfl,
    client2vec,
    ditto,
    elastic,
    fd,
    fedadmm,
    fedala,
    fedamp,
    fedavg,
    fedavgm,
    fedbabu,
    fedbn,
    fedc2i,
    fedcac,
    fedcm,
    fedconcat,
    fedconcat_id,
    feddbe,
    feddecorr,
    feddisco,
    feddyn,
    fedem,
    fedetf,
    fedexp,
    fedfomo,
    fedgh,
    fedgma,
    fediir,
    fedlc,
    fednova,
    fedntd,
    fedopt,
    fedpac,
    fedper,
    fedphp,
    fedpick,
    fedproto,
    fedprox,
    fedrep,
    fedrod,
    fedrs,
    fedsam,
    fedsoft,
    fedsr,
    fesem,
    finetune,
    fml,
    hfedf,
    ifca,
    knn_per,
    lg_fedavg,
    local,
    mimelite,
    moon,
    per_fedavg,
    pfedhn,
    pfedme,
    scaffold,
)

NAMED: dict[str, dict] = {
    "data": _table(
        digit_domains,
        synthetic,
        writers,
        fashion_mnist,
        mnist,
        emnist,
        kmnist,
        k49,
        idx,
        arrays,
        cifar10,
        cifar100,
        svhn,
        cinic10,
        gtsrb,
        medmnist,
        tiny_imagenet,
        shakespeare,
        leaf,
        tff_hdf5,
        text_files,
        ag_news,
        sentiment140,
        topics,
        digits_five,
        office_caltech,
        domainnet,
        domainnet_full,
        pacs,
        vlcs,
        office_home,
        image_folders,
        image_table,
        tfds,
        huggingface,
        records,
        mapped,
    ),
    "partition": PARTITIONS
    | _table(label_skews.shards, label_skews.extended_dirichlet, semantic, by_client),
    "feature_skew": _table(feature_skews.none, feature_skews.noise, feature_skews.rotation),
    "model": _table(
        nets.mlp,
        nets.simple_cnn,
        nets.concat_cnn,
        nets.lenet,
        nets.mcmahan_cnn,
        nets.digit_cnn,
        nets.fedbn_cnn,
        nets.pfl_cnn,
        nets.pfllib_cnn,
        vgg.vgg9,
        resnet.resnet18,
        resnet.resnet50,
        mobilenet.mobilenet_v2,
        cct.cct7,
        char_lstm.char_lstm,
        char_lstm.word_lstm,
        fasttext.fasttext,
        text_cnn.text_cnn,
        transformer.transformer,
        alexnet.alexnet_bn,
        inception.hfedf_cnn,
        vit.vit,
    ),
    "embedding": _table(stand_in, clip, precomputed),
    "method": METHODS,
    "metric": BUILT_IN,
    "augmentation": AUGMENTATIONS,
    "optimizer": _table(
        optim.sgd,
        optim.nesterov,
        optim.adam,
        optim.adamw,
        optim.nadam,
        optim.radam,
        optim.rmsprop,
        optim.adagrad,
        optim.lion,
    ),
    "schedule": _table(
        schedules.constant,
        schedules.exponential,
        schedules.step,
        schedules.multistep,
        schedules.linear,
        schedules.cosine,
    ),
    "sampling": _table(sampling.by_size, sampling.equal, sampling.shuffled, sampling.all_clients),
    "attack": _table(
        transforms.none,
        attacks.sign_flip,
        attacks.gaussian,
        attacks.inner_product,
        attacks.little_is_enough,
        attacks.label_flip,
        backdoor.backdoor,
    ),
    "privacy": _table(
        transforms.none,
        privacy.central,
        privacy.adaptive,
        banded.banded,
        privacy.local,
        example_level.example_level,
    ),
    "aggregator": _table(
        transforms.none,
        aggregators.median,
        aggregators.trimmed_mean,
        aggregators.krum,
        aggregators.multi_krum,
        aggregators.geometric_median,
        aggregators.centered_clipping,
        aggregators.norm_bound,
        secure.secure_sum,
    ),
    "compression": _table(
        transforms.none,
        compression.top_k,
        compression.random_k,
        compression.qsgd,
        compression.sign,
        compression.low_rank,
    ),
    "downlink": _table(transforms.none, downlink.qsgd),
}

GROUPS = {  # groups of entry points by which installed packages provide parts, by kind
    "data": "fedjax_lab.data",
    "partition": "fedjax_lab.partitions",
    "model": "fedjax_lab.models",
    "embedding": "fedjax_lab.embeddings",
    "method": "fedjax_lab.methods",
    "metric": "fedjax_lab.metrics",
    "attack": "fedjax_lab.attacks",
    "privacy": "fedjax_lab.privacies",
    "aggregator": "fedjax_lab.aggregators",
    "compression": "fedjax_lab.compressions",
    "downlink": "fedjax_lab.downlinks",
}

TAKES = {  # the arguments of a function of each kind, without its settings
    "data": (),
    "partition": ("y", "domain", "num_clients", "rng"),
    "feature_skew": ("key", "x", "client", "num_clients"),
    "model": ("num_classes",),
    "embedding": ("dataset",),
    "method": ("task",),
    "metric": ("logits", "labels", "mask"),
    "augmentation": ("key", "x"),
    "optimizer": ("lr",),
    "schedule": ("rounds",),
    "sampling": ("key", "server", "population", "m"),
    "attack": ("method", "task"),
    "privacy": ("method", "task", "setup"),
    "aggregator": ("method", "task"),
    "compression": ("method", "task"),
    "downlink": ("method", "task"),
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
        return NAMED[kind][name]
    if references.is_reference(name):
        return _checked(kind, name, references.find(name))
    offered = _offered(kind)
    if name in offered:
        return _checked(kind, name, references.load_offered(offered[name]))
    what = {"data": "dataset"}.get(kind, kind)
    raise BadInput(f"no {what} {quoted(name)}; {nearest(name, names(kind))}")


def name_of(kind: str, part: Callable) -> str:
    """The name or reference by which `look_up` finds this function or class."""
    for name, function in NAMED[kind].items():
        if function is part:
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
    signature = _signature(function)
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
    function = told(kind, section[key], look_up(kind, section[key]))
    settings = {key: section[key] for key in keyword_defaults(function)}
    return update_wrapper(partial(function, **settings), function) if settings else function


def told(kind: str, name: str, function: Callable) -> Callable:
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
        check_not_negative(f"method.{key}", settings[key])
    function = told("method", name, function)
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


def _make_base(name, settings, task):
    """A method that another one can wrap. Raises BadInput if it has stages, or no cohorts."""
    method = make_method(name, task, **settings)
    if not isinstance(method, Method):
        raise BadInput(f"config.method.base={name} has several stages; choose another method")
    if method.pooled or any(exchange.one_by_one for exchange in method.round):
        raise BadInput(
            f"config.method.base={name} has no rounds with several clients; choose another method"
        )
    return method


def is_wrapper(function: Callable) -> bool:
    """Whether a method wraps another one, whose factory `make_base` is then its second argument."""
    return list(_signature(function).parameters)[1:2] == ["make_base"]


def is_method(value: object) -> bool:
    """Whether the value is a function whose first argument is `task`."""
    return inspect.isfunction(value) and next(iter(_signature(value).parameters), "") == "task"


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
    for part in (function, _base(function, chosen)) if is_wrapper(function) else (function,):
        for key, parameter in _signature(part).parameters.items():
            literals = [a for a in get_args(parameter.annotation) if get_origin(a) is Literal]
            if literals:
                words[key] = sum(map(get_args, literals), ())
    return words


def keyword_defaults(function: Callable) -> dict:
    """The keyword-only arguments of a function and their defaults, if a config can hold these.

    An argument without a default has `inspect.Parameter.empty`.
    """
    parameters = _signature(function).parameters
    keywords = {key: p.default for key, p in parameters.items() if p.kind == p.KEYWORD_ONLY}
    return {key: default for key, default in keywords.items() if _is_setting(default)}


def _is_setting(default):
    plain = isinstance(default, (bool, int, float, str, tuple))
    return plain or default is inspect.Parameter.empty


def _signature(function):
    """The signature, with annotations evaluated if they are stored as text."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # an annotation names something that only a type checker imports
        pass
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:  # written in C
        raise BadInput(f"the arguments of {quoted(function)} cannot be determined") from error


def _base(wrapper, chosen):
    name = (chosen or {}).get("base", DEFAULT_BASE)
    if references.is_reference(name):
        return look_up("method", name)
    base = METHODS.get(name)
    if base is None or base is wrapper:
        bases = [key for key in names("method") if METHODS.get(key) is not wrapper]
        if name not in bases:
            raise BadInput(f"config.method.base cannot be {name!r}; {nearest(name, bases)}")
    return look_up("method", name)
