"""The option `--method NAME`: the tests of one method, which are found by its name.

A file of tests/methods is read if it is test_NAME.py, has the name in quotes or goes through all
methods. A test of it is one of the method if it is in test_NAME.py, if one of its parameters is the
name, or if its own name or its code has the name. Those that check a method on meshes, and the
exhaustive ones of its own file, take longer and are left out.
"""

import inspect
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "methods"
LONG = "mesh"  # in the name of a test


def use(config):
    """Tests of all tiers are chosen, unless -m says which."""
    from fedjax_lab.errors import nearest
    from fedjax_lab.experiment.registry import METHODS

    name = config.option.method
    if name and name not in METHODS:
        raise pytest.UsageError(f"no method {name!r}; {nearest(name, METHODS)}")
    if name and config.option.markexpr in config.getini("addopts"):
        config.option.markexpr = ""


def is_left_out(path, name):
    """Whether a file has no tests of the method."""
    if path.suffix != ".py" or path.stem == f"test_{name}":
        return False
    if path.parent != FOLDER:
        return True
    text = path.read_text()
    return "registry.METHODS" not in text and f'"{name}"' not in text


def select(items, config):
    """Leaves the tests of the method."""
    chosen = [item for item in items if _is_test_of(item, config.option.method)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _is_test_of(item, name):
    if item.path.stem == f"test_{name}":
        return item.get_closest_marker("exhaustive") is None
    if LONG in item.name:
        return False
    named = _methods_among(item)
    return name in named if named else _mentions(item, name)


def _methods_among(item):
    """The parameters of a test that are names of methods."""
    from fedjax_lab.experiment.registry import METHODS

    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [value for value in values if isinstance(value, str) and value in METHODS]


def _mentions(item, name):
    in_name = re.search(rf"(^|_){name}(_|$)", item.originalname)
    return in_name or f'"{name}"' in inspect.getsource(item.function)
