"""Tests linen and NNX modules as models: their inputs and outputs, and error messages."""

import functools
import inspect
import re
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from flax import nnx
from inputs import complaint

from fedjax_lab import losses, tree
from fedjax_lab.models.modules import as_function
from fedjax_lab.models.task import encode, make_task, split_head
from fedjax_lab.types import Batch

KEY = jax.random.key(0)
K, D = toys.K, toys.D


class Plain(nn.Module):
    """Returns logits alone; it has no optional arguments and no named layers."""

    num_classes: int
    width: int = 8

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(nn.relu(nn.Dense(self.width)(x)))


class Deep(nn.Module):
    """Has BatchNorm, dropout, a loop and a remat; its last layer is inside another module."""

    num_classes: int
    rate: float = 0.5

    @nn.compact
    def __call__(self, x, *, deterministic):
        x = nn.BatchNorm(use_running_average=deterministic)(nn.Dense(8)(x))
        x = nn.Dropout(self.rate, deterministic=deterministic)(x)
        x = nn.remat(Step)(8)(x, None)[0]
        loop = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        x, _ = loop(8)(x, None)
        return nn.Sequential([nn.relu, nn.Dense(self.num_classes)], name="top")(x)


class Step(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, _):
        return x + nn.Dense(self.width)(x), None


class Net(nnx.Module):
    """An NNX module with BatchNorm, dropout and a list of layers."""

    def __init__(self, num_classes, *, width=8, rate=0.5, rngs: nnx.Rngs):
        self.first = nnx.Linear(D, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(2)])
        self.out = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, x):
        x = self.drop(self.norm(self.first(x)))
        for block in self.blocks:
            x = nnx.relu(block(x))
        return self.out(x)


def build_net(num_classes, *, rngs, width=8):
    return Net(num_classes, width=width, rngs=rngs)


PARTS = {"plain": Plain, "deep": Deep, "nnx": Net, "nnx function": build_net}


@functools.cache
def task_of(name, **settings):
    return make_task(as_function(PARTS[name])(K, **settings), (D,), K)


@pytest.mark.parametrize("name", PARTS)
def test_features_are_the_input_of_the_last_layer(name):
    task = task_of(name)
    assert task.layers[-1] == task.dense[-1] == "head"
    w = toys.random_weights(jax.eval_shape(task.init, KEY))
    x = toys.normal(1, 5, D)
    out = task.apply(w, x)
    head = w.params["head"]
    np.testing.assert_allclose(out.features @ head["kernel"] + head["bias"], out.logits, rtol=1e-5)
    encoder, _ = split_head(task, w)
    toys.same(encode(task, encoder, x), out.features)
    for layer in ("head", task.layers[0]):
        features = task.apply_at(layer, w, x).features
        again = task.apply_at(layer, w, jnp.zeros_like(x), features)
        toys.close(again.logits, out.logits)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["deep", "nnx"])
def test_training_lowers_the_loss(name):
    task = task_of(name)
    batch = Batch(toys.FEDERATION.x[:64], toys.FEDERATION.y[:64], jnp.ones(64))
    loss = jax.jit(jax.value_and_grad(losses.risk(task), has_aux=True))
    w = task.init(KEY)
    before = losses.cross_entropy(task.apply(w, batch.x).logits, batch)
    for step in range(40):
        (_, out), grads = loss(w, batch, jax.random.key(step))
        w = w._replace(params=tree.add(w.params, grads.params, -0.3), stats=out.stats)
    assert losses.cross_entropy(task.apply(w, batch.x).logits, batch) < 0.8 * before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deep", "nnx"])
def test_training_mode_uses_dropout_and_moments_of_real_rows(name):
    task, without_dropout = task_of(name), task_of(name, rate=0.0)
    w = task.init(KEY)
    x = toys.normal(1, 6, D)
    logits = [task.apply(w, x, jax.random.key(i)).logits for i in (1, 1, 2)]
    toys.same(logits[0], logits[1])
    assert not np.allclose(logits[0], logits[2])
    toys.same(task.apply(w, x).stats, w.stats)  # evaluation

    mask = jnp.array([1.0, 1, 1, 1, 0, 0])
    padded, alone = (
        without_dropout.apply(w, x, KEY, mask),
        without_dropout.apply(w, x[:4], KEY, mask[:4]),
    )
    toys.close(padded.logits[:4], alone.logits)
    toys.close(padded.stats, alone.stats)
    assert all(
        np.isfinite(a).all() for a in jax.tree.leaves(without_dropout.apply(w, x, KEY, 0 * mask))
    )


