"""Padding changes nothing: parts that depend on padded rows are found or refused."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from flax import nnx
from slow_cases import in_ci

from fedjax_lab import losses, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import registry
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models import layers
from fedjax_lab.models.modules import as_function
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import metrics
from fedjax_lab.testing import CheckFailed, check_model
from fedjax_lab.testing.methods import check_cohorts
from fedjax_lab.testing.padding import check_padding
from fedjax_lab.testing.trial import Trial
from fedjax_lab.types import Method

TASK = toys.TASK
TRAINED, SCORED = "the numbers depend on the padding", "the scores depend on the padding"


def with_loss(mean):
    """FedAvg whose loss is `mean` of the cross-entropies [B] and the mask [B]."""

    def loss(w, batch, key):
        out = TASK.apply(w, batch.x, key, batch.mask)
        each = optax.softmax_cross_entropy_with_integer_labels(out.logits, batch.y)
        return mean(each, batch.mask), out

    return fedavg(TASK, lambda w_t, client, work: (work.train(w_t, loss), client.private))


def from_all_rows(w_t, client, work):
    """Moves the weights by a mean over a batch and its padding."""
    batch = work.draw(64)
    return tree.add(w_t, optax.tree.scale(jnp.mean(batch.x), w_t), 0.01), client.private


def centered(message, client, x):
    return TASK.apply(message, x - jnp.mean(x, 0)).logits


def tuned_by_sums(message, client, work):
    step = work.mean(lambda batch: jax.grad(lambda p: total(p, batch))(message.params))
    return message._replace(params=tree.add(message.params, step, -0.1)), client.private


def total(params, batch):
    out = TASK.apply(TASK.init(jax.random.key(0))._replace(params=params), batch.x)
    return jnp.mean(out.logits**2)


METHODS = {
    "plain mean": (with_loss(lambda each, mask: jnp.mean(each)), TRAINED),
    "divided by a constant": (with_loss(lambda each, mask: jnp.sum(each * mask) / 40), None),
    "mean of masked": (with_loss(lambda each, mask: jnp.mean(each * mask)), TRAINED),
    "largest": (with_loss(lambda each, mask: jnp.max(each)), TRAINED),
    "a drawn batch": (fedavg(TASK, from_all_rows), TRAINED),
    "predictions": (fedavg(TASK)._replace(predict=centered), SCORED),
    "tune": (fedavg(TASK)._replace(tune=tuned_by_sums), SCORED),
    "masked": (with_loss(losses.masked_mean), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", in_ci(["plain mean"], METHODS))
def test_a_method_that_depends_on_padding_is_found(name):
    method, message = METHODS[name]
    if message is None:
        check_padding(Trial(method))
        return
    with pytest.raises(CheckFailed, match=message):
        check_padding(Trial(method))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", registry.METHODS)
def test_no_method_of_the_package_depends_on_padding(name):
    few = dict.fromkeys(("fedmd", "ds_fl"), {"subset": 30})  # else public batches change too
    method = toys.make(name, **few.get(name, {}))
    if isinstance(method, Method):  # the check of a method with stages includes this one
        check_padding(Trial(method))
        check_cohorts(Trial(method))


class Net(nn.Module):
    """Positions [B, T, C] of an example pass a normalization in one of several shapes."""

    num_classes: int
    way: str = "plain"

    @nn.compact
    def __call__(self, x, train: bool = False, mask=None):
        z = nn.Dense(6)(x.reshape(len(x), 4, -1))  # [B, T, C]
        norm = nn.BatchNorm(use_running_average=not train)
        if self.way == "plain":
            z = norm(z)
        elif self.way == "merged":
            z = norm(z.reshape(-1, 6)).reshape(z.shape)
        elif self.way == "time first":
            z = norm(z.swapaxes(0, 1)).swapaxes(0, 1)
        elif self.way == "masked":
            rows = None if mask is None else jnp.repeat(mask, 4)[:, None] > 0
            z = norm(z.reshape(-1, 6), mask=rows).reshape(z.shape)
        elif self.way == "masked in another order":
            rows = None if mask is None else jnp.tile(mask, 4)[:, None] > 0
            z = norm(z.reshape(-1, 6), mask=rows).reshape(z.shape)
        elif self.way == "without its mask":
            z = layers.BatchNorm()(z, train)
        elif self.way == "by hand":
            z = (z - z.mean(0)) if train else z
        elif self.way == "by hand, counted":
            m = jnp.ones(len(x)) if mask is None else mask
            mean = jnp.sum(m[:, None, None] * z, 0) / len(x)
            z = z - mean if train else z
        z = nn.Dropout(0.5, deterministic=not train)(z)
        return nn.Dense(self.num_classes)(nn.relu(z).reshape(len(x), -1))


UNMASKED = ["masked in another order", "by hand", "by hand, counted"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["plain", "masked", "without its mask"])
def test_a_model_that_leaves_out_padding_passes(way):
    check_model(Net, shape=(8,), way=way)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", in_ci(["by hand, counted"], UNMASKED))
def test_a_model_that_depends_on_padding_is_found(way):
    with pytest.raises(CheckFailed, match="a training pass depends on the padding"):
        check_model(Net, shape=(8,), way=way)


class Bridged(nnx.Module):
    """NNX's BatchNorm on merged positions."""

    def __init__(self, num_classes, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(2, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.out = nnx.Linear(24, num_classes, rngs=rngs)

    def __call__(self, x):
        z = self.norm(self.first(x.reshape(-1, 2)))
        return self.out(z.reshape(len(x), -1))


@pytest.mark.parametrize(
    "module", [Net(3, way="merged"), Net(3, way="time first"), as_function(Bridged)(3)]
)
def test_a_batch_norm_that_cannot_tell_padding_is_refused_before_training(module):
    with pytest.raises(BadInput, match=re.escape("keep the examples as the first axis")):
        make_task(module, (8,), 3)


class Frozen(nn.Module):
    """A BatchNorm that uses its running statistics also in training needs no mask."""

    @nn.compact
    def __call__(self, x):
        z = nn.BatchNorm(use_running_average=True)(x.reshape(-1, 2))
        return nn.Dense(3)(z.reshape(len(x), -1))


@pytest.mark.slow
def test_a_short_batch_gives_the_statistics_of_its_examples_and_frozen_ones_need_no_mask():
    assert make_task(Frozen(), (8,), 3).batch_norms
    task = make_task(Net(3), (8,), 3)
    w, key = task.init(jax.random.key(0)), jax.random.key(1)
    x = toys.normal(0, 7, 8)
    mask = (jnp.arange(7) < 4).astype(jnp.float32)
    short = jax.jit(task.apply)(w, x, key, mask).stats
    toys.close(short, jax.jit(task.apply)(w, x[:4], key, jnp.ones(4)).stats)


def plain_accuracy(logits, labels, mask):
    return jnp.mean(jnp.argmax(logits, 1) == labels)


def masked_accuracy(logits, labels, mask):
    return jnp.sum((jnp.argmax(logits, 1) == labels) * mask) / jnp.sum(mask)


def relative_margin(logits, labels, mask):
    """[N] values that depend on the other rows."""
    margin = jnp.max(logits, 1)
    return margin - jnp.mean(margin)


def test_a_metric_that_depends_on_padding_is_refused():
    assert metrics.make([masked_accuracy], 4)
    for wrong in (plain_accuracy, relative_margin):
        with pytest.raises(BadInput, match=f"metric '{wrong.__name__}' depends on the rows"):
            metrics.make([wrong], 4)
    assert np.isfinite(masked_accuracy(np.eye(4), np.arange(4), np.ones(4)))
