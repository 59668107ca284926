"""Reads config files: Python files with a function `get_config`."""

import importlib.machinery
import importlib.util
from pathlib import Path

from fedjax_lab.config import as_dict
from fedjax_lab.errors import MACHINE, BadInput, cut, nearest, quoted
from fedjax_lab.registry import look_up


def load_config(path: str) -> dict:
    """The config of a file, `configs/quickstart.py` or `configs/quickstart.py:METHOD`."""
    path, _, method = path.partition(":")
    _check_file(path)
    if method:
        look_up("method", method)  # BadInput where there is none
    try:
        loader = importlib.machinery.SourceFileLoader("config_file", path)
        spec = importlib.util.spec_from_loader("config_file", loader)
        assert spec is not None  # the loader makes one of any path
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return as_dict(module.get_config(method) if method else module.get_config())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit among them: it would end the command without a word
        if isinstance(error, OSError) and error.errno in MACHINE:
            raise
        reason = cut(f"{type(error).__name__}: {error}", 300)
        raise BadInput(f"{path} cannot be loaded: {reason}") from error


def _check_file(path):
    """BadInput unless the path is that of a file; it names the nearest config file."""
    try:
        if Path(path).is_file():
            return
        nearby = [str(p) for p in Path(path).parent.glob("*.py") if p.is_file()]
    except (OSError, ValueError) as error:  # too long, not allowed to be read, with a NUL byte
        reason = getattr(error, "strerror", error)
        raise BadInput(f"no config file {quoted(path)}: {reason}") from error
    raise BadInput(f"no config file {quoted(path)}; {nearest(path, nearby)}")
