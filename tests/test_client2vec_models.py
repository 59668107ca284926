"""ResNet-18, MobileNetV2, CCT, the character LSTM and published weights, against naive NumPy."""

import sys
from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch_models
from scipy.special import erf, expit, softmax
from toys import normal, random_weights

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.models import cct, char_lstm, conv, mobilenet, pretrained, resnet
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Weights

KEY = jax.random.key(0)
close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


def random_variables(module, *arguments):
    shapes = jax.eval_shape(lambda: module.init(KEY, *arguments))
    weights = random_weights(Weights(shapes["params"], shapes.get("batch_stats", {})))
    return {"params": weights.params, "batch_stats": weights.stats}


@pytest.mark.parametrize(
    ("net", "shape", "count", "width"),
    [
        (resnet.resnet18(10), (32, 32, 3), 11_173_962, 512),
        (resnet.resnet18(10, norm="group"), (32, 32, 3), 11_173_962, 512),
        (resnet.resnet18(10, stem="imagenet"), (64, 64, 3), 11_181_642, 512),
        (resnet.resnet18(50, stem="imagenet"), (64, 64, 3), 11_202_162, 512),
        (mobilenet.mobilenet_v2(10), (64, 64, 3), 2_236_682, 1280),
        (mobilenet.mobilenet_v2(50), (64, 64, 3), 2_287_922, 1280),
        (mobilenet.mobilenet_v2(1000), (64, 64, 3), 3_504_872, 1280),
        (cct.cct7(10), (32, 32, 3), 3_760_139, 256),
        (cct.cct7(50), (32, 32, 3), 3_770_419, 256),
        (cct.cct7(50), (64, 64, 3), 3_967_027, 256),
        (char_lstm.char_lstm(80), (80,), 817_872, 256),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_published_sizes(net, shape, count, width):
    if hasattr(net, "convolution"):
        net = net.clone(convolution=conv.im2col)
    task = make_task(net, shape, net.num_classes)
    weights = jax.eval_shape(task.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(weights.params)) == count
    assert weights.params["head"]["kernel"].shape == (width, net.num_classes)
    holders = {name.split("/", 1)[1].rsplit("/", 1)[0] for name in tree.names(weights)}
    assert set(task.layers) == holders


# Small nets of each kind: rows, clients, loops

BATCH_RESNET = resnet.ResNet(3, resnet.imagenet_stem, resnet.BasicBlock, (1, 1), width=4)
STAGES = ((1, 3, 1, 1), (2, 3, 1, 2))
MOBILENET = mobilenet.MobileNetV2(3, 4, STAGES, 5, dropout=0.0)
CCT = cct.CCT(3, width=6, blocks=2, heads=2, hidden=5, attention_dropout=0.0, skip=0.0)
LSTM = char_lstm.CharLSTM(5, embedding=2, width=3)
SMALL = {
    "resnet": (BATCH_RESNET, (9, 9, 2)),
    "group_norm": (BATCH_RESNET.clone(norm=resnet.group_norm), (9, 9, 2)),
    "mobilenet": (MOBILENET, (8, 8, 2)),
    "cct": (CCT, (5, 4, 2)),
    "lstm": (LSTM, (4,)),
}


@cache
def small(name):
    """The task, random weights of two clients, and their batches of 5."""
    net, shape = SMALL[name]
    task = make_task(net, shape, net.num_classes)
    shapes = jax.eval_shape(task.init, KEY)
    weights = jax.tree.map(lambda *a: jnp.stack(a), *[random_weights(shapes, s) for s in (0, 1)])
    x = normal(2, 2, 5, *shape)
    return task, weights, jnp.abs(jnp.trunc(2 * x)) % 5 if name == "lstm" else x


def gradient(task, weights, x, mask):
    def loss(params):
        output = task.apply(weights._replace(params=params), x, KEY, mask)
        return jnp.sum(mask[:, None] * jnp.sin(output.logits)), output

    return jax.grad(loss, has_aux=True)(weights.params)


def one_client(weights, x, i=0):
    return jax.tree.map(lambda a: a[i], (weights, x))


@pytest.mark.parametrize("name", SMALL)
def test_padded_rows_count_nowhere(name):
    task, weights, x = small(name)
    w, x = one_client(weights, x)
    real = np.array([0, 2, 3])
    mask = jnp.zeros(5).at[real].set(1)
    apply = jax.jit(task.apply)
    padded, alone = apply(w, x, KEY, mask), apply(w, x[real], KEY, jnp.ones(3))
    jax.tree.map(close, padded.stats, alone.stats)
    close(padded.logits[real], alone.logits)
    close(padded.features[real], alone.features)


@pytest.mark.parametrize("name", ["mobilenet", "lstm"])
def test_clients_at_once_in_a_loop_equal_clients_alone(name):
    """Two steps down the gradient: vmap inside of fori_loop."""
    task, weights, x = small(name)
    mask = jnp.ones(5)

    def step(w, x):
        g, output = gradient(task, w, x, mask)
        params = jax.tree.map(lambda a, b: a - 1e-3 * b, w.params, g)
        return w._replace(params=params, stats=output.stats)

    def steps(w):
        return jax.lax.fori_loop(0, 2, lambda _, w: jax.vmap(step)(w, x), w)

    together, single = jax.jit(steps)(weights), jax.jit(step)
    for i in (0, 1):
        alone, mine = one_client(weights, x, i)
        alone = single(single(alone, mine), mine)
        jax.tree.map(lambda a, b, i=i: close(a[i], b), together, alone)


# ResNet and MobileNetV2


def convolve(x, kernel, stride=1, depthwise=False):
    """[B, H, W, C] padded by half the kernel on each side; one output pixel after the other."""
    pad, size = len(kernel) // 2, len(kernel)
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows = range(0, x.shape[1] - size + 1, stride)
    cols = range(0, x.shape[2] - size + 1, stride)
    patches = np.array([[x[:, i : i + size, j : j + size] for j in cols] for i in rows])
    if depthwise:
        return np.einsum("ijbhwc,hwc->bijc", patches, kernel[:, :, 0])
    return np.einsum("ijbhwc,hwck->bijk", patches, kernel)


def by_hand(variables, x, i, stride=1, depthwise=False):
    """Convolution and BatchNorm number i of a block, in evaluation mode."""
    p, s = variables["params"], variables["batch_stats"][f"BatchNorm_{i}"]
    y = convolve(x, p[f"Conv_{i}"]["kernel"], stride, depthwise)
    norm = p[f"BatchNorm_{i}"]
    return (y - s["mean"]) / np.sqrt(s["var"] + 1e-5) * norm["scale"] + norm["bias"]


def relu(x):
    return np.maximum(x, 0)


@pytest.mark.parametrize(("stride", "channels"), [(1, 3), (1, 2), (2, 3)])
def test_a_basic_block_is_the_formula(stride, channels):
    block, x = resnet.BasicBlock(3, stride, conv.mapped), normal(1, 2, 6, 5, channels)
    variables = random_variables(block, x, False, None)
    y = block.apply(variables, x, False, None)
    x = np.asarray(x)
    inner = by_hand(variables, relu(by_hand(variables, x, 0, stride)), 1)
    shortcut = x if (stride, channels) == (1, 3) else by_hand(variables, x, 2, stride)
    close(y, relu(inner + shortcut), atol=1e-3)


def test_group_norm_is_the_formula():
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


def test_the_stem_for_large_images():
    x = normal(1, 2, 13, 12, 3)
    y = resnet.imagenet_stem(x, 8, lambda x, width, kernel, stride: x[..., :1] + width + kernel)
    grown = np.pad(relu(x[..., :1] + 15), ((0, 0), (1, 1), (1, 1), (0, 0)))
    close(y[:, 2, 3], grown[:, 4:7, 6:9].max((1, 2)))
    assert y.shape == (2, 7, 6, 1)


@pytest.mark.parametrize(
    ("expansion", "stride", "channels"), [(1, 1, 3), (2, 1, 3), (2, 1, 4), (2, 2, 3)]
)
def test_an_inverted_residual_is_the_formula(expansion, stride, channels):
    block = mobilenet.InvertedResidual(channels, expansion, stride, conv.mapped)
    x = normal(1, 2, 6, 5, 3)
    variables = random_variables(block, x, False, None)
    assert sum("Conv" in name for name in variables["params"]) == (2 if expansion == 1 else 3)
    z = np.asarray(x)
    first = 0
    if expansion > 1:
        z, first = np.clip(by_hand(variables, z, 0), 0, 6), 1
    z = np.clip(by_hand(variables, z, first, stride, depthwise=True), 0, 6)
    z = by_hand(variables, z, first + 1)
    if (stride, channels) == (1, 3):
        z = z + x
    close(block.apply(variables, x, False, None), z, atol=1e-3)


def test_first_weights_of_a_mobilenet():
    net = mobilenet.MobileNetV2(10, 32, ((1, 16, 1, 1),), 320)
    params = jax.jit(make_task(net, (8, 8, 3), 10).init)(KEY).params
    depthwise = params["InvertedResidual_0"]["Conv_0"]["kernel"]
    assert depthwise.shape == (3, 3, 1, 32)
    assert abs(depthwise.std() / np.sqrt(2 / (9 * 32)) - 1) < 0.15
    assert abs(params["head"]["kernel"].std() / 0.01 - 1) < 0.1
    assert not params["head"]["bias"].any()


def test_mobilenet_drops_a_fifth_of_its_features():
    assert mobilenet.mobilenet_v2(10).dropout == 0.2
    net = mobilenet.MobileNetV2(3, 4, (), 500, dropout=0.2)
    task = make_task(net, (4, 4, 1), 3)
    weights = random_weights(jax.eval_shape(task.init, KEY))
    norm = weights.params["BatchNorm_1"] | {"bias": np.full(500, 3.0)}
    weights = weights._replace(params=weights.params | {"BatchNorm_1": norm})
    apply, x = jax.jit(lambda key: task.apply(weights, x, key).features), normal(1, 8, 4, 4, 1)
    thin, other = np.asarray(apply(KEY)), np.asarray(apply(jax.random.key(1)))
    alive = (thin > 0) | (other > 0)  # not dropped by the ReLU, nor (but 1 in 25) by both
    assert 0.1 < (thin[alive] == 0).mean() < 0.22


# CCT


def layer_norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def dense(x, p):
    return x @ p["kernel"] + p.get("bias", 0)


def cct_block_by_hand(x, p, heads):
    """One example and one head after the other. x [B, N, D]."""
    y = layer_norm(x, p["LayerNorm_0"])
    q, k, v = np.split(dense(y, p["Attention_0"]["qkv"]), 3, axis=-1)
    seen, size = np.empty_like(x), x.shape[-1] // heads
    for b in range(len(x)):
        for part in (slice(h * size, (h + 1) * size) for h in range(heads)):
            weights = softmax(q[b, :, part] @ k[b, :, part].T / np.sqrt(size), axis=-1)
            seen[b, :, part] = weights @ v[b, :, part]
    s = layer_norm(x + dense(seen, p["Attention_0"]["out"]), p["LayerNorm_1"])
    y = dense(s, p["mlp_0"])
    return s + dense(y * (1 + erf(y / np.sqrt(2))) / 2, p["mlp_1"])


def test_a_cct_is_the_formula():
    task, weights, x = small("cct")
    w, x = one_client(weights, x)
    output = jax.jit(task.apply)(w, x)
    p, z = jax.tree.map(np.asarray, w.params), np.asarray(x)
    z = np.pad(relu(convolve(z, p["Conv_0"]["kernel"])), ((0, 0), (1, 1), (1, 1), (0, 0)))
    places = [(i, j) for i in range(0, 5, 2) for j in range(0, 4, 2)]  # windows of 5x4, row by row
    z = np.stack([z[:, i : i + 3, j : j + 3].max((1, 2)) for i, j in places], axis=1)
    z = z + p["Positions_0"]["embedding"]
    for i in (0, 1):
        z = cct_block_by_hand(z, p[f"Block_{i}"], heads=2)
    z = layer_norm(z, p["LayerNorm_0"])
    share = softmax(dense(z, p["pool"])[..., 0], axis=1)  # [B, N]
    pooled = np.einsum("bn,bnd->bd", share, z)
    close(output.features, pooled, atol=1e-3)
    close(output.logits, dense(pooled, p["head"]), atol=1e-3)


def test_stochastic_depth_skips_both_branches_of_an_example():
    block, x = cct.Block(2, 5, 0.0, skip=0.5), normal(1, 200, 3, 4)
    variables = random_variables(block, x, False)
    p = variables["params"]
    y = jax.jit(lambda: block.apply(variables, x, True, rngs={"dropout": KEY}))()
    neither = layer_norm(np.asarray(x), p["LayerNorm_1"])
    same = np.isclose(y, neither, atol=1e-4).all((1, 2))
    assert 0.15 < same.mean() < 0.35  # whole examples, half of a half of them
    doubled = dense(block_attention(p, x), p["Attention_0"]["out"])
    s = layer_norm(np.asarray(x) + 2 * doubled, p["LayerNorm_1"])
    assert 0.15 < np.isclose(y, s, atol=1e-3).all((1, 2)).mean() < 0.35


def block_attention(p, x):
    """What the heads of the block give, before the last dense layer."""
    attention = {"out": {"kernel": np.eye(4), "bias": np.zeros(4)}, "qkv": p["Attention_0"]["qkv"]}
    y = layer_norm(np.asarray(x), p["LayerNorm_0"])
    return cct.Attention(2, 0.0).apply({"params": attention}, y, False)


def test_attention_dropout_thins_the_weights_in_training_only():
    module, x = cct.Attention(1, 0.25), jnp.eye(60)[None]
    qkv = np.concatenate([np.zeros((60, 120)), np.eye(60)], axis=1)  # equal weights; v = x
    out = {"kernel": np.eye(60), "bias": np.zeros(60)}
    variables = {"params": {"qkv": {"kernel": qkv}, "out": out}}  # its output is the weights
    close(module.apply(variables, x, False), np.full((1, 60, 60), 1 / 60))
    thin = np.asarray(module.apply(variables, x, True, rngs={"dropout": KEY}))
    assert 0.2 < (thin == 0).mean() < 0.3
    close(thin[thin > 0], 1 / 60 / 0.75)


def test_rates_of_cct7():
    rates = []

    def note(call, args, kwargs, context):
        if isinstance(context.module, cct.Block):
            rates.append((context.module.skip, context.module.attention_dropout))
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        jax.eval_shape(cct.cct7(10).init, KEY, jnp.zeros((1, 8, 8, 3)))
    np.testing.assert_allclose(rates, [(i / 60, 0.1) for i in range(7)])


def test_first_weights_of_a_cct():
    net = cct.CCT(10, width=64, blocks=1, heads=2, hidden=64)
    params = jax.jit(make_task(net, (12, 12, 3), 10).init)(KEY).params
    for name, layer in {**params["Block_0"], "head": params["head"]}.items():
        if "kernel" in layer:
            assert abs(layer["kernel"].std() / 0.02 - 1) < 0.1, name
            assert not layer["bias"].any()
    assert abs(params["Positions_0"]["embedding"].std() / 0.2 - 1) < 0.1
    assert abs(params["Conv_0"]["kernel"].std() / np.sqrt(2 / 27) - 1) < 0.1
    assert set(params["Block_0"]["Attention_0"]["qkv"]) == {"kernel"}


# The LSTM


def test_a_char_lstm_is_the_formula():
    task, weights, x = small("lstm")
    w, x = one_client(weights, x)
    p = jax.tree.map(np.asarray, w.params)
    inputs = p["Embed_0"]["embedding"][np.asarray(x, int)]  # [B, T, 2]
    for layer in ("OptimizedLSTMCell_0", "OptimizedLSTMCell_1"):
        cell, outputs = p[layer], []
        h = c = np.zeros((5, 3))
        for t in range(4):
            gates = [
                inputs[:, t] @ cell[f"i{g}"]["kernel"] + dense(h, cell[f"h{g}"]) for g in "ifgo"
            ]
            i, f, o = (expit(gates[k]) for k in (0, 1, 3))
            c = f * c + i * np.tanh(gates[2])
            h = o * np.tanh(c)
            outputs.append(h)
        inputs = np.stack(outputs, axis=1)
    output = task.apply(w, x)
    close(output.features, h)
    close(output.logits, dense(h, p["head"]))


def test_first_weights_of_a_char_lstm():
    params = jax.jit(make_task(char_lstm.char_lstm(80), (3,), 80).init)(KEY).params
    assert abs(params["Embed_0"]["embedding"].std() - 1) < 0.1
    for layer in (params["OptimizedLSTMCell_0"], params["OptimizedLSTMCell_1"]):
        for leaf in jax.tree.leaves(layer):
            assert 0.9 / 16 < np.abs(leaf).max() <= 1 / 16


@pytest.mark.parametrize(("shape", "words"), [((8, 8, 3), "8x8x3"), ((), "numbers")])
def test_what_is_no_text_is_named(shape, words):
    with pytest.raises(BadInput, match=f"^char_lstm needs texts .*{words}"):
        make_task(char_lstm.char_lstm(5), shape, 5)


@pytest.mark.parametrize("net", [resnet.resnet18(3), mobilenet.mobilenet_v2(3), cct.cct7(3)])
def test_what_is_no_image_is_named(net):
    with pytest.raises(BadInput, match=f"^{net.name} needs images .* 80"):
        make_task(net, (80,), 3)


# Published weights

FULL = {
    "resnet18": resnet.resnet18(torch_models.CLASSES, stem="imagenet"),
    "mobilenet_v2": mobilenet.mobilenet_v2(torch_models.CLASSES),
}


@pytest.mark.parametrize("name", FULL)
def test_published_weights_give_the_published_logits(name):
    net = FULL[name]
    task = make_task(net, (32, 32, 3), net.num_classes)
    shapes, apply = jax.eval_shape(task.init, KEY), jax.jit(task.apply)
    for library, theirs in torch_models.MODELS[name]:
        there, logits = torch_models.golden(library, theirs)
        weights = pretrained.convert(torch_models.filled(there), net.published_names(), shapes)
        assert jax.tree.map(np.shape, weights) == jax.tree.map(lambda a: a.shape, shapes)
        ours = apply(weights, torch_models.images()).logits
        np.testing.assert_allclose(ours, logits, atol=1e-5 * np.abs(logits).max())


@pytest.mark.parametrize(("library", "name"), sum(torch_models.MODELS.values(), ()))
def test_the_golden_file_is_what_the_libraries_say(library, name):
    pytest.importorskip(library)
    pytest.importorskip("torchvision")
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
    """A net, its random weights, and the same as a library would name and shape them."""
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
def test_every_tensor_comes_to_its_place(name, layout):
    _, _, weights, tensors = tiny(name, layout)
    counters = {"bn1.num_batches_tracked": np.array(7)}
    found = converted(name, tensors | counters)
    jax.tree.map(np.testing.assert_array_equal, found, weights)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bn1.running_var": None}, "no tensor 'bn1.running_var'"),
        ({"layer5.0.conv1.weight": np.zeros(2)}, "no place .* 'layer5.0.conv1.weight'"),
        ({"conv1.weight": np.zeros((2, 3, 3, 3))}, "'conv1.weight' is 2x3x3x3, .* 2x3x7x7"),
        ({"bn1.weight": np.zeros((2, 1))}, "'bn1.weight' is 2x1, the model needs 2"),
        ({"fc.weight": np.zeros((3, 5))}, "'fc.weight' is 3x5, the model needs 3x4"),
        ({"fc.weight": np.zeros(4)}, "'fc.weight' is 4, the model needs 3x4"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change, words):
    tensors = {k: v for k, v in (tiny("resnet")[3] | change).items() if v is not None}
    with pytest.raises(BadInput, match=words):
        converted("resnet", tensors)


def test_a_task_starts_from_a_file(tmp_path):
    """In half precision; the head of five classes stays behind, its own follows the key."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    net, task, weights, tensors = tiny("resnet")
    tensors = {k: v.astype(np.float16) for k, v in tensors.items()}
    path = tmp_path / "resnet.safetensors"
    save_file(tensors, path)
    whole = jax.jit(make_task(net.clone(pretrained=str(path)), (8, 8, 3), 3).init)(KEY)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6), whole, weights)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(whole))

    save_file(tensors | {"fc.weight": np.ones((5, 4)), "fc.bias": np.ones(5)}, path)
    other = make_task(net.clone(pretrained=str(path)), (8, 8, 3), 3)
    path.unlink()  # it has been read
    for seed in (0, 1):
        key = jax.random.key(seed)
        started, fresh = jax.jit(other.init)(key), jax.jit(task.init)(key)
        jax.tree.map(np.testing.assert_array_equal, started.params["head"], fresh.params["head"])
        jax.tree.map(np.testing.assert_array_equal, started.stats, whole.stats)
        for name in started.params.keys() - {"head"}:
            jax.tree.map(np.testing.assert_array_equal, started.params[name], whole.params[name])


def test_bad_files_are_named(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "weights.pth"
    for words in ("no such file", "not a .safetensors file"):
        with pytest.raises(BadInput, match=f"{path}: {words}") as error:
            make_task(TINY["resnet"].clone(pretrained=str(path)), (8, 8, 3), 3)
        assert "\n" not in str(error.value)
        path.write_bytes(b"PK\x03\x04 a pickle")


def test_without_safetensors_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(BadInput, match=r"pip install -e '.\[clip\]'"):
        make_task(TINY["resnet"].clone(pretrained="any"), (8, 8, 3), 3)


def test_settings_of_resnet18():
    net = resnet.resnet18(3, stem="imagenet", pretrained="a file")
    assert (net.stem, net.norm) == (resnet.imagenet_stem, resnet.batch_norm)
    assert net.pretrained == "a file"
    assert resnet.resnet18(3, norm="group").norm is resnet.group_norm
    assert mobilenet.mobilenet_v2(3, pretrained="a file").pretrained == "a file"
    for settings in (dict(pretrained="a file"), dict(stem="a"), dict(norm="b")):
        with pytest.raises(BadInput, match="config.model."):
            resnet.resnet18(3, **settings)
