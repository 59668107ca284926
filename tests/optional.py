"""Imports the packages of the extras; a test whose package is missing is skipped."""

import importlib

import pytest

# The extra of setup.cfg that installs each package, by the name with which it is imported.
EXTRAS = {
    "array_record": "stream",
    "datasets": "hub",
    "dp_accounting": "privacy",
    "h5py": "hdf5",
    "jax_privacy": "privacy",
    "latex2mathml": "docs",
    "mlflow": "mlflow",
    "pyarrow": "text",
    "safetensors": "clip",
    "tensorboardX": "tensorboard",
    "tensorflow_datasets": "tfds",
    "tokenizers": "text",
    "transformers": "clip",
    "wandb": "wandb",
}
WITHOUT_EXTRA = ("torch", "torchvision")  # peers in comparisons, which no extra installs


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
