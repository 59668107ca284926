"""The libraries of the extra `privacy`, imported when they are first needed."""

import functools
import importlib
from types import ModuleType

from fedjax_lab.errors import BadInput


@functools.cache
def import_library(module: str, package: str, what: str = "it") -> ModuleType:
    """Imports and returns a module. Raises BadInput if its package is not installed.

    module: the dotted name of the module.
    package: the package on PyPI that contains it.
    what: the subject of the message: what needs the package.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"{what} needs the package {package}: pip install 'fedjax_lab[privacy]'"
        ) from error