def test_layers_in_a_list_are_found_by_their_path():
    params = task_of("nnx").init(KEY).params
    assert tree.at(params, "blocks/1/kernel") is params["blocks"][1]["kernel"]


@pytest.mark.parametrize("name", ["plain", "nnx"])
def test_products_of_a_user_defined_model_are_in_bfloat16(name):
    part = as_function(PARTS[name])(K)
    task = make_task(part, (D,), K, compute_dtype=jnp.bfloat16)
    text = str(jax.make_jaxpr(task.apply)(task.init(KEY), jnp.zeros((2, D))))
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products and all("bf16" in line.split("=")[0] for line in products)


def test_module_classes_become_functions_with_settings():
    functions = {name: as_function(part) for name, part in PARTS.items()}
    parameters = {name: inspect.signature(f).parameters for name, f in functions.items()}
    defaults = {
        name: {key: p.default for key, p in each.items() if p.kind == p.KEYWORD_ONLY}
        for name, each in parameters.items()
    }
    assert defaults["plain"] == {"width": 8} and defaults["deep"] == {"rate": 0.5}
    assert defaults["nnx"] == {"width": 8, "rate": 0.5}
    assert defaults["nnx function"] == {"width": 8}
    assert functions["plain"].__name__ == "Plain" and functions["plain"](3, width=5).width == 5
    wide = make_task(functions["nnx function"](K, width=5), (D,), K)
    assert wide.init(KEY).params["first"]["kernel"].shape == (D, 5)


class Custom(nn.Module):
    """A model whose forward pass is any function of itself and of x."""

    forward: Callable

    @nn.compact
    def __call__(self, x):
        return self.forward(self, x)


def two_heads(model, x):
    return nn.Dense(K)(nn.Dense(5, name="head")(x))


def cached(model, x):
    model.variable("cache", "last", jnp.zeros, ())
    return nn.Dense(K)(x)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            Custom(lambda model, x: nn.LayerNorm(name="last")(nn.Dense(K)(x))),
            "model Custom is 'last', a LayerNorm; .* name='head'",
        ),
        (Custom(two_heads), "'Dense_0', but another part of it is named 'head'; .* name='head'"),
        (Custom(cached), "variables of the collection 'cache'; only params and batch_stats"),
        (
            Custom(lambda model, x: nn.Dense(K)(x[:, None]).mean(1)),
            r"the shape \[2, 1, 6\] for 2 examples.*pool before",
        ),
        (
            Custom(lambda model, x: {"scores": nn.Dense(K)(x)}),
            r"return logits, float32\[2, 4\] .* returns {'scores': 'float32\[2, 4\]'}",
        ),
        (
            Custom(lambda model, x: (nn.Dense(K)(x), x[:, :2])),
            r"the input of its last layer 'Dense_0', \[2, 6\] .* returns \[2, 2\]",
        ),
        (
            Custom(lambda model, x: nn.Dense(K)(x.reshape(7, 7))),
            r"model Custom \(test_modules.py, line \d+\) failed: TypeError: ",
        ),
        (
            Custom(lambda model, x: nn.remat(nn.Dense)(K)(x)),
            "'head' is inside a loop of the model or a remat",
        ),
        (Plain(K + 1), r"must return logits, float32\[2, 4\] .* returns 'float32\[2, 5\]'"),
        (nn.Dense(K), "model Dense has no submodule with weights"),
        (Net(K, rngs=nnx.Rngs(0)), "returns an NNX Net that already has weights; .* `rngs`"),
        (Plain, "a model must be a Flax module, not type"),
    ],
)
def test_unsuitable_modules_are_rejected(module, said):
    assert re.search(said, complaint(make_task, module, (D,), K))


class NoDefault(nn.Module):
    num_classes: int
    depth: int


@pytest.mark.parametrize(
    ("part", "said"),
    [(NoDefault, "its field depth needs a default"), (dict, "model dict is not a Flax module")],
)
def test_unsuitable_classes_are_rejected(part, said):
    assert said in complaint(as_function, part)
