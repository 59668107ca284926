"""Initial weights of a model from a file: your own, or published ones.

A `.safetensors` file holds tensors by name, and a folder written by Orbax holds nested dicts of
arrays. In both, the names may be those of the model's own layers, such as 'Dense_0/kernel' or
'params.Dense_0.kernel'. A folder may hold more than `params` and `batch_stats`, as that of a
training state does. Published weights are a file of torchvision or timm, or a language model: a
folder in the hub's format or a GGUF file.

A model that accepts published weights has a field `pretrained`, the path of the file ("" for none),
and a method `published_names()`, which returns for each library that publishes its weights the
library's name of each layer, by the path of the layer here; `{}` in a name is the number of a
block, whose weights the model stacks. Weights for images expect these normalized as in that
library's training; the mean and deviation are not in the file.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.data import safe, writing
from fedjax_lab.errors import BadInput, cut
from fedjax_lab.models import gguf_files, hub_files, language_models
from fedjax_lab.models.head import HEAD
from fedjax_lab.types import Array, Weights

TENSORS = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
COLLECTIONS = "params", "batch_stats", "stats"
UNUSED = ".num_batches_tracked", ".rotary_emb.inv_freq"  # tensors that are no weights
SHOWN = 3  # number of names from each side in a message about names that differ


def starting_from(
    path: str,
    published_names: tuple[dict[str, str], ...],
    init: Callable[[Array], Weights],
    head: str = HEAD,
) -> Callable[[Array], Weights]:
    """`init` with the weights of the file at `path` in place of its own; reads the file at once.

    head: the path of the last layer in the module, which may be its name in the file.

    If the file's head has another number of classes, the head keeps its own initial weights.

    Raises BadInput as `read`, `convert` and `match` do.
    """
    shapes = jax.eval_shape(init, jax.random.key(0))
    try:
        tensors = read(path)
        if _has_names_of(tensors, published_names):
            first = convert(tensors, published_names, shapes)
        else:
            first = match(tensors, shapes, head)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    if len(jax.tree.leaves(first)) == len(jax.tree.leaves(shapes)):
        return lambda key: jax.tree.map(jnp.asarray, first)
    return lambda key: jax.tree.map(jnp.asarray, tree.join(first, init(key)))


def read(path: str) -> Mapping[str, np.ndarray]:
    """The tensors by name of a safetensors or GGUF file, or of a folder of Orbax or of the hub.

    Those of a language model are read one at a time, when they are used. Raises BadInput if the
    file does not exist or cannot be read.
    """
    file = Path(path).expanduser()
    if file.suffix == gguf_files.SUFFIX or hub_files.is_model(file):
        return language_models.tensors(file)
    if not file.is_dir():
        return _read_safetensors(file)
    if tensors := safe.glob(file, "*.safetensors"):
        raise BadInput(
            f"it has no {hub_files.CONFIG}, which describes the model of a folder in the hub's"
            f" format; add it, or name {tensors[0].name} if that has the weights of this model"
        )
    return _read_orbax(file)


def _read_safetensors(file):
    load_file = safetensors().load_file
    if not file.is_file():
        raise BadInput("the file does not exist; name another with --config.model.pretrained")
    try:
        return load_file(file)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file, or numbers of a type that NumPy lacks
        raise BadInput(f"not a .safetensors file ({cut(str(error), 200)})") from None


def safetensors() -> Any:
    """The module `safetensors.numpy`. Raises BadInput if it is not installed."""
    try:
        import safetensors.numpy
    except ImportError:
        raise BadInput(
            "pretrained weights need safetensors: pip install 'fedjax_lab[clip]'"
        ) from None
    return safetensors.numpy


def _read_orbax(folder):
    import orbax.checkpoint as ocp

    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            described = checkpointer.metadata(folder.absolute()).item_metadata.tree
            to_host = ocp.RestoreArgs(restore_type=np.ndarray)  # on whichever devices it was saved
            how = jax.tree.map(lambda _: to_host, described)
            whole = checkpointer.restore(folder.absolute(), restore_args=how)
    except MemoryError:
        raise
    except Exception as error:  # orbax and tensorstore may raise any exception
        reason = cut(" ".join(str(error).split()), 200)
        raise BadInput(f"not a folder written by Orbax ({reason})") from None
    if isinstance(whole, Mapping) and "params" in whole:  # of a training state
        whole = {key: whole[key] for key in COLLECTIONS if whole.get(key)}
    return {name: np.asarray(leaf) for name, leaf in tree.by_name(whole).items()}


def write(path: Path, weights: Weights) -> None:
    """Writes weights to a .safetensors file, or else to a folder of Orbax; `read` reads both."""
    variables = {"params": weights.params, "batch_stats": weights.stats}
    tensors = {name: np.asarray(leaf) for name, leaf in tree.by_name(variables).items()}
    if path.suffix == ".safetensors":
        contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        writing.replace(path, safetensors().save(contiguous))
        return
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), _nested(tensors))


def _nested(tensors):
    """Nested dicts of arrays, from arrays by path."""
    nested: dict[str, Any] = {}
    for name, array in tensors.items():
        *folders, last = name.split("/")
        inside = nested
        for folder in folders:
            inside = inside.setdefault(folder, {})
        inside[last] = array
    return nested


# By the names of the model's own layers.


def match(tensors: Mapping[str, np.ndarray], shapes: Weights, head: str = HEAD) -> Weights:
    """Tensors with the model's own names as weights of these shapes; None for a head that differs.

    Raises BadInput if names differ, or if shapes differ before the head.
    """
    names = [_plain(name) for name in tree.names(shapes)]
    given = {_as_head(_plain(name), head, names): array for name, array in tensors.items()}
    _check_names(given, names)
    leaves, structure = jax.tree.flatten(shapes)
    other_classes = False
    if f"{HEAD}/kernel" in names:  # not if the head is frozen
        kernel, needed = (
            a[f"{HEAD}/kernel"].shape for a in (given, dict(zip(names, leaves, strict=True)))
        )
        other_classes = kernel[:-1] == needed[:-1] and kernel != needed
    fitted = [
        None
        if other_classes and name.startswith(f"{HEAD}/")
        else _check_shape(name, given[name], leaf)
        for name, leaf in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, fitted)


def _check_shape(name, tensor, leaf):
    if tensor.shape != leaf.shape:
        given, needed = (_shown(a.shape) for a in (tensor, leaf))
        raise BadInput(f"its tensor {name!r} is {given}, but the model needs {needed}")
    return numbers(f"its tensor {name!r}", tensor).astype(leaf.dtype)


def numbers(what: str, tensor: np.ndarray) -> np.ndarray:
    """The tensor. Raises BadInput unless it has real and finite numbers, as weights have."""
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        raise BadInput(f"{what} has numbers of type {tensor.dtype}, but weights are real numbers")
    if not np.isfinite(tensor).all():
        raise BadInput(f"{what} has NaN or infinite values; the model cannot start from them")
    return tensor


def _shown(shape):
    return "x".join(map(str, shape)) or "a number"


def _plain(name):
    """The path of a weight in the model, without its collection."""
    first, *rest = name.replace(".", "/").removesuffix("/value").split("/")
    return "/".join(rest if first in COLLECTIONS and rest else (first, *rest))


def _as_head(name, head, names):
    """The name of a weight in the task, where the module's last layer is called `head`."""
    kind = name.removeprefix(f"{head}/")
    return f"{HEAD}/{kind}" if name not in names and kind != name else name


