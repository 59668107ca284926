"""Every method of the library, one short file each."""

import inspect
from collections.abc import Callable
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

METHODS: dict[str, Callable[..., Method | Stages]] = {
    method.__name__: method
    for method in (
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
}


def make(name: str, task: Task, **hyper) -> Method | Stages:
    """The named method with its hyper-parameters; BadInput says what would have been right."""
    if name not in METHODS:
        raise BadInput(f"no method {name!r}; {nearest(name, METHODS)}")
    known = settings(METHODS[name], hyper)
    for key in hyper:
        if key not in known:
            raise BadInput(f"method {name} has no setting {key!r}; {nearest(key, known)}")
        check_not_negative(f"method.{key}", hyper[key])
    return METHODS[name](task, **hyper)


def make_plain(name: str, task: Task, hyper: dict) -> Method:
    """A method that another one can wrap. BadInput where it has stages, or no cohorts."""
    method = make(name, task, **hyper)
    if not isinstance(method, Method):
        raise BadInput(f"config.method.base={name} has stages of its own; take another")
    if method.pooled or any(exchange.one_by_one for exchange in method.round):
        raise BadInput(f"config.method.base={name} has no rounds of several clients; take another")
    return method


def words(function: Callable, chosen: dict | None = None) -> dict[str, tuple[str, ...]]:
    """The words that settings take besides values of their default's type (`Literal`)."""
    found = {}
    for part in _with_base(function, chosen or {}):
        for key, p in inspect.signature(part).parameters.items():
            literals = [word for word in get_args(p.annotation) if get_origin(word) is Literal]
            found[key] = sum(map(get_args, literals), ())
    return {key: names for key, names in found.items() if names}


def settings(function: Callable, chosen: dict | None = None) -> dict:
    """The keyword-only arguments of a method (or source, partitioner, model): its settings.

    A method that takes any others (`**hyper`) hands them to the method that `chosen`, or else the
    default, names as its `base`.
    """
    parts = [inspect.signature(part).parameters for part in _with_base(function, chosen or {})]
    return {key: p.default for part in parts for key, p in part.items() if p.kind == p.KEYWORD_ONLY}


def _with_base(function, chosen):
    parameters = inspect.signature(function).parameters
    if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
        return [function]
    base = chosen.get("base", parameters["base"].default)
    if base not in METHODS or METHODS[base] is function:
        raise BadInput(f"config.method.base cannot be {base!r}; {nearest(base, METHODS)}")
    return [function, METHODS[base]]
