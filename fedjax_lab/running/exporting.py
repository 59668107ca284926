"""Writes the models of a run as files that other programs read; the suffix decides the format."""

import os
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from fedjax_lab.data import writing
from fedjax_lab.errors import BadInput, check_path, missing, nearest, quoted, reason_of
from fedjax_lab.models import peft_files, pretrained
from fedjax_lab.types import Array, Task, Weights

PLATFORMS = ("cpu", "cuda", "tpu")  # for which a program is compiled when it is read
SUFFIXES = {
    ".safetensors": "the weights",
    ".stablehlo": "the program that predicts, with its weights",
    ".peft": "a folder of PEFT with low-rank adapters",
    "": "a folder of Orbax with the weights",
}


def check(given: str | Path) -> Path:
    """The path of a new file or folder. Raises BadInput unless its format can be written there."""
    if not isinstance(given, (str, Path)):
        raise BadInput(f"export: the path must be text or a Path, not {quoted(given)}")
    check_path("path", given)
    path = Path(given)
    if path.suffix not in SUFFIXES:
        known = ", ".join(f"{suffix or 'no suffix'} ({what})" for suffix, what in SUFFIXES.items())
        raise BadInput(
            f"{path.name}: no format {path.suffix}; {nearest(path.suffix, filter(None, SUFFIXES))};"
            f" known: {known}"
        )
    if path.exists():
        raise BadInput(f"{path} exists; name a new file or folder")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"cannot write {path.name}: there is no folder {path.parent}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise BadInput(f"cannot write {path.name}: the folder {path.parent} is not writable")
    return path


def write(
    path: Path,
    weights: Callable[[], Weights],
    predict: Callable[[Array], Array],
    task: Task,
    base: str,
) -> None:
    """Writes the weights, or the program x [B, *input_shape] float32 -> predictions for any B.

    base: the file or folder of frozen weights.
    """
    if path.suffix == ".peft":
        if task.adapters is None:
            raise BadInput(
                f"{path.name}: the run has no low-rank adapters (config.adapter.name=lora)"
            )
        peft_files.write(path, weights(), task.adapters, base)
        return
    if path.suffix != ".stablehlo":
        pretrained.write(path, weights())
        return
    (size,) = jax.export.symbolic_shape("B")
    x = jax.ShapeDtypeStruct((size, *task.input_shape), jnp.float32)
    try:
        made = jax.export.export(jax.jit(predict), platforms=PLATFORMS)(x)
    except (TypeError, ValueError, jax.errors.JAXTypeError) as error:
        raise BadInput(
            f"{path.name}: the model cannot be exported for any number of examples"
            f" ({reason_of(error)}); in its code replace len(x) by x.shape[0]"
        ) from error
    try:
        content = bytes(made.serialize())
    except ImportError as error:
        raise missing(error, "export") from error
    writing.replace(path, content)
