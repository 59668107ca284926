"""VGG-9, ResNet-50 and the concatenated net, against published counts and naive NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import normal, random_weights

from fedjax_lab import experiment
from fedjax_lab.errors import BadInput
from fedjax_lab.models import conv, nets, resnet, vgg
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Weights

KEY = jax.random.key(0)
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


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
    task = make_task(net.clone(convolution=conv.im2col), (32, 32, 3), net.num_classes)
    weights = jax.eval_shape(task.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == count
    output = jax.eval_shape(task.apply, weights, jax.ShapeDtypeStruct((7, 32, 32, 3), "float32"))
    assert output.logits.shape == (7, net.num_classes)
    assert output.features.shape == (7, width)
    assert weights.params["head"]["kernel"].shape == (width, net.num_classes)
    assert bool(task.batch_norms) == ("resnet" in net.name)


@pytest.mark.parametrize("name", ["vgg9", "resnet50", "concat_cnn"])
def test_configs_know_them(name):
    assert experiment.NAMED["model"][name](10).name == name


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (vgg.vgg9(10), (7, 32, 3)),
        (resnet.resnet50(10), (32, 32)),
        (nets.concat_cnn(10), (15, 9, 1)),
    ],
)
def test_unfit_images_are_named(net, shape):
    with pytest.raises(BadInput) as error:
        make_task(net, shape, 10)
    assert net.name in str(error.value)
    assert "x".join(map(str, shape)) in str(error.value)


# The concatenated net


def test_branches_are_nets_of_their_own():
    """The features of branch b are those of a simple CNN with its weights; the head sums up."""
    x = normal(1, 3, 16, 16, 1)
    wide = make_task(nets.concat_cnn(4, branches=2), (16, 16, 1), 4)
    weights = random_weights(jax.eval_shape(wide.init, KEY))
    output = wide.apply(weights, x)
    single, parts = make_task(nets.simple_cnn(4), (16, 16, 1), 4), []
    for b in (0, 1):
        named = [(kind, i) for kind in ("Conv", "Dense") for i in (0, 1)]
        own = {f"{kind}_{i}": weights.params[f"{kind}_{2 * b + i}"] for kind, i in named}
        head = {"kernel": np.zeros((84, 4), "f"), "bias": np.zeros(4, "f")}
        parts.append(single.apply(Weights({**own, "head": head}, {}), x).features)
    features = np.concatenate(parts, axis=-1)
    np.testing.assert_array_equal(output.features, features)
    head = weights.params["head"]
    np.testing.assert_allclose(output.logits, features @ head["kernel"] + head["bias"], rtol=1e-3)


def test_branches_start_apart():
    params = jax.jit(make_task(nets.concat_cnn(2, branches=2), (16, 16, 1), 2).init)(KEY).params
    assert not np.allclose(params["Conv_0"]["kernel"], params["Conv_2"]["kernel"])


def test_a_net_without_branches_is_refused():
    with pytest.raises(BadInput, match="branches"):
        nets.concat_cnn(10, branches=0)


# VGG


def small_vgg(maps=(0.0, 0.0), dense=0.0, widths=(5,)):
    net = vgg.VGG(3, ((2, 4), (4,)), maps, widths, dense)
    return make_task(net, (8, 9, 2), 3)


def convolve(x, kernel, stride=1):
    """[B, H, W, C] padded by half the kernel on each side; one output pixel after the other."""
    pad, size = len(kernel) // 2, len(kernel)
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows = range(0, x.shape[1] - size + 1, stride)
    cols = range(0, x.shape[2] - size + 1, stride)
    patches = [[x[:, i : i + size, j : j + size] for j in cols] for i in rows]
    return np.einsum("ijbhwc,hwck->bijk", np.array(patches), kernel)


def relu(x):
    return np.maximum(x, 0)


def test_the_layers_of_a_vgg_are_in_order():
    task = small_vgg()
    weights, x = random_weights(jax.eval_shape(task.init, KEY)), normal(1, 2, 8, 9, 2)
    p, z = weights.params, np.asarray(x)
    for stage in (("Conv_0", "Conv_1"), ("Conv_2",)):
        for name in stage:
            z = relu(convolve(z, p[name]["kernel"]) + p[name]["bias"])
        h, w = z.shape[1] // 2, z.shape[2] // 2
        z = z[:, : 2 * h, : 2 * w].reshape(2, h, 2, w, 2, -1).max((2, 4))
    z = relu(z.reshape(2, -1) @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"])
    output = task.apply(weights, x)
    close(output.features, z, atol=1e-3)
    close(output.logits, z @ p["head"]["kernel"] + p["head"]["bias"], atol=1e-2)


def test_map_dropout_drops_whole_maps_of_an_image():
    plain, dropped = small_vgg(widths=()), small_vgg(maps=(0.0, 0.5), widths=())
    weights = random_weights(jax.eval_shape(plain.init, KEY))
    x = normal(1, 40, 8, 9, 2)
    whole = np.asarray(plain.apply(weights, x).features).reshape(40, 4, 4)  # [B, H W, C]
    thin = np.asarray(dropped.apply(weights, x, KEY).features).reshape(40, 4, 4)
    alive = whole.any(1)  # [B, C]
    kept = thin.any(1)
    assert 0.3 < kept[alive].mean() < 0.7
    lost = alive & ~kept
    assert (lost.any(1) & kept.any(1)).any()  # maps of one image go one by one
    close(thin, np.where(kept[:, None], 2 * whole, 0))
    close(dropped.apply(weights, x).features, whole.reshape(40, -1))


def test_dense_dropout_stands_before_the_first_layer_and_after_the_last():
    plain, dropped = small_vgg(widths=(400,)), small_vgg(dense=0.5, widths=(400,))
    weights = random_weights(jax.eval_shape(plain.init, KEY))
    x = normal(1, 4, 8, 9, 2)
    whole = np.asarray(plain.apply(weights, x).features)
    thin = np.asarray(dropped.apply(weights, x, KEY).features)
    assert 0.65 < (thin == 0).mean() < 0.85  # half by the ReLU, half of the rest
    kept = (thin > 0) & (whole > 0)
    assert not np.allclose(thin[kept], 2 * whole[kept])  # its input was thinned, too


def test_vgg9_has_its_rates():
    net = vgg.vgg9(10)
    assert (net.map_dropout, net.dense_dropout) == ((0.0, 0.05, 0.0), 0.1)


# ResNet


def bottleneck_by_hand(weights, x, stride):
    """In evaluation mode. The fourth convolution, if there is one, is the shortcut's."""
    p, stats = weights.params, weights.stats

    def conv_norm(x, i, stride=1):
        norm, s = p[f"BatchNorm_{i}"], stats[f"BatchNorm_{i}"]
        y = convolve(x, p[f"Conv_{i}"]["kernel"], stride)
        return (y - s["mean"]) / np.sqrt(s["var"] + 1e-5) * norm["scale"] + norm["bias"]

    y = relu(conv_norm(x, 0))
    y = relu(conv_norm(y, 1, stride))
    y = conv_norm(y, 2)
    return relu(y + (conv_norm(x, 3, stride) if "Conv_3" in p else x))


