"""Models of torchvision and timm with fixed random weights, and their logits.

Run as a script, with both libraries installed, this file writes golden/pretrained.npz: the names
and shapes of all tensors in the libraries, and logits. The tests compare with that file, so that
they need neither library.
"""

import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).with_name("golden") / "pretrained.npz"
MODELS = {  # (library, the library's name for the model)
    "resnet18": (("torchvision", "resnet18"), ("timm", "resnet18")),
    "mobilenet_v2": (("torchvision", "mobilenet_v2"), ("timm", "mobilenetv2_100")),
}
CLASSES = 7


def images():
    """Two images [2, 32, 32, 3], of which the logits are computed."""
    return np.random.default_rng(1).normal(size=(2, 32, 32, 3)).astype(np.float32)


def filled(shapes):
    """Random tensors by name, all different, that keep activations near 1."""
    rng, tensors = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape, np.float32)
        if name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
            tensors[name] = 1 + 0.4 * np.tanh(noise)
        elif name.endswith("weight"):
            tensors[name] = noise * np.float32(np.sqrt(2 / np.prod(shape[1:])))
        else:
            tensors[name] = np.float32(0.1) * noise
    return tensors


def shapes_and_logits(library, name):
    """Shapes of the model's tensors by name, and its logits of `images` in evaluation mode."""
    import torch

    if library == "torchvision":
        import torchvision

        model = torchvision.models.get_model(name, num_classes=CLASSES)
    else:
        import timm

        model = timm.create_model(name, num_classes=CLASSES)
    state = model.state_dict()
    shapes = {k: tuple(v.shape) for k, v in state.items() if not k.endswith("num_batches_tracked")}
    model.load_state_dict({k: torch.from_numpy(v) for k, v in filled(shapes).items()}, strict=False)
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(images().transpose(0, 3, 1, 2)))
    return shapes, logits.numpy()


def golden(library, name):
    """The same from the golden file."""
    with np.load(GOLDEN) as file:
        shapes = json.loads(file[f"{library}.{name}.shapes"].tobytes())
        return {k: tuple(v) for k, v in shapes.items()}, file[f"{library}.{name}.logits"]


def write():
    arrays = {}
    for library, name in sum(MODELS.values(), ()):
        shapes, logits = shapes_and_logits(library, name)
        arrays[f"{library}.{name}.shapes"] = np.frombuffer(json.dumps(shapes).encode(), np.uint8)
        arrays[f"{library}.{name}.logits"] = logits
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    write()
