"""The last layer of a model, which methods know as `head`, whatever its module calls it."""

from typing import Any, NamedTuple

HEAD = "head"


class Head(NamedTuple):
    """Where a module has its last layer."""

    path: str  # as its calls have it
    keys: tuple[Any, ...]  # in its nested parameters; those of NNX may be numbers
    parts: tuple[str, ...]  # all that the module has parameters of


def find(params: dict, path: str) -> Head:
    """The layer at this path, which has parameters."""
    keys, inside = [], params
    for name in path.split("/"):
        keys.append(next(key for key in inside if str(key) == name))
        inside = inside[keys[-1]]
    return Head(path, tuple(keys), tuple(params))


def layer_of(head: Head, params: dict) -> dict:
    """The parameters of the layer, among those of the module."""
    for key in head.keys:
        params = params[key]
    return params


def named(head: Head, params: dict) -> dict:
    """The parameters of the module with the layer as `head`; the inverse of `as_in_module`."""
    if head.path == HEAD:
        return params
    return {**_without(params, head.keys), HEAD: layer_of(head, params)}


def as_in_module(head: Head, params: dict) -> dict:
    """The parameters with the layer where the module has it, without those that methods add."""
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
