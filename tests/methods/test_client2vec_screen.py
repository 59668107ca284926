"""Tests the script that tries readings (interpretations) of Client2Vec's local term."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import losses
from fedjax_lab.methods.client2vec import L_index
from fedjax_lab.models.task import with_side_head
from fedjax_lab.papers.client2vec import __main__ as screen
from fedjax_lab.papers.client2vec.dsa_ign import REDUCTIONS
from fedjax_lab.types import Batch

B_F = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8)), jnp.float32)
BATCH = Batch(jnp.asarray(toys.SKEWED.x[:12]), jnp.asarray(toys.SKEWED.y[:12]), jnp.ones(12))


@pytest.mark.exhaustive
@pytest.mark.parametrize("reading, detach", [("both 5", False), ("both 5 without KL's", True)])
def test_the_objective_has_the_gradients_of_the_method(reading, detach):
    task = with_side_head(toys.NORM, B_F.shape[1])
    w = task.init(jax.random.key(0))
    reading = reading + " gradient to o" if detach else reading
    given = screen.complete(screen.READINGS[reading])

    def method_loss(params):
        out = task.apply(w._replace(params=params), BATCH.x, jax.random.key(0), BATCH.mask)
        term = L_index(out, BATCH, B_F, reduce=REDUCTIONS["mean"], orth=True, detach=detach)
        return losses.cross_entropy(out.logits, BATCH) + 5 * term

    of_screen = partial(screen.objective, task, w.stats, BATCH, given, B_F)
    toys.close(jax.grad(lambda p: of_screen(p)[0])(w.params), jax.grad(method_loss)(w.params))
