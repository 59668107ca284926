"""Tests published weights: their logits, the place of every tensor, and bad files."""

import re
import sys
from functools import cache, partial

import flax.linen as nn
import jax
import numpy as np
import optional
import orbax.checkpoint as ocp
import pytest
import torch_models
from flax.traverse_util import flatten_dict
from inputs import complaint
from naive_layers import STAGES
from slow_cases import exhaustive_but
from toys import random_weights

from fedjax_lab import tree
from fedjax_lab.models import mobilenet, nets, pretrained, resnet
from fedjax_lab.models.task import make_task

KEY = jax.random.key(0)
KEY_DATA = np.arange(2)


FULL = {
    "resnet18": resnet.resnet18(torch_models.CLASSES, stem="imagenet"),
    "mobilenet_v2": mobilenet.mobilenet_v2(torch_models.CLASSES),
}


@pytest.mark.parametrize("name", exhaustive_but(["mobilenet_v2"], FULL))
def test_published_weights_give_the_published_logits(name):
    net = FULL[name]
    task = make_task(net, (32, 32, 3), net.num_classes)
    shapes, apply = jax.eval_shape(task.init, KEY), jax.jit(task.apply)
    for library, library_name in torch_models.MODELS[name]:
        published_shapes, logits = torch_models.golden(library, library_name)
        weights = pretrained.convert(
            torch_models.filled(published_shapes), net.published_names(), shapes
        )
        assert jax.tree.map(np.shape, weights) == jax.tree.map(lambda a: a.shape, shapes)
        ours = apply(weights, torch_models.images()).logits
        np.testing.assert_allclose(ours, logits, atol=1e-5 * np.abs(logits).max())


@pytest.mark.parametrize(("library", "name"), sum(torch_models.MODELS.values(), ()))
def test_the_golden_file_agrees_with_the_libraries(library, name):
    optional.module(library)
    optional.module("torchvision")
    (shapes, logits), (now_shapes, now) = (
        source(library, name) for source in (torch_models.golden, torch_models.shapes_and_logits)
    )
    assert shapes == now_shapes
    np.testing.assert_allclose(logits, now, atol=1e-5 * np.abs(logits).max())


TINY = {
    "resnet": resnet.ResNet(3, resnet.imagenet_stem, resnet.BasicBlock, (1, 1), width=2),
    "bottleneck": resnet.ResNet(3, resnet.imagenet_stem, resnet.Bottleneck, (1, 2), width=2),
    "mobilenet": mobilenet.MobileNetV2(3, 4, STAGES, 5),
}


@cache
def tiny(name, layout=0):
    """Returns a network, its task, random weights, and these as tensors of a library."""
    net = TINY[name]
    task = make_task(net, (8, 8, 3), net.num_classes)
    weights = random_weights(jax.eval_shape(task.init, KEY))
    names, tensors = net.published_names()[layout], {}
    for path, leaf in zip(tree.names(weights), jax.tree.leaves(weights), strict=True):
        layer, kind = path.split("/", 1)[1].rsplit("/", 1)
        kind = {"mean": "running_mean", "var": "running_var", "bias": "bias"}.get(kind, "weight")
        axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[leaf.ndim]
        tensors[f"{names[layer]}.{kind}"] = np.ascontiguousarray(leaf.transpose(axes))
    return net, task, weights, tensors


def converted(name, tensors):
    net, task, *_ = tiny(name)
    return pretrained.convert(tensors, net.published_names(), jax.eval_shape(task.init, KEY))


@pytest.mark.parametrize(
    ("name", "layout"), [("resnet", 0), ("bottleneck", 0), ("mobilenet", 0), ("mobilenet", 1)]
)
def test_every_tensor_is_converted_to_its_place(name, layout):
    _, _, weights, tensors = tiny(name, layout)
    counters = {"bn1.num_batches_tracked": np.array(7)}
    actual = converted(name, tensors | counters)
    jax.tree.map(np.testing.assert_array_equal, actual, weights)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bn1.running_var": None}, "no tensor 'bn1.running_var'"),
        ({"layer5.0.conv1.weight": np.zeros(2)}, "'layer5.0.conv1.weight' is not in"),
        ({"conv1.weight": np.zeros((2, 3, 3, 3))}, "'conv1.weight' is 2x3x3x3, .* 2x3x7x7"),
        ({"bn1.weight": np.zeros((2, 1))}, "'bn1.weight' is 2x1, but the model needs 2"),
        ({"fc.weight": np.zeros((3, 5))}, "'fc.weight' is 3x5, but the model needs 3x4"),
        ({"fc.weight": np.zeros(4)}, "'fc.weight' is 4, but the model needs 3x4"),
    ],
)
def test_missing_unknown_and_misshaped_tensors_are_rejected(change, words):
    tensors = {k: v for k, v in (tiny("resnet")[3] | change).items() if v is not None}
    assert re.search(words, complaint(converted, "resnet", tensors))