@pytest.mark.parametrize(("stride", "channels", "convolutions"), [(1, 8, 3), (1, 3, 4), (2, 3, 4)])
def test_a_bottleneck_is_the_formula(stride, channels, convolutions):
    """Even and odd sizes: at stride 2 "SAME" would pad the even one below only."""
    block, x = resnet.Bottleneck(2, stride, conv.mapped), normal(1, 2, 6, 5, channels)
    shapes = jax.eval_shape(lambda: block.init(KEY, x, False, None))
    weights = random_weights(Weights(shapes["params"], shapes["batch_stats"]))
    assert len(weights.params) == 2 * convolutions
    variables = {"params": weights.params, "batch_stats": weights.stats}
    y = block.apply(variables, x, False, None)
    assert y.shape == (2, -(-6 // stride), -(-5 // stride), 8)
    close(y, bottleneck_by_hand(weights, np.asarray(x), stride), atol=1e-3)


def small_resnet():
    net = resnet.ResNet(3, resnet.cifar_stem, resnet.Bottleneck, (1, 1), width=2)
    return make_task(net, (6, 6, 1), 3)


def test_the_parts_of_a_resnet_are_in_order():
    task = small_resnet()
    weights, x = random_weights(jax.eval_shape(task.init, KEY)), normal(1, 2, 6, 6, 1)
    p, s = weights.params, weights.stats["BatchNorm_0"]
    y = convolve(np.asarray(x), p["Conv_0"]["kernel"]) - s["mean"]
    y = y / np.sqrt(s["var"] + 1e-5) * p["BatchNorm_0"]["scale"] + p["BatchNorm_0"]["bias"]
    y = relu(y)
    for name, stride in (("Bottleneck_0", 1), ("Bottleneck_1", 2)):
        y = bottleneck_by_hand(Weights(p[name], weights.stats[name]), y, stride)
    output = task.apply(weights, x)
    close(output.features, y.mean((1, 2)), atol=1e-3)
    close(output.logits, y.mean((1, 2)) @ p["head"]["kernel"] + p["head"]["bias"], atol=1e-2)


def test_padded_rows_of_a_resnet_count_nowhere():
    task = small_resnet()
    weights = random_weights(jax.eval_shape(task.init, KEY))
    x, mask = normal(1, 3, 6, 6, 1), jnp.array([1.0, 0, 1])
    apply = jax.jit(task.apply)
    one, other = (apply(weights, a, KEY, mask) for a in (x, x.at[1].set(9.0)))
    jax.tree.map(np.testing.assert_array_equal, one.stats, other.stats)
    np.testing.assert_array_equal(one.logits[::2], other.logits[::2])
    for name in task.batch_norms:
        new, old = one.stats, weights.stats
        for part in name.split("/"):
            new, old = new[part], old[part]
        assert not np.allclose(new["mean"], old["mean"]), name


def test_first_weights_of_a_resnet():
    """Convolutions are normal with variance 2 / fan-out, not cut off; the head is uniform."""
    net = resnet.ResNet(10, resnet.cifar_stem, resnet.Bottleneck, (1,), width=32)
    params = jax.jit(make_task(net, (4, 4, 3), 10).init)(KEY).params
    for i, fan_out in enumerate((32, 9 * 32, 128, 128)):
        layer = params["Bottleneck_0"][f"Conv_{i}"]
        assert set(layer) == {"kernel"}
        scaled = np.asarray(layer["kernel"]) / np.sqrt(2 / fan_out)
        assert abs(scaled.std() - 1) < 0.1
        assert np.abs(scaled).max() > 2.5
    bound = 128**-0.5
    assert 0.95 * bound < np.abs(params["head"]["kernel"]).max() <= bound
    assert np.asarray(params["Bottleneck_0"]["BatchNorm_2"]["scale"]).all()
