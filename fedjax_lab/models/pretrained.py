"""First weights of a model from a file: one's own, or those that torchvision or timm publish.

A `.safetensors` file holds tensors by name, and a folder that Orbax has written nested dicts of
arrays. In both, the names may be those of the model's own layers, as in 'Dense_0/kernel' or
'params.Dense_0.kernel'. A folder may hold more beside `params` and `batch_stats`, as that of a
training state does.

A model that can start from published weights has a field `pretrained`, the path of the file ("" for
none), and `published_names()`: for each library that publishes its weights, the names that its
layers have there, by their path here. The weights expect images normalized as in that library's
training; the mean and deviation are not in the file.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import tree
from fedjax_lab.errors import BadInput, cut
from fedjax_lab.models.head import HEAD
from fedjax_lab.types import Array, Weights

TENSORS = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
COLLECTIONS = "params", "batch_stats", "stats"
SHOWN = 3  # names of each side where those of a file and a model differ


def starting_from(
    path: str,
    published_names: tuple[dict[str, str], ...],
    init: Callable[[Array], Weights],
    head: str = HEAD,
) -> Callable[[Array], Weights]:
    """`init` with the weights of the file at `path` in place of its own; the file is read now.

    head: the path of the last layer in the module, which may be its name in the file.

    A head of another number of classes is left at its own first weights, by the key. Raises
    BadInput as `read`, `convert` and `match` do.
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
    return lambda key: jax.tree.map(jnp.asarray, tree.join(first, init(key)))


def read(path: str) -> dict[str, np.ndarray]:
    """The tensors of a `.safetensors` file, or of a folder of Orbax, by name.

    Raises BadInput where there is no such file, or none that can be read.
    """
    file = Path(path).expanduser()
    return _read_orbax(file) if file.is_dir() else _read_safetensors(file)


def _read_safetensors(file):
    load_file = safetensors().load_file
    if not file.is_file():
        raise BadInput("no such file; name one with --config.model.pretrained")
    try:
        return load_file(file)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file, or numbers of a type that NumPy lacks
        raise BadInput(f"not a .safetensors file ({cut(str(error), 200)})") from None


def safetensors() -> Any:
    """The module `safetensors.numpy`. BadInput names the extra where it is not installed."""
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
            to_host = ocp.RestoreArgs(restore_type=np.ndarray)  # whatever devices have written it
            how = jax.tree.map(lambda _: to_host, described)
            whole = checkpointer.restore(folder.absolute(), restore_args=how)
    except MemoryError:
        raise
    except Exception as error:  # orbax and tensorstore raise any
        reason = cut(" ".join(str(error).split()), 200)
        raise BadInput(f"not a folder that Orbax has written ({reason})") from None
    if isinstance(whole, Mapping) and "params" in whole:  # of a training state
        whole = {key: whole[key] for key in COLLECTIONS if whole.get(key)}
    return {
        name: np.asarray(leaf)
        for name, leaf in zip(tree.names(whole), jax.tree.leaves(whole), strict=True)
    }


def write(path: Path, weights: Weights) -> None:
    """Writes weights to a .safetensors file, or else to a folder of Orbax, that `read` reads."""
    variables = {"params": weights.params, "batch_stats": weights.stats}
    arrays = map(np.asarray, jax.tree.leaves(variables))
    tensors = dict(zip(tree.names(variables), arrays, strict=True))
    if path.suffix == ".safetensors":
        contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        path.write_bytes(safetensors().save(contiguous))
        return
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), _nested(tensors))


def _nested(tensors):
    """Arrays by path as nested dicts."""
    nested: dict[str, Any] = {}
    for name, array in tensors.items():
        *folders, last = name.split("/")
        inside = nested
        for folder in folders:
            inside = inside.setdefault(folder, {})
        inside[last] = array
    return nested


# By the names of the model's own layers.