def _check_names(given, names):
    """Raises BadInput with the first names that are on one side only."""
    lacking, more = sorted(set(names) - given.keys()), sorted(given.keys() - set(names))
    sides = [
        f"{what} {len(some)} of {total} ({', '.join(some[:SHOWN])}{', ...' * (len(some) > SHOWN)})"
        for some, total, what in (
            (lacking, len(names), "it lacks"),
            (more, len(given), "the model does not have"),
        )
        if some
    ]
    if sides:
        raise BadInput(f"its weights do not match the model: {'; '.join(sides)}")


# By the names that a library has published.


def _has_names_of(tensors, published_names):
    """Whether any tensor has a published name of one of the model's layers."""
    layers = {name.rpartition(".")[0] for name in tensors}
    return any(layers & set(names.values()) for names in published_names)


def convert(
    tensors: Mapping[str, np.ndarray], published_names: tuple[dict[str, str], ...], shapes: Weights
) -> Weights:
    """Tensors with published names as weights of these shapes and types; None for another head.

    Of several sets of names, the one with more names among the tensors is used. Raises BadInput if
    a tensor is missing, superfluous or (except for the head's number of classes) of another shape.
    The head of a model with embeddings of tokens may have more rows, those of further tokens.
    """
    given = {name for name in tensors if not name.endswith(UNUSED)}
    needed = max(
        (_tensor_names(names, shapes, len(given) + 1) for names in published_names),
        key=lambda needed: len(given & _all(needed)),
    )
    for name in sorted(_all(needed) - given):
        raise BadInput(f"it has no tensor {name!r}, which the model needs")
    for name in sorted(given - _all(needed)):
        raise BadInput(f"its tensor {name!r} is not in the model")

    classes, width = shapes.params["head"]["kernel"].shape[::-1]
    head = tensors[needed["params/head/kernel"]].shape
    other_classes = head[1:] == (width,) and head[0] != classes
    of_tokens = any(path.endswith("/embedding") for path in needed) and head[0] > classes

    def weights(path, names, leaf):
        of_head = other_classes and path.startswith("params/head/")
        if of_head and not of_tokens:
            return None
        return _stored(names, tensors, leaf, path, classes if of_head else None)

    leaves, structure = jax.tree.flatten(shapes)
    fitted = [
        weights(path, names, leaf)
        for (path, names), leaf in zip(needed.items(), leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, fitted)


def _tensor_names(layers, shapes, most):
    """The name in the file of each leaf, by its path, in the order of the leaves.

    Of a leaf that stacks blocks it is a tuple, of at most `most` names.
    """
    names: dict[str, str | tuple[str, ...]] = {}
    for path, leaf in tree.by_name(shapes).items():
        layer, kind = path.split("/", 1)[1].rsplit("/", 1)
        name = f"{layers[layer]}.{TENSORS[kind]}"
        blocks = range(min(leaf.shape[0], most)) if "{}" in name else ()
        names[path] = tuple(map(name.format, blocks)) or name
    return names


def _all(needed):
    """All names in the file."""
    return {
        name
        for names in needed.values()
        for name in ((names,) if isinstance(names, str) else names)
    }


def _stored(names, tensors, leaf, path, rows):
    """The weights at a path: one tensor, its first `rows`, or those of all blocks, stacked."""
    kind = path.rpartition("/")[2]
    if isinstance(names, str):
        return _fitted(names, tensors[names][:rows], leaf.shape, leaf.dtype, kind)
    whole = None
    for i, name in enumerate(names):
        part = _fitted(name, tensors[name], leaf.shape[1:], leaf.dtype, kind)
        whole = np.empty(leaf.shape, leaf.dtype) if whole is None else whole
        whole[i] = part
    return whole


def _fitted(name, tensor, shape, dtype, kind):
    """A tensor in Flax's layout: [K, C, kh, kw] -> [kh, kw, C, K], [K, D] -> [D, K]."""
    order = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[len(shape)]
    if kind == "embedding":
        order = (0, 1)
    expected = tuple(shape[order.index(axis)] for axis in range(len(shape)))
    if tensor.shape != expected:
        given, needed = _shown(tensor.shape), _shown(expected)
        raise BadInput(f"its tensor {name!r} is {given}, but the model needs {needed}")
    return numbers(f"its tensor {name!r}", tensor).transpose(order).astype(dtype)
