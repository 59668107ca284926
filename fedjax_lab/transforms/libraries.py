"""The libraries of the extra `privacy`, imported where they are first needed."""

import functools
import importlib
from types import ModuleType

from fedjax_lab.errors import BadInput


@functools.cache
def of_privacy(module: str, package: str, what: str = "it") -> ModuleType:
    """The module by its dotted name. BadInput where the package that has it is not installed.

    what: needs it, as the message says.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"{what} needs the package {package}: pip install 'fedjax_lab[privacy]'"
        ) from error
