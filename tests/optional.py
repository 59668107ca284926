"""Imports the packages of the extras; a test whose package is missing is skipped."""

import configparser
import functools
import importlib
import re
from pathlib import Path

import pytest

# The extra of setup.cfg that installs each package, by the name with which it is imported.
EXTRAS = {
    "array_record": "stream",
    "datasets": "hub",
    "dp_accounting": "privacy",
    "flatbuffers": "export",
    "gguf": "llm",
    "h5py": "hdf5",
    "jax_privacy": "privacy",
    "jinja2": "llm",
    "latex2mathml": "docs",
    "mlflow": "mlflow",
    "optuna": "tune",
    "pandas": "pandas",
    "pyarrow": "text",
    "qwix": "llm",
    "safetensors": "llm",
    "shtab": "completion",
    "tensorboardX": "tensorboard",
    "tensorflow_datasets": "tfds",
    "tokenizers": "text",
    "transformers": "clip",
    "wandb": "wandb",
}
# Peers in comparisons, which no extra installs.
WITHOUT_EXTRA = ("peft", "timm", "torch", "torchvision", "tunix")

SETUP = Path(__file__).parents[1] / "setup.cfg"


@functools.cache
def not_of_test():
    """The packages that the extra `test` does not install."""
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    tested = re.search(r"fedjax_lab\[(.*)\]", setup["options.extras_require"]["test"])[1].split(",")
    return [package for package, extra in EXTRAS.items() if extra not in tested]


@functools.cache
def needs_more(file):
    """Whether a test file imports a package that the extra `test` does not install."""
    others = "|".join(not_of_test())
    return re.search(rf'optional\.module\("({others})', file.read_text()) is not None


def module(name):
    """Imports a module of an optional package, or skips the test, or the file that imports it.

    name: such as "h5py" or "safetensors.numpy".
    """
    package = name.partition(".")[0]
    install = package if package in WITHOUT_EXTRA else f"'fedjax_lab[{EXTRAS[package]}]'"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        reason = f"{error.name} is missing: pip install {install}"
        pytest.skip(reason, allow_module_level=True)
