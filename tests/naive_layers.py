"""Layers in plain NumPy, and small models to compare with them."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf, softmax
from toys import normal, random_weights

from fedjax_lab.models import cct, char_lstm, mobilenet, nets, resnet, vit
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Weights

KEY = jax.random.key(0)


close = partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)


def random_variables(module, *arguments):
    """Random values for all variables of a module."""
    shapes = jax.eval_shape(lambda: module.init(KEY, *arguments))
    weights = random_weights(Weights(shapes["params"], shapes.get("batch_stats", {})))
    return {"params": weights.params, "batch_stats": weights.stats}


STAGES = ((1, 3, 1, 1), (2, 3, 1, 2))
RESNET = resnet.ResNet(3, resnet.imagenet_stem, resnet.BasicBlock, (1, 1), width=4)
CCT = cct.CCT(3, width=6, blocks=2, heads=2, hidden=5, attention_dropout=0.0, skip=0.0)
CONV = nets.ConvNet(3, (2, 4), (True, False), (5,), kernel=3, norm=True, dense_norm=True)
BOTTLENECK = resnet.ResNet(3, resnet.cifar_stem, resnet.Bottleneck, (1, 1), width=2)
SMALL = {
    "conv": (CONV, (9, 9, 1)),
    "resnet": (RESNET, (9, 9, 2)),
    "group_norm": (RESNET.clone(norm=resnet.group_norm), (9, 9, 2)),
    "bottleneck": (BOTTLENECK, (6, 6, 1)),
    "mobilenet": (mobilenet.MobileNetV2(3, 4, STAGES, 5, dropout=0.0), (8, 8, 2)),
    "cct": (CCT, (5, 4, 2)),
    "vit": (vit.ViT(3, width=6, depth=2, heads=2, patch=2), (4, 6, 2)),
    "lstm": (char_lstm.CharLSTM(5, embedding=2, width=3), (4,)),
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


def one_client(weights, x, i=0):
    return jax.tree.map(lambda a: a[i], (weights, x))


def convolve(x, kernel, stride=1, depthwise=False, pad=None):
    """Convolves x [B, H, W, C] pixel by pixel.

    pad: the number of zeros on each side; None for half the kernel.
    """
    size, pad = len(kernel), len(kernel) // 2 if pad is None else pad
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows = range(0, x.shape[1] - size + 1, stride)
    cols = range(0, x.shape[2] - size + 1, stride)
    patches = np.array([[x[:, i : i + size, j : j + size] for j in cols] for i in rows])
    if depthwise:
        return np.einsum("ijbhwc,hwc->bijc", patches, kernel[:, :, 0])
    return np.einsum("ijbhwc,hwck->bijk", patches, kernel, optimize=True)


def normalize(x, variables, i):
    """Applies BatchNorm number i in evaluation mode."""
    p, s = variables["params"][f"BatchNorm_{i}"], variables["batch_stats"][f"BatchNorm_{i}"]
    return (x - s["mean"]) / np.sqrt(s["var"] + 1e-5) * p["scale"] + p["bias"]


def by_hand(variables, x, i, stride=1, depthwise=False):
    """Applies convolution and BatchNorm number i of a block in evaluation mode."""
    kernel = variables["params"][f"Conv_{i}"]["kernel"]
    return normalize(convolve(x, kernel, stride, depthwise), variables, i)


def max_pool(x, size, stride):
    """The largest values of the windows of x [B, H, W, C]."""
    rows = range(0, x.shape[1] - size + 1, stride)
    cols = range(0, x.shape[2] - size + 1, stride)
    best = [[x[:, i : i + size, j : j + size].max((1, 2)) for j in cols] for i in rows]
    return np.array(best).transpose(2, 0, 1, 3)


def pool_by_hand(x, out):
    """Averages x [B, H, W, C] over out x out bins, one bin at a time."""
    ends = [
        [(int(np.floor(k * n / out)), int(np.ceil((k + 1) * n / out))) for k in range(out)]
        for n in x.shape[1:3]
    ]
    rows = [[x[:, a:b, c:d].mean((1, 2)) for c, d in ends[1]] for a, b in ends[0]]
    return np.array(rows).transpose(2, 0, 1, 3)


def relu(x):
    return np.maximum(x, 0)


def layer_norm(x, p):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def dense(x, p):
    return x @ p["kernel"] + p.get("bias", 0)


def attention(x, p, heads):
    """Self-attention on x [B, N, D], one example and one head at a time."""
    q, k, v = np.split(dense(x, p["qkv"]), 3, axis=-1)
    attended, size = np.empty_like(x), x.shape[-1] // heads
    for b in range(len(x)):
        for part in (slice(h * size, (h + 1) * size) for h in range(heads)):
            weights = softmax(q[b, :, part] @ k[b, :, part].T / np.sqrt(size), axis=-1)
            attended[b, :, part] = weights @ v[b, :, part]
    return dense(attended, p["out"])


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2
