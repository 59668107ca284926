"""Tests the networks of FedConcat's paper: published sizes, and the concatenated network."""

import jax
import numpy as np
import pytest
from toys import normal, random_weights

from fedjax_lab import registry
from fedjax_lab.errors import BadInput
from fedjax_lab.models import kernels, nets, resnet, vgg
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Weights

KEY = jax.random.key(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "count", "width"),
    [
        (vgg.vgg9(10), 3_491_530, 512),
        (resnet.resnet50(100), 23_705_252, 2048),
        (resnet.resnet50(200), 23_910_152, 2048),
        (nets.concat_cnn(10), 309_990, 420),
        (nets.concat_cnn(10, branches=2), 2 * 61_156 + 1_690, 168),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_published_sizes(net, count, width):
    task = make_task(
        net.clone(kernels=kernels.choose("cpu", "im2col")), (32, 32, 3), net.num_classes
    )
    weights = jax.eval_shape(task.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == count
    output = jax.eval_shape(task.apply, weights, jax.ShapeDtypeStruct((7, 32, 32, 3), "float32"))
    assert output.logits.shape == (7, net.num_classes)
    assert output.features.shape == (7, width)
    assert weights.params["head"]["kernel"].shape == (width, net.num_classes)
    assert bool(task.batch_norms) == ("resnet" in net.name)


@pytest.mark.parametrize("name", ["vgg9", "resnet50", "concat_cnn"])
def test_networks_are_registered_by_name(name):
    assert registry.NAMED["model"][name](10).name == name


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (vgg.vgg9(10), (7, 32, 3)),
        (resnet.resnet50(10), (32, 32)),
        (nets.concat_cnn(10), (15, 9, 1)),
    ],
)
def test_images_of_unsuitable_shape_are_rejected(net, shape):
    with pytest.raises(BadInput) as error:
        make_task(net, shape, 10)
    assert net.name in str(error.value)
    assert "x".join(map(str, shape)) in str(error.value)


@pytest.mark.slow
def test_each_branch_is_a_simple_cnn():
    """Branch b has the features of a simple CNN with its weights; the head uses them all."""
    x = normal(1, 3, 16, 16, 1)
    wide = make_task(nets.concat_cnn(4, branches=2), (16, 16, 1), 4)
    weights = random_weights(jax.eval_shape(wide.init, KEY))
    output = wide.apply(weights, x)
    single, parts = make_task(nets.simple_cnn(4), (16, 16, 1), 4), []
    for b in (0, 1):
        named = [(kind, i) for kind in ("Conv", "Dense") for i in (0, 1)]
        branch = {f"{kind}_{i}": weights.params[f"{kind}_{2 * b + i}"] for kind, i in named}
        head = {"kernel": np.zeros((84, 4), "f"), "bias": np.zeros(4, "f")}
        parts.append(single.apply(Weights({**branch, "head": head}, {}), x).features)
    features = np.concatenate(parts, axis=-1)
    np.testing.assert_array_equal(output.features, features)
    head = weights.params["head"]
    np.testing.assert_allclose(output.logits, features @ head["kernel"] + head["bias"], rtol=1e-3)


@pytest.mark.slow
def test_branches_have_different_first_weights():
    params = jax.jit(make_task(nets.concat_cnn(2, branches=2), (16, 16, 1), 2).init)(KEY).params
    assert not np.allclose(params["Conv_0"]["kernel"], params["Conv_2"]["kernel"])


def test_zero_branches_are_rejected():
    with pytest.raises(BadInput, match="branches"):
        nets.concat_cnn(10, branches=0)
