"""Published weights, from torchvision or timm, as the first weights of a model.

A `.safetensors` file holds tensors by name. A model that can start from one has a field
`pretrained`, the path of the file ("" for none), and `published_names()`: for each library that
publishes its weights, the names that its layers have there, by their path here. The weights expect
images normalized as in that library's training; the mean and deviation are not in the file.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from fedjax_lab import tree
from fedjax_lab.errors import BadInput, cut
from fedjax_lab.types import Array, Weights

TENSORS = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def starting_from(
    path: str, published_names: tuple[dict[str, str], ...], init: Callable[[Array], Weights]
) -> Callable[[Array], Weights]:
    """`init` with the weights of the file at `path` in place of its own; the file is read now.

    A head of another number of classes is left at its own first weights, by the key. Raises
    BadInput as `read` and `convert` do.
    """
    shapes = jax.eval_shape(init, jax.random.key(0))
    try:
        published = convert(read(path), published_names, shapes)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return lambda key: tree.join(published, init(key))


def read(path: str) -> dict[str, np.ndarray]:
    """The tensors of a `.safetensors` file by name.

    Raises BadInput where there is no such file, or none that can be read.
    """
    try:
        import safetensors  # noqa: F401
        from safetensors.numpy import load_file
    except ImportError:
        remedy = "pip install 'fedjax_lab[clip]'"
        raise BadInput(f"pretrained weights need safetensors: {remedy}") from None
    file = Path(path).expanduser()
    if not file.is_file():
        raise BadInput("no such file; name one with --config.model.pretrained")
    try:
        return load_file(file)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file, or numbers of a type that NumPy lacks
        raise BadInput(f"not a .safetensors file ({cut(str(error), 200)})") from None


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
        given, needed = ("x".join(map(str, a)) for a in (tensor.shape, there))
        raise BadInput(f"its tensor {name!r} is {given}, the model needs {needed}")
    return tensor.transpose(order).astype(np.float32)
