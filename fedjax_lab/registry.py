"""From names to functions: what a config can name, with its settings and the words these take."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import Literal, get_args, get_origin

from fedjax_lab.data.arrays import arrays
from fedjax_lab.data.cifar import cifar10, cifar100
from fedjax_lab.data.digit_domains import digit_domains
from fedjax_lab.data.digits_five import digits_five
from fedjax_lab.data.domainnet import domainnet, domainnet_full
from fedjax_lab.data.idx import fashion_mnist, idx
from fedjax_lab.data.image_folders import image_folders, office_home, pacs, vlcs
from fedjax_lab.data.mapped import mapped
from fedjax_lab.data.office_caltech import office_caltech
from fedjax_lab.data.partition import PARTITIONS
from fedjax_lab.data.prepared import tfds
from fedjax_lab.data.records import records
from fedjax_lab.data.shakespeare import shakespeare
from fedjax_lab.data.svhn import svhn
from fedjax_lab.data.tiny_imagenet import tiny_imagenet
from fedjax_lab.embedding.clip import clip
from fedjax_lab.embedding.precomputed import precomputed
from fedjax_lab.embedding.stand_in import stand_in
from fedjax_lab.errors import BadInput, check_not_negative, nearest, quoted
from fedjax_lab.methods.central import central
from fedjax_lab.methods.client2vec import client2vec
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.fedavgm import fedavgm
from fedjax_lab.methods.fedbn import fedbn
from fedjax_lab.methods.fedc2i import fedc2i
from fedjax_lab.methods.fedconcat import fedconcat
from fedjax_lab.methods.fedconcat_id import fedconcat_id
from fedjax_lab.methods.feddyn import feddyn
from fedjax_lab.methods.fedgma import fedgma
from fedjax_lab.methods.fediir import fediir
from fedjax_lab.methods.fedlc import fedlc
from fedjax_lab.methods.fednova import fednova
from fedjax_lab.methods.fedopt import fedopt
from fedjax_lab.methods.fedper import fedper
from fedjax_lab.methods.fedpick import fedpick
from fedjax_lab.methods.fedproto import fedproto
from fedjax_lab.methods.fedprox import fedprox
from fedjax_lab.methods.fedrep import fedrep
from fedjax_lab.methods.fedrod import fedrod
from fedjax_lab.methods.fedrs import fedrs
from fedjax_lab.methods.fedsoft import fedsoft
from fedjax_lab.methods.fedsr import fedsr
from fedjax_lab.methods.fesem import fesem
from fedjax_lab.methods.finetune import finetune
from fedjax_lab.methods.hfedf import hfedf
from fedjax_lab.methods.ifca import ifca
from fedjax_lab.methods.lg_fedavg import lg_fedavg
from fedjax_lab.methods.local import local
from fedjax_lab.methods.moon import moon
from fedjax_lab.methods.pfedhn import pfedhn
from fedjax_lab.methods.scaffold import scaffold
from fedjax_lab.metrics import BUILT_IN
from fedjax_lab.models import (
    alexnet,
    cct,
    char_lstm,
    inception,
    mobilenet,
    nets,
    resnet,
    vgg,
    vit,
)
from fedjax_lab.types import Method, Stages, Task


def _table(*functions):
    return {function.__name__: function for function in functions}


METHODS: dict[str, Callable[..., Method | Stages]] = _table(
    central,
    client2vec,
    fedavg,
    fedavgm,
    fedbn,
    fedc2i,
    fedconcat,
    fedconcat_id,
    feddyn,
    fedgma,
    fediir,
    fedlc,
    fednova,
    fedopt,
    fedper,
    fedpick,
    fedprox,
    fedproto,
    fedrep,
    fedrod,
    fedrs,
    fedsoft,
    fedsr,
    fesem,
    finetune,
    hfedf,
    ifca,
    lg_fedavg,
    local,
    moon,
    pfedhn,
    scaffold,
)

NAMED = {
    "data": _table(
        digit_domains,
        fashion_mnist,
        idx,
        arrays,
        cifar10,
        cifar100,
        svhn,
        tiny_imagenet,
        shakespeare,
        digits_five,
        office_caltech,
        domainnet,
        domainnet_full,
        pacs,
        vlcs,
        office_home,
        image_folders,
        tfds,
        records,
        mapped,
    ),
    "partition": PARTITIONS,
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
        alexnet.alexnet_bn,
        inception.hfedf_cnn,
        vit.vit,
    ),
    "embedding": _table(stand_in, clip, precomputed),
    "method": METHODS,
    "metric": BUILT_IN,
}

DEFAULT_BASE = "fedavg"  # the method that a wrapper wraps unless its setting `base` says otherwise


def look_up(kind: str, name: str) -> Callable:
    """The function of that name; kind: a key of NAMED. BadInput has the nearest name."""
    if name not in NAMED[kind]:
        what = {"data": "dataset"}.get(kind, kind)
        raise BadInput(f"no {what} {quoted(name)}; {nearest(name, NAMED[kind])}")
    return NAMED[kind][name]


def bind(kind: str, section: Mapping) -> Callable:
    """The function that a section of a config names, with the settings that stand beside it.

    Keys of the section that are no settings of that function are left out.
    """
    function = look_up(kind, section["name"])
    settings = {key: section[key] for key in keyword_defaults(function)}
    return update_wrapper(partial(function, **settings), function)


def make_method(name: str, task: Task, **settings) -> Method | Stages:
    """The named method with these settings. A wrapper gets a factory of its base method.

    BadInput says what would have been right.
    """
    function = look_up("method", name)
    defaults = default_settings(function, settings)
    for key in settings:
        if key not in defaults:
            raise BadInput(f"method {name} has no setting {key!r}; {nearest(key, defaults)}")
        check_not_negative(f"method.{key}", settings[key])
    if not is_wrapper(function):
        return function(task, **settings)
    base, of_wrapper = settings.pop("base", DEFAULT_BASE), keyword_defaults(function)
    of_base = {key: value for key, value in settings.items() if key not in of_wrapper}
    of_wrapper = {key: value for key, value in settings.items() if key in of_wrapper}
    return function(task, partial(_make_base, base, of_base), **of_wrapper)


def _make_base(name, settings, task):
    """A method that another one can wrap. BadInput where it has stages, or no cohorts."""
    method = make_method(name, task, **settings)
    if not isinstance(method, Method):
        raise BadInput(f"config.method.base={name} has stages of its own; take another")
    if method.pooled or any(exchange.one_by_one for exchange in method.round):
        raise BadInput(f"config.method.base={name} has no rounds of several clients; take another")
    return method


def is_wrapper(function: Callable) -> bool:
    """Whether a method improves another one: its second argument is then a factory of that."""
    return list(inspect.signature(function).parameters)[1:2] == ["make_base"]


def default_settings(function: Callable, chosen: dict | None = None) -> dict:
    """The settings of a method (or data source, partition, model) and their defaults.

    Those are its keyword-only arguments. A wrapper has the setting `base` besides, and the settings
    of the method that `chosen`, or else the default, names as its base.
    """
    if not is_wrapper(function):
        return keyword_defaults(function)
    base = _base(function, chosen)
    return {"base": DEFAULT_BASE, **keyword_defaults(function), **keyword_defaults(base)}


def setting_words(function: Callable, chosen: dict | None = None) -> dict[str, tuple[str, ...]]:
    """The words that settings take besides values of their default's type (`Literal`)."""
    words = {}
    for part in (function, _base(function, chosen)) if is_wrapper(function) else (function,):
        for key, parameter in inspect.signature(part).parameters.items():
            literals = [a for a in get_args(parameter.annotation) if get_origin(a) is Literal]
            if literals:
                words[key] = sum(map(get_args, literals), ())
    return words


def keyword_defaults(function: Callable) -> dict:
    """The keyword-only arguments of a function and their defaults."""
    parameters = inspect.signature(function).parameters
    return {key: p.default for key, p in parameters.items() if p.kind == p.KEYWORD_ONLY}


def _base(wrapper, chosen):
    name = (chosen or {}).get("base", DEFAULT_BASE)
    bases = {key: method for key, method in METHODS.items() if method is not wrapper}
    if name not in bases:
        raise BadInput(f"config.method.base cannot be {name!r}; {nearest(name, bases)}")
    return bases[name]
