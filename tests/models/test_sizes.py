"""Published sizes of the models, and what their tasks report about layers, features and types."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from slow_cases import in_ci

from fedjax_lab import tree
from fedjax_lab.experiment import registry
from fedjax_lab.models import kernels, layers, resnet
from fedjax_lab.models.task import has_convolutions, is_recurrent, make_task


def model(name, classes=10, **settings):
    """A registered model, on the kernels that are traced fastest."""
    net = registry.look_up("model", name)(classes, **settings)
    assert net.name == name
    return net.clone(kernels=kernels.choose("cpu", "im2col")) if hasattr(net, "kernels") else net


SIZES = [  # the model, the shape of its examples, and its number of parameters
    (model("mlp"), (8, 8, 1), 4_810),
    (model("simple_cnn"), (32, 32, 3), 62_006),
    (model("simple_cnn"), (28, 28, 1), 44_426),
    (model("lenet"), (64, 64, 3), 4_336_906),
    (model("lenet"), (32, 32, 3), 797_962),
    (model("mcmahan_cnn"), (28, 28, 1), 1_663_370),
    (model("pfl_cnn"), (32, 32, 3), 1_626_442),
    (model("pfllib_cnn"), (28, 28, 1), 582_026),
    (model("digit_cnn"), (28, 28, 3), 47_626),
    (model("digit_cnn"), (32, 32, 3), 66_058),
    (model("concat_cnn"), (32, 32, 3), 309_990),
    (model("concat_cnn", branches=2), (32, 32, 3), 2 * 61_156 + 1_690),
    (model("fedbn_cnn"), (28, 28, 3), 14_219_210),
    (model("fedbn_cnn"), (32, 32, 3), 18_151_370),
    (model("alexnet_bn"), (256, 256, 3), 57_063_498),
    (model("vgg9"), (32, 32, 3), 3_491_530),
    (model("resnet18"), (32, 32, 3), 11_173_962),
    (model("resnet18", norm="group"), (32, 32, 3), 11_173_962),
    (model("resnet18", stem="imagenet"), (64, 64, 3), 11_181_642),
    (model("resnet50", 100), (32, 32, 3), 23_705_252),
    (model("mobilenet_v2"), (64, 64, 3), 2_236_682),
    (model("mobilenet_v2", 1000), (64, 64, 3), 3_504_872),
    (model("cct7"), (32, 32, 3), 3_760_139),
    (model("cct7", 50), (64, 64, 3), 3_967_027),
    (model("vit"), (32, 32, 3), 5_355_466),
    (model("hfedf_cnn", 7), (32, 32, 3), 928_199),
    (model("hfedf_cnn", 5, inception_pool="avg"), (32, 32, 3), 927_685),
    (model("hfedf_cnn", 65, inception_pool="identity"), (32, 32, 3), 943_105),
    (model("char_lstm", 80), (80,), 817_872),
    (model("word_lstm", 10_004), (20,), 4_050_748),  # as reported by Reddi et al.
    (model("fasttext", 4, vocabulary=10_000), (20,), 64 * 20_000 + 65 * 4),
    (model("text_cnn", 2, vocabulary=20), (20,), 300 * (20 + 1200) + 300 + 301 * 2),
]
FEATURES = {  # published numbers of features
    **{"resnet18": 512, "resnet50": 2048, "mobilenet_v2": 1280, "cct7": 256, "char_lstm": 256},
    **{"vgg9": 512, "fedbn_cnn": 512, "alexnet_bn": 4096, "hfedf_cnn": 256},
}


DEEP = ("mobilenet_v2", "resnet50")
SHALLOW = {net.name: (net, *of) for net, *of in SIZES if net.name not in DEEP}  # one of each name


@pytest.mark.parametrize(
    ("net", "shape", "count"),
    in_ci(SHALLOW.values(), SIZES),
    ids=lambda v: getattr(v, "name", None),
)
def test_published_sizes(net, shape, count):
    """In 64-bit mode, where a layer with float64 weights would make all later layers slow."""
    with jax.enable_x64(True):
        task = make_task(net, shape, net.num_classes)
        weights = jax.eval_shape(task.init, jax.random.key(0))
        x, mask = jax.ShapeDtypeStruct((2, *shape), jnp.float32), jnp.ones(2, jnp.float32)
        output = jax.eval_shape(task.apply, weights, x, jax.random.key(0), mask)
    assert {str(a.dtype) for a in jax.tree.leaves((weights, output))} == {"float32"}
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == count
    width = output.features.shape[1]
    assert output.logits.shape == (2, net.num_classes)
    assert weights.params["head"]["kernel"].shape == (width, net.num_classes)
    assert width == FEATURES.get(net.name, width)
    with_weights = {name.split("/", 1)[1].rsplit("/", 1)[0] for name in tree.names(weights)}
    assert set(task.layers) == with_weights and task.layers[-1] == task.dense[-1] == "head"
    assert bool(weights.stats) == bool(output.stats) == bool(task.batch_norms)


def test_settings_change_widths_channels_and_rates():
    assert model("mlp", width=7, depth=3).widths == (7, 7, 7)
    assert model("digit_cnn", width=4).channels == (4, 8)
    rates = model("pfl_cnn"), model("vgg9")
    assert [net.map_dropout for net in rates] == [0.25, (0.0, 0.05, 0.0)]
    assert [net.dense_dropout for net in rates] == [0.5, 0.1]
    net = model("resnet18", stem="imagenet", pretrained="a file")
    assert (net.stem, net.norm) == (resnet.imagenet_stem, resnet.batch_norm)
    assert net.pretrained == model("mobilenet_v2", pretrained="a file").pretrained == "a file"
    assert model("resnet18", norm="group").norm is resnet.group_norm
    pools = model("hfedf_cnn"), model("hfedf_cnn", inception_pool="avg")
    assert [net.pool for net in pools] == ["max", "avg"]


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = layers.BatchNorm(name="calm")(x, train)
        x = nn.BatchNorm(use_running_average=not train, name="second")(x)
        return nn.Dense(4, name="BatchNorm_of_the_name_only")(x)


class Outer(nn.Module):
    @nn.compact
    def __call__(self, x, train=False, mask=None):
        inner = Inner(name="block")
        z = nn.LayerNorm(name="tidy")(inner(x, train))
        z = nn.GroupNorm(2)(inner(z, train))
        return nn.Dense(3, name="head")(z), z


def test_layers_are_found_by_type_and_listed_in_order():
    task = make_task(Outer(), (4,), 3)
    named = "block/BatchNorm_of_the_name_only"
    norms = ("block/calm", "block/second")
    assert task.layers == (*norms, named, "tidy", "GroupNorm_0", "head")
    assert task.batch_norms == norms
    assert task.dense == (named, "head")
    task = make_task(model("digit_cnn", width=2), (28, 28, 3), 10)
    convolutions = ("Conv_0", "BatchNorm_0", "Conv_1", "BatchNorm_1")
    assert task.layers == (*convolutions, "Dense_0", "head")
    assert has_convolutions(task) and not has_convolutions(
        make_task(model("mlp", 3), (28, 28, 3), 3)
    )
    assert is_recurrent(make_task(model("char_lstm", 5), (6,), 5)) and not is_recurrent(task)
