"""Settings and examples that a model rejects, with one line that names the culprit."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inputs import complaint
from naive_layers import KEY

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.experiment import registry
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.experiment import make_model
from fedjax_lab.models import char_lstm, layers, vit
from fedjax_lab.models.task import make_task


def task_of(name, shape, **settings):
    return make_task(registry.look_up("model", name)(3, **settings), shape, 3)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet", (12, 15, 3)),
        ("lenet", (784,)),
        ("fedbn_cnn", (3, 32, 3)),
        ("concat_cnn", (15, 9, 1)),
        ("alexnet_bn", (62, 256, 3)),
        ("vgg9", (7, 32, 3)),
        ("resnet50", (32, 32)),
        ("resnet18", (80,)),
        ("mobilenet_v2", (80,)),
        ("cct7", (80,)),
        ("hfedf_cnn", (3, 32, 3)),
        ("vit", (3, 12, 3)),
        ("char_lstm", (8, 8, 3)),
        ("char_lstm", ()),
    ],
)
def test_examples_of_unsuitable_shape_are_rejected(name, shape):
    message = complaint(task_of, name, shape)
    assert name in message and "x".join(map(str, shape)) in message


def test_the_smallest_images_are_accepted():
    for name, shape in (("lenet", (16, 16, 3)), ("fedbn_cnn", (4, 4, 1))):
        task_of(name, shape)
    task_of("alexnet_bn", (63, 63, 1))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("concat_cnn", {"branches": 0}, "branches"),
        ("hfedf_cnn", {"width": 0}, "config.model.width"),
        ("hfedf_cnn", {"width": 3}, "config.model.width"),
        ("hfedf_cnn", {"inception_pool": "mean"}, "inception_pool cannot be 'mean'"),
        ("resnet18", {"pretrained": "a file"}, "config.model."),
        ("resnet18", {"stem": "a"}, "config.model."),
        ("resnet18", {"norm": "b"}, "config.model."),
        ("vit", {"width": 10}, "config.model.heads=3 does not divide config.model.width=10"),
        ("vit", {"depth": 0}, "config.model.depth must be from 1 to 1,000"),
        ("vit", {"patch": 5}, "patch=5 does not divide images of 8x12; use a divisor"),
        ("transformer", {"heads": 3}, "heads=3 does not divide config.model.width"),
        ("text_cnn", {"windows": (3, 3)}, "windows must be distinct positive integers"),
        ("text_cnn", {"dropout": 1.0}, "config.model.dropout must be at least 0"),
        ("text_cnn", {"windows": (9,)}, "windows=(9,) needs texts of 9 tokens or more"),
        ("fasttext", {"buckets": -1}, "config.model.buckets must be at least 0"),
        ("word_lstm", {"depth": 0}, "config.model.depth must be from 1 to 1,000"),
        ("word_lstm", {"projection": -1}, "projection must be at least 0"),
    ],
)
def test_a_bad_setting_is_named(name, settings, said):
    texts = name in ("transformer", "text_cnn", "fasttext", "word_lstm")
    shape = (5,) if texts else (8, 12, 3)
    assert said in complaint(task_of, name, shape, **settings)


def vocabulary_size(x, **settings):
    """The number of word embeddings in the model that a config makes for examples x."""
    config = resolve({"model": {"name": "fasttext", "width": 2, "buckets": 0, **settings}})
    zeros = np.zeros(len(x), np.int32)
    data = Dataset(x, zeros, zeros, zeros > 0, ("a", "b"), ("one",))
    shapes = jax.eval_shape(make_model(config, data).unbound.init, KEY)
    return jax.tree.leaves(shapes.params["words"])[0].shape[0]


def test_the_vocabulary_size_follows_from_the_data():
    ids = np.array([[0, 7], [300, 2]], np.int16)
    assert vocabulary_size(ids) == 301 and vocabulary_size(ids, vocabulary=400) == 400
    assert vocabulary_size(ids.astype(np.float32)) == 301 and vocabulary_size(0 * ids) == 2
    said = complaint(vocabulary_size, ids, vocabulary=300)
    assert "config.model.vocabulary=300 of model fasttext" in said and "set it to 301" in said
    for x in (ids.astype(np.uint8), ids - 1, ids + np.float32(0.5)):
        assert "needs texts, rows of token ids; the data hold" in complaint(vocabulary_size, x)
    images = np.zeros((2, 8, 8, 3), np.uint8)
    assert "fasttext needs texts (rows of token ids), not 8x8x3" in complaint(
        vocabulary_size, images
    )


class Headless(nn.Module):
    @nn.compact
    def __call__(self, x, train=False, mask=None):
        z = layers.BatchNorm()(nn.Dense(3)(x), train)
        return z, x


def test_a_model_that_does_not_end_in_its_head_is_rejected():
    said = complaint(make_task, Headless(), (4,), 3)
    assert "must be the Dense that computes the logits" in said


@pytest.mark.parametrize(
    ("net", "shape", "layer"),
    [
        (vit.vit(3, width=8, depth=2, heads=2), (8, 8, 3), "blocks/mlp_1"),
        (char_lstm.CharLSTM(3, width=4), (5,), "OptimizedLSTMCell_0/hi"),
    ],
)
def test_apply_at_rejects_a_layer_inside_a_loop(net, shape, layer):
    task = make_task(net, shape, 3)
    assert layer in task.layers
    weights, x = jax.eval_shape(task.init, KEY), jnp.zeros((2, *shape))
    said = complaint(lambda: jax.eval_shape(lambda w: task.apply_at(layer, w, x), weights))
    assert f"layer {layer!r} is inside a loop of the model" in said
    jax.eval_shape(lambda w: task.apply_at("head", w, x), weights)
