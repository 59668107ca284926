"""Finds and reads config files: Python files with a function `get_config`."""

import os
from pathlib import Path

from fedjax_lab import configs
from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.experiment import references
from fedjax_lab.experiment.config import as_dict
from fedjax_lab.experiment.registry import METHODS, is_method, look_up, names

PLAIN = ("quickstart", "mnist", "fashion_mnist", "cifar10", "image_folder", "table")  # named first


def packaged() -> dict[str, Path]:
    """The paths of the configs that come with the package, by name."""
    files = (path for folder in configs.__path__ for path in sorted(Path(folder).glob("*.py")))
    return {path.stem: path for path in files if path.stem != "__init__"}


def load_config(text: str) -> dict:
    """Loads the config that a command line names: the result of `get_config` in its file.

    Args:
      text: the path of a file, such as `configs/quickstart.py`, or, if there is no such file, the
        name of a config that comes with the package, such as `quickstart`. Either may be followed
        by `:METHOD`: the name of a method, the name of a function in that file, MODULE:FUNCTION, or
        PATH/FILE.py:FUNCTION.

    Raises:
      BadInput: there is no such file or method, or the file cannot be executed.
    """
    name, method = split(text)
    path = _find(name)
    module = references.execute(path)
    reference = _reference(path, module, method) if method else ""
    with references.errors_with_lines(path):
        config = as_dict(module.get_config(method) if method else module.get_config())
    return _with_method(config, method, reference)


def split(text: str) -> tuple[str, str]:
    """Splits FILE:METHOD or NAME:METHOD at its colon; the path of an existing file may have colons.

    The method is "" if there is none.
    """
    words = text.split(":")
    ends = [n for n in range(1, len(words) + 1) if os.path.isfile(":".join(words[:n]))]
    end = ends[0] if ends else 1
    return ":".join(words[:end]), ":".join(words[end:])


def _find(name):
    """The path itself if there is such a file, otherwise that of the packaged config."""
    if os.path.isfile(name):
        return name
    by_name = packaged()
    if name in by_name:
        return str(by_name[name])
    references.check_file(name, "config file", by_name, PLAIN)
    return name


def _reference(path, module, method):
    """The name or reference of the method. Raises BadInput if there is no such method."""
    of_file = [name for name, value in vars(module).items() if is_method(value)]
    if method in of_file and method not in METHODS:
        method = f"{path}:{method}"
    try:
        look_up("method", method)
    except BadInput as error:
        if references.is_reference(method):
            raise
        valid = [*names("method"), *of_file]
        raise BadInput(f"no method {quoted(method)}; {nearest(method, valid)}") from error
    return method


def _with_method(config, method, reference):
    """The config with the reference of its method if it names a function of its own file."""
    section = config.get("method") if isinstance(config, dict) else None
    if method == reference or not isinstance(section, dict) or section.get("name") != method:
        return config
    return {**config, "method": {**section, "name": reference}}
