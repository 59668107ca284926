"""Checks the ResNets against naive NumPy."""

from functools import partial

import flax.linen as nn
import jax
import numpy as np
import pytest
from naive_layers import by_hand, random_variables, relu
from toys import normal

from fedjax_lab.errors import BadInput
from fedjax_lab.models import mobilenet, resnet
from fedjax_lab.models.kernels import CPU

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("stride", "channels"), [(1, 3), (1, 2), (2, 3)])
def test_a_basic_block_matches_numpy(stride, channels):
    block, x = resnet.BasicBlock(3, stride, CPU), normal(1, 2, 6, 5, channels)
    variables = random_variables(block, x, False, None)
    y = block.apply(variables, x, False, None)
    x = np.asarray(x)
    inner = by_hand(variables, relu(by_hand(variables, x, 0, stride)), 1)
    shortcut = x if (stride, channels) == (1, 3) else by_hand(variables, x, 2, stride)
    close(y, relu(inner + shortcut), atol=1e-3)


def test_group_norm_matches_numpy():
    x = np.asarray(3 + 2 * normal(1, 2, 3, 4, 6))
    expected = np.empty_like(x)
    for image in range(2):
        for group in (slice(0, 3), slice(3, 6)):
            values = x[image, :, :, group]
            expected[image, :, :, group] = (values - values.mean()) / np.sqrt(values.var() + 1e-5)

    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x):
            return resnet.group_norm(x, True, None)

    y, variables = Norm().init_with_output(KEY, x)
    close(y, expected)
    assert variables["params"]["GroupNorm_0"].keys() == {"scale", "bias"}


def test_the_imagenet_stem_is_a_convolution_relu_and_max_pool():
    x = normal(1, 2, 13, 12, 3)
    y = resnet.imagenet_stem(
        x, 8, lambda x, width, kernel, stride: x[..., :1] + width + kernel, CPU
    )
    padded = np.pad(relu(x[..., :1] + 15), ((0, 0), (1, 1), (1, 1), (0, 0)))
    close(y[:, 2, 3], padded[:, 4:7, 6:9].max((1, 2)))
    assert y.shape == (2, 7, 6, 1)


def test_settings_of_resnet18():
    net = resnet.resnet18(3, stem="imagenet", pretrained="a file")
    assert (net.stem, net.norm) == (resnet.imagenet_stem, resnet.batch_norm)
    assert net.pretrained == "a file"
    assert resnet.resnet18(3, norm="group").norm is resnet.group_norm
    assert mobilenet.mobilenet_v2(3, pretrained="a file").pretrained == "a file"
    for settings in (dict(pretrained="a file"), dict(stem="a"), dict(norm="b")):
        with pytest.raises(BadInput, match="config.model."):
            resnet.resnet18(3, **settings)
