"""The option `--method NAME`: the tests of one method, which are found by its name.

A file of tests/methods is read if it is test_NAME.py, has the name in quotes or goes through all
methods. A test of it is one of the method if it is in test_NAME.py, if one of its parameters is the
name, or if its own name or its code has the name. Those that check a method on meshes, and
exhaustive ones that are not shared by methods, take longer and are left out. In other folders the
tests count whose names begin with that of the method.
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
    if path.parent == FOLDER and path.stem == f"test_{name}":
        return False
    text = path.read_text()
    if path.parent != FOLDER:
        return f"def test_{name}_" not in text
    return "registry.METHODS" not in text and f'"{name}"' not in text


def select(items, config):
    """Leaves the tests of the method."""
    chosen = [item for item in items if _is_test_of(item, config.option.method)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _is_test_of(item, name):
    """Whether a collected test is one of the method."""
    if item.path.parent != FOLDER:
        return item.name.startswith(f"test_{name}_") and not item.get_closest_marker("exhaustive")
    named = _methods_among(item)
    if named:
        return name in named and LONG not in item.name
    if item.get_closest_marker("exhaustive"):
        return False
    return item.path.stem == f"test_{name}" or _mentions(item, name)


def _methods_among(item):
    """The parameters of a test that are names of methods."""
    from fedjax_lab.experiment.registry import METHODS

    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [value for value in values if isinstance(value, str) and value in METHODS]


def _mentions(item, name):
    in_name = re.search(rf"(^|_){name}(_|$)", item.originalname)
    return in_name or f'"{name}"' in inspect.getsource(item.function)
