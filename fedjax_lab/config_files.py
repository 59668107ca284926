"""Reads config files: Python files with a function `get_config`."""

from fedjax_lab import references
from fedjax_lab.config import as_dict
from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.registry import METHODS, is_method, look_up, names


def load_config(path: str) -> dict:
    """The config of a file, FILE.py or FILE.py:METHOD.

    METHOD: the name of a method or of a function of this file, MODULE:FUNCTION, or
    PATH/FILE.py:FUNCTION.
    """
    path, _, method = path.partition(":")
    references.check_file(path, "config file")
    module = references.execute(path)
    reference = _reference(path, module, method) if method else ""
    with references.told(path):
        config = as_dict(module.get_config(method) if method else module.get_config())
    return _with_method(config, method, reference)


def _reference(path, module, method):
    """The method under which it is looked up. BadInput where there is none."""
    of_file = [name for name, value in vars(module).items() if is_method(value)]
    if method in of_file and method not in METHODS:
        method = f"{path}:{method}"
    try:
        look_up("method", method)
    except BadInput as error:
        if references.is_reference(method):
            raise
        known = [*names("method"), *of_file]
        raise BadInput(f"no method {quoted(method)}; {nearest(method, known)}") from error
    return method


def _with_method(config, method, reference):
    """The config with the reference of a method that it has under a name of its own file."""
    section = config.get("method") if isinstance(config, dict) else None
    if method == reference or not isinstance(section, dict) or section.get("name") != method:
        return config
    return {**config, "method": {**section, "name": reference}}