def match(tensors: dict[str, np.ndarray], shapes: Weights, head: str = HEAD) -> Weights:
    """Tensors by the model's own names as weights of these shapes; None for a head that differs.

    Raises BadInput where names, or shapes before the head, differ.
    """
    names = [_plain(name) for name in tree.names(shapes)]
    given = {_as_head(_plain(name), head, names): array for name, array in tensors.items()}
    _check_names(given, names)
    leaves, structure = jax.tree.flatten(shapes)
    kernel, needed = (
        a[f"{HEAD}/kernel"].shape for a in (given, dict(zip(names, leaves, strict=True)))
    )
    other_classes = kernel[:-1] == needed[:-1] and kernel != needed
    fitted = [
        None
        if other_classes and name.startswith(f"{HEAD}/")
        else _of_shape(name, given[name], leaf)
        for name, leaf in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, fitted)


def _of_shape(name, tensor, leaf):
    if tensor.shape != leaf.shape:
        given, needed = (_shown(a.shape) for a in (tensor, leaf))
        raise BadInput(f"its tensor {name!r} is {given}, the model needs {needed}")
    return tensor.astype(leaf.dtype)


def _shown(shape):
    return "x".join(map(str, shape)) or "a number"


def _plain(name):
    """The path of a weight in the model, without its collection."""
    first, *rest = name.replace(".", "/").removesuffix("/value").split("/")
    return "/".join(rest if first in COLLECTIONS and rest else (first, *rest))


def _as_head(name, head, names):
    """The name as the task has it, of a weight of the layer that the module calls otherwise."""
    kind = name.removeprefix(f"{head}/")
    return f"{HEAD}/{kind}" if name not in names and kind != name else name


def _check_names(given, names):
    """BadInput lists the first names that are on one side only."""
    lacking, more = sorted(set(names) - given.keys()), sorted(given.keys() - set(names))
    sides = [
        f"{what} {len(some)} of {total} ({', '.join(some[:SHOWN])}{', ...' * (len(some) > SHOWN)})"
        for some, total, what in (
            (lacking, len(names), "it lacks"),
            (more, len(given), "the model has no place for"),
        )
        if some
    ]
    if sides:
        raise BadInput(f"its weights are not the model's: {'; '.join(sides)}")


# By the names that a library has published.


def _has_names_of(tensors, published_names):
    """Whether any tensor has a published name of one of the model's layers."""
    layers = {name.rpartition(".")[0] for name in tensors}
    return any(layers & set(names.values()) for names in published_names)


def convert(
    tensors: dict[str, np.ndarray], published_names: tuple[dict[str, str], ...], shapes: Weights
) -> Weights:
    """Tensors by name as weights of these shapes, float32; None for a head that does not fit.

    Of several sets of names it takes the one that more of the tensors have. Raises BadInput for a
    tensor that is missing, superfluous or of another shape.
    """
    given = {k: v for k, v in tensors.items() if not k.endswith(".num_batches_tracked")}
    needed = max(
        (_tensor_names(names, shapes) for names in published_names),
        key=lambda needed: len(given.keys() & needed.values()),
    )
    for name in sorted(needed.values() - given.keys()):
        raise BadInput(f"it has no tensor {name!r}, which the model needs")
    for name in sorted(given.keys() - needed.values()):
        raise BadInput(f"the model has no place for its tensor {name!r}")

    classes, width = shapes.params["head"]["kernel"].shape[::-1]
    head = given[needed["params/head/kernel"]].shape
    other_classes = head[1:] == (width,) and head[0] != classes
    leaves, structure = jax.tree.flatten(shapes)
    fitted = [
        None
        if other_classes and path.startswith("params/head/")
        else _fitted(name, given[name], leaf.shape)
        for (path, name), leaf in zip(needed.items(), leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, fitted)


def _tensor_names(layers, shapes):
    """The name in the file of each leaf, by its path, in the order of the leaves."""
    names = {}
    for path in tree.names(shapes):
        layer, kind = path.split("/", 1)[1].rsplit("/", 1)
        names[path] = f"{layers[layer]}.{TENSORS[kind]}"
    return names


def _fitted(name, tensor, shape):
    """A tensor with its axes as here: [K, C, kh, kw] -> [kh, kw, C, K], [K, D] -> [D, K]."""
    order = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[len(shape)]
    there = tuple(shape[order.index(axis)] for axis in range(len(shape)))
    if tensor.shape != there:
        given, needed = _shown(tensor.shape), _shown(there)
        raise BadInput(f"its tensor {name!r} is {given}, the model needs {needed}")
    return tensor.transpose(order).astype(np.float32)
