"""Finds and reads config files: Python files with a function `get_config`."""

import importlib.machinery
import importlib.util
from pathlib import Path

from fedjax_lab import configs
from fedjax_lab.config import as_dict
from fedjax_lab.errors import MACHINE, BadInput, cut, nearest, quoted
from fedjax_lab.registry import look_up


def packaged() -> dict[str, Path]:
    """The files of the configs that come with the package, by name."""
    files = (path for folder in configs.__path__ for path in sorted(Path(folder).glob("*.py")))
    return {path.stem: path for path in files if path.stem != "__init__"}


def load_config(text: str) -> dict:
    """The config that a command line names, as the function `get_config` of its file returns it.

    Args:
      text: the path of a file, `configs/quickstart.py`, or the name of a config that comes with the
        package, `quickstart`, where no file has that path. Either may be followed by `:METHOD`.

    Raises:
      BadInput: there is no such file or method, or the file cannot be executed.
    """
    name, _, method = text.partition(":")
    path = _find(name)
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


def _find(name):
    """The path of the file with that path or, else, of the packaged config with that name."""
    try:
        if Path(name).is_file():
            return name
        nearby = [str(p) for p in Path(name).parent.glob("*.py") if p.is_file()]
    except (OSError, ValueError) as error:  # too long, not allowed to be read, with a NUL byte
        reason = getattr(error, "strerror", error)
        raise BadInput(f"no config file {quoted(name)}: {reason}") from error
    by_name = packaged()
    if name in by_name:
        return str(by_name[name])
    raise BadInput(f"no config file {quoted(name)}; {nearest(name, [*nearby, *by_name])}")
