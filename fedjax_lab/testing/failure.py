"""The exception of all checks, and the comparison of arrays."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_lab import ranges
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.experiment import registry
from fedjax_lab.running.storage.checkpoint import numbers
from fedjax_lab.types import PyTree


class CheckFailed(AssertionError):
    """Raised when a check fails; the message explains why."""


def check(holds: bool, what: str) -> None:
    """Raises CheckFailed with the message `what` unless `holds`."""
    if not holds:
        raise CheckFailed(what)


def section(kind: str, part: str | Callable, settings: dict[str, Any]) -> dict[str, Any]:
    """Makes the section of a config for this part, with its settings and the other defaults.

    kind: a key of `registry.NAMED`. Raises CheckFailed if the part is not of that kind, or has no
        setting of a given name, or does not accept its value.
    """
    try:
        name = part if isinstance(part, str) else registry.name_of(kind, part)
        function = registry.look_up(kind, name)
        defaults = registry.keyword_defaults(function)
        ranges.check_settings(kind, function, settings)
    except BadInput as error:
        raise CheckFailed(str(error)) from error
    for key in settings:
        check(key in defaults, f"{kind} {name} has no setting {key!r}; {nearest(key, defaults)}")
    return {"name": name, **defaults, **settings}


def check_same(actual: PyTree, expected: PyTree, what: str, rtol=0.0, atol=0.0) -> None:
    """Raises CheckFailed unless both trees agree: bit for bit, or within the given tolerances.

    The message begins with `what` and names the first leaf that differs.
    """
    structures = [str(jax.tree.structure(a)) for a in (actual, expected)]
    check(structures[0] == structures[1], f"{what}: the results are trees of different structure")
    pairs = zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True)
    for (path, a), b in pairs:
        a, b = (np.asarray(numbers(x)) for x in (a, b))
        if a.shape != b.shape or a.dtype != b.dtype:
            raise CheckFailed(
                f"{what}: {jax.tree_util.keystr(path)} is {a.dtype}{list(a.shape)} in one case and"
                f" {b.dtype}{list(b.shape)} in the other"
            )
        if not _agree(a, b, rtol, atol):
            difference = np.max(np.abs(a.astype(float) - b.astype(float)))
            raise CheckFailed(
                f"{what}: {jax.tree_util.keystr(path)} differs by up to {difference:.3g}"
            )


def _agree(a, b, rtol, atol):
    if not (rtol or atol):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return np.allclose(a, b, rtol, atol, equal_nan=True)
