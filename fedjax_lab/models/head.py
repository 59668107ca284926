"""The last layer of a model, called `head` in methods, whatever the module calls it."""

from typing import Any, NamedTuple

HEAD = "head"


class Head(NamedTuple):
    """The location of the last layer in a module."""

    path: str  # in the calls of the module
    keys: tuple[Any, ...]  # in the nested parameters; keys of NNX may be integers
    parts: tuple[str, ...]  # top-level names of the module's parameters


def find(params: dict, path: str) -> Head:
    """The location of the layer at this path, which must have parameters."""
    keys, inside = [], params
    for name in path.split("/"):
        keys.append(next(key for key in inside if str(key) == name))
        inside = inside[keys[-1]]
    return Head(path, tuple(keys), tuple(params))


def layer_of(head: Head, params: dict) -> dict:
    """The parameters of the layer, taken from those of the module."""
    for key in head.keys:
        params = params[key]
    return params


def named(head: Head, params: dict) -> dict:
    """The module's parameters with the layer moved to `head`; the inverse of `as_in_module`."""
    if head.path == HEAD:
        return params
    return {**_without(params, head.keys), HEAD: layer_of(head, params)}


def as_in_module(head: Head, params: dict) -> dict:
    """The parameters with `head` at its place in the module, without those added by methods."""
    if head.path != HEAD:
        params = _with({**params, HEAD: None}, head.keys, params[HEAD])
    return {key: value for key, value in params.items() if key in head.parts}


def _without(params, keys):
    first, *rest = keys
    kept = {key: value for key, value in params.items() if key != first}
    return {**kept, first: _without(params[first], rest)} if rest else kept


def _with(params, keys, layer):
    first, *rest = keys
    return {**params, first: _with(params.get(first, {}), rest, layer) if rest else layer}
