"""Reads config files: Python files with a function `get_config`."""

from fedjax_lab import references
from fedjax_lab.config import as_dict
from fedjax_lab.registry import look_up, names


def load_config(path: str) -> dict:
    """The config of a file, FILE.py or FILE.py:METHOD.

    METHOD: the name of a method or of a function of this file, MODULE:FUNCTION, or
    PATH/FILE.py:FUNCTION.
    """
    path, _, method = path.partition(":")
    references.check_file(path, "config file")
    module = references.execute(path)
    reference = method
    if method.isidentifier() and hasattr(module, method) and method not in names("method"):
        reference = f"{path}:{method}"
    if method:
        look_up("method", reference)  # BadInput where there is none
    with references.told(path):
        config = as_dict(module.get_config(method) if method else module.get_config())
    return _with_method(config, method, reference)


def _with_method(config, method, reference):
    """The config with the reference of a method that it has under a name of its own file."""
    section = config.get("method") if isinstance(config, dict) else None
    if method == reference or not isinstance(section, dict) or section.get("name") != method:
        return config
    return {**config, "method": {**section, "name": reference}}