def test_a_task_starts_from_a_weights_file(tmp_path):
    """The file is in half precision. A head of five classes is not loaded but drawn."""
    save_file = optional.module("safetensors.numpy").save_file
    net, task, weights, tensors = tiny("resnet")
    tensors = {k: v.astype(np.float16) for k, v in tensors.items()}
    path = tmp_path / "resnet.safetensors"
    save_file(tensors, path)
    whole = jax.jit(make_task(net.clone(pretrained=str(path)), (8, 8, 3), 3).init)(KEY)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6), whole, weights)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(whole))

    save_file(tensors | {"fc.weight": np.ones((5, 4)), "fc.bias": np.ones(5)}, path)
    other = make_task(net.clone(pretrained=str(path)), (8, 8, 3), 3)
    path.unlink()  # the file has been read before
    for seed in (0, 1):
        key = jax.random.key(seed)
        started, fresh = jax.jit(other.init)(key), jax.jit(task.init)(key)
        jax.tree.map(np.testing.assert_array_equal, started.params["head"], fresh.params["head"])
        jax.tree.map(np.testing.assert_array_equal, started.stats, whole.stats)
        for name in started.params.keys() - {"head"}:
            jax.tree.map(np.testing.assert_array_equal, started.params[name], whole.params[name])


NORMED_MLP = nets.mlp(3, width=4, norm=True)
SHAPES = jax.eval_shape(make_task(NORMED_MLP, (5,), 3).init, KEY)


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: name.split("/", 1)[1].replace("/", "."),
        lambda name: name.replace("/", ".") + ".value",
    ],
)
def test_weights_are_matched_by_the_names_of_the_layers(rename):
    weights = random_weights(SHAPES)
    named = zip(tree.names(weights), jax.tree.leaves(weights), strict=True)
    tensors = {rename(name): leaf for name, leaf in named}
    jax.tree.map(np.testing.assert_array_equal, pretrained.match(tensors, SHAPES), weights)


@pytest.mark.parametrize("file", ["weights.safetensors", "weights"])
def test_a_file_of_flax_variables_starts_a_model_with_another_head_name(file, tmp_path):
    """The files are as Flax and Orbax write them; Orbax's also has other values."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(nn.BatchNorm(use_running_average=True)(nn.Dense(4)(x)))

    variables = {**Net().init(KEY, np.zeros((1, 5)))}
    path = tmp_path / file
    if file.endswith("s"):
        ocp.PyTreeCheckpointer().save(path, {**variables, "step": 3, "opt_state": {"mu": KEY_DATA}})
    else:
        flat = flatten_dict(variables, sep=".")
        optional.module("safetensors.numpy").save_file(jax.device_get(flat), path)
    task = make_task(Net(), (5,), 3, pretrained_file=str(path))
    x = np.ones((2, 5), np.float32)
    logits = task.apply(task.init(jax.random.key(1)), x).logits
    np.testing.assert_array_equal(logits, Net().apply(variables, x))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"Dense_0/kernel": None}, "it lacks 1 of 8 (Dense_0/kernel)"),
        (
            dict.fromkeys(["Dense_0/kernel", "Dense_0/bias", "head/bias", "head/kernel"])
            | {"fc": np.zeros(3)},
            "it lacks 4 of 8 (Dense_0/bias, Dense_0/kernel, head/bias, ...); the model does not",
        ),
        ({"Dense_0/bias": np.zeros(3)}, "'Dense_0/bias' is 3, but the model needs 4"),
    ],
)
def test_the_error_lists_missing_unknown_and_misshaped_variables(change, said):
    names = [name.split("/", 1)[1] for name in tree.names(SHAPES)]
    tensors = dict(zip(names, jax.tree.leaves(random_weights(SHAPES)), strict=True)) | change
    tensors = {name: a for name, a in tensors.items() if a is not None}
    assert said in complaint(pretrained.match, tensors, SHAPES)


def test_unsuitable_files_are_rejected(tmp_path, monkeypatch):
    error = complaint(make_task, NORMED_MLP, (5,), 3, pretrained_file=str(tmp_path))
    assert f"{tmp_path}: not a folder written by Orbax" in error
    (tmp_path / "model.safetensors").touch()
    assert "it has no config.json" in complaint(
        make_task, NORMED_MLP, (5,), 3, pretrained_file=str(tmp_path)
    )
    optional.module("safetensors")
    path = tmp_path / "weights.pth"
    net = TINY["resnet"].clone(pretrained=str(path))
    for words in ("the file does not exist", "not a .safetensors file"):
        assert f"{path}: {words}" in complaint(make_task, net, (8, 8, 3), 3)
        path.write_bytes(b"PK\x03\x04 a pickle")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert "pip install 'fedjax_lab[clip]'" in complaint(make_task, net, (8, 8, 3), 3)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [(np.ones(3, np.int8), "has numbers of type int8"), (np.full(3, np.nan), "has NaN")],
)
def test_weights_are_real_and_finite_numbers(tensor, words):
    assert words in complaint(pretrained.numbers, "its tensor 'a'", tensor)
