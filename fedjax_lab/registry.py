"""The methods that a config can name, their settings, and the words that these take."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args, get_origin

from fedjax_lab.errors import BadInput, check_not_negative, nearest
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

DEFAULT_BASE = "fedavg"  # the method that a wrapper wraps unless its setting `base` says otherwise


def make_method(name: str, task: Task, **settings) -> Method | Stages:
    """The named method with these settings. A wrapper gets a factory of its base method.

    BadInput says what would have been right.
    """
    if name not in METHODS:
        raise BadInput(f"no method {name!r}; {nearest(name, METHODS)}")
    function = METHODS[name]
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
    if name not in METHODS or METHODS[name] is wrapper:
        raise BadInput(f"config.method.base cannot be {name!r}; {nearest(name, METHODS)}")
    return METHODS[name]
